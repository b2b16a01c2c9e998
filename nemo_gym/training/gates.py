"""Gates of a training step: the trainer trains on exactly the tokens that the current weights generated.

A reward curve can rise although tokens, log-probs or weights are wrong, so each step is checked before its update:
parity of the log-probs, prompts that continue the calls before them, every generated token trained on or counted, and
the weight version on every call. Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_gym.errors import GymError
from nemo_gym.training.parity import DEFAULT_TOLERANCE, LogprobFunction, Parity, check_parity
from nemo_gym.training.types import Rollout


class GateFailed(GymError):
    """A training step does not train on exactly what the policy generated."""


@dataclass(frozen=True, slots=True)
class StepCheck:
    """What the gates found in the rollouts of one step."""

    parity: Parity
    broken_boundaries: int
    """Prompts that do not continue the calls before them."""
    tokens_generated: int | None
    """Number of tokens that the engine sampled; None if the engine does not count them."""
    tokens_delivered: int
    """Number of tokens with mask 1, and of those that were left out with a reason."""
    other_versions: int
    """Number of model calls whose weight version differs from the step's."""

    def require(self, where: str) -> None:
        """Raise an error unless every gate holds.

        Raises:
            ParityError: the log-probs differ.
            GateFailed: another gate does not hold.
        """
        if self.broken_boundaries:
            problem = f"{self.broken_boundaries} prompts do not continue the calls before them"
            fix = "let the engine splice the ids of earlier turns instead of tokenising their text"
            raise GateFailed(problem, where=where, fix=fix)
        if self.other_versions:
            problem = f"{self.other_versions} model calls do not have the weight version of the step"
            raise GateFailed(problem, where=where, fix="update the policy before the next step starts")
        self.parity.require()
        if self.tokens_generated is not None and self.tokens_generated != self.tokens_delivered:
            problem = f"the engine sampled {self.tokens_generated} tokens, but the samples have {self.tokens_delivered}"
            raise GateFailed(problem, where=where, fix="read `why_not` and `left_out` of the rollouts")


def check_step(
    rollouts: Sequence[Rollout],
    logprob_fn: LogprobFunction,
    *,
    version: int,
    tokens_generated: int | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> StepCheck:
    """Check the rollouts of a step that were generated with weights `version`, before the step's update."""
    spans = [span for rollout in rollouts for sample in rollout.samples for span in sample.spans]
    trained = sum(sample.trainable_tokens for rollout in rollouts for sample in rollout.samples)
    return StepCheck(
        parity=check_parity(rollouts, logprob_fn, tolerance),
        broken_boundaries=sum(rollout.breaks for rollout in rollouts),
        tokens_generated=tokens_generated,
        tokens_delivered=trained + sum(sum(rollout.left_out.values()) for rollout in rollouts),
        other_versions=sum(span.weight_version != (version, version) for span in spans),
    )
