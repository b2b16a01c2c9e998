"""Compare the engine's log-probs with those that the trainer computes for the same tokens."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nemo_gym.errors import GymError
from nemo_gym.training.types import Rollout, Sample, Span

DEFAULT_TOLERANCE = 1e-4

LogprobFunction = Callable[[Sample], Sequence[float]]
"""Returns one log-prob for each token of a sample, given all tokens before it."""


class ParityError(GymError):
    """The trainer computes other log-probs than the engine, so it would train on other tokens or weights."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A token whose log-probs differ by more than the tolerance."""

    rollout_id: str
    turn: int
    position: int
    token_id: int
    engine: float
    trainer: float

    def __str__(self) -> str:
        return (
            f"rollout {self.rollout_id or '?'}, turn {self.turn}, token {self.position} (id {self.token_id}): "
            f"engine {self.engine:.6f}, trainer {self.trainer:.6f}"
        )


@dataclass(frozen=True, slots=True)
class Parity:
    """The result of `check_parity`."""

    tokens: int
    """Number of tokens compared: those with mask 1."""
    max_gap: float
    tolerance: float
    beyond: int
    """Number of tokens whose gap is larger than the tolerance."""
    first_gap: Gap | None
    """The first of these tokens."""

    @property
    def holds(self) -> bool:
        """True if at least one token was compared and none differs by more than the tolerance."""
        return self.tokens > 0 and self.beyond == 0

    def require(self) -> None:
        """Raise an error unless the log-probs agree.

        Raises:
            ParityError: a log-prob differs by more than the tolerance, or there was no token to compare.
        """
        if not self.tokens:
            raise ParityError("there is no token to compare", fix="give rollouts with trainable samples")
        if self.first_gap is not None:
            problem = f"{self.beyond} of {self.tokens} log-probs differ by more than {self.tolerance:g}"
            raise ParityError(
                f"{problem} (at most {self.max_gap:.4g})",
                where=str(self.first_gap),
                fix="check the weight version, the tokenizer, temperature and top-p, and the attention mask",
            )


def check_parity(
    samples: Iterable[Sample | Rollout], logprob_fn: LogprobFunction, tolerance: float = DEFAULT_TOLERANCE
) -> Parity:
    """Compare the log-probs of the tokens with mask 1 with what `logprob_fn` returns for the sample.

    Rollouts stand for their samples.

    Raises:
        ParityError: `logprob_fn` returns another number of values than the sample has tokens.
    """
    tokens, beyond, max_gap = 0, 0, 0.0
    first: Gap | None = None
    for sample in _flatten(samples):
        computed = logprob_fn(sample)
        if len(computed) != len(sample.token_ids):
            problem = f"logprob_fn returned {len(computed)} values for {len(sample.token_ids)} tokens"
            raise ParityError(problem, where=sample.rollout_id or None)
        for span, position in _positions(sample):
            engine, trainer = sample.logprobs[position], float(computed[position])
            gap = abs(engine - trainer)
            if math.isnan(gap):
                gap = math.inf
            tokens += 1
            max_gap = max(max_gap, gap)
            if gap > tolerance:
                beyond += 1
                token = sample.token_ids[position]
                first = first or Gap(sample.rollout_id, span.turn, position, token, engine, trainer)
    return Parity(tokens, max_gap, tolerance, beyond, first)


def _flatten(samples: Iterable[Sample | Rollout]) -> Iterator[Sample]:
    for each in samples:
        yield from each.samples if isinstance(each, Rollout) else (each,)


def _positions(sample: Sample) -> Iterator[tuple[Span, int]]:
    """Yield the positions with mask 1, with their spans."""
    for span in sample.spans:
        for position in range(span.start, span.end):
            if sample.loss_mask[position]:
                yield span, position
