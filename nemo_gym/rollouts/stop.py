"""When a collection ends before its rows do."""

from dataclasses import dataclass, field

from nemo_gym.rollouts.outcome import Failed, Outcome
from nemo_gym.rollouts.usage import total_tokens


@dataclass(kw_only=True)
class Stopping:
    """Watches failures and tokens. `reason` is why no more rollouts are started, `at_once` why none is finished."""

    max_failures: int | None = None
    max_tokens: int | None = None
    tokens: int = 0
    """Spent so far; a resumed run begins with what was spent before."""
    failures: int = 0
    reason: str | None = field(default=None, init=False)
    at_once: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._check_tokens()

    def tried(self, outcome: Outcome) -> None:
        """An attempt ended; whatever became of it, its tokens are spent."""
        self.tokens += total_tokens(outcome.record)
        self._check_tokens()

    def ended(self, outcome: Outcome) -> None:
        """A rollout ended for good."""
        if not isinstance(outcome, Failed):
            return
        self.failures += 1
        if self.max_failures is not None and self.failures >= self.max_failures:
            said = "a rollout" if self.max_failures == 1 else f"{self.failures} rollouts"
            self.reason = f"{said} failed (max_failures {self.max_failures})"
            self.at_once = True

    def _check_tokens(self) -> None:
        if self.max_tokens is not None and self.tokens >= self.max_tokens and self.reason is None:
            self.reason = f"{self.tokens:,} tokens are spent (max_total_tokens {self.max_tokens:,})"
