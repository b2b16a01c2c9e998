"""How many rollouts ended how."""

from collections import Counter

from nemo_gym.rollouts.outcome import Failed, Limit, Outcome, Scored


class Tally:
    """An observer that counts outcomes."""

    def __init__(self) -> None:
        self.scored = 0
        self.failed: Counter[str] = Counter()
        self.limits: Counter[str] = Counter()
        self.cancelled = 0
        self.retried = 0
        """Scored, but not at the first attempt."""
        self.stopped: str | None = None
        """Why the run ended before its rows did."""
        self.not_run = 0
        """Rollouts that were never sent because of that."""

    def __call__(self, outcome: Outcome) -> None:
        if isinstance(outcome, Scored):
            self.scored += 1
            self.retried += bool(outcome.job.key.attempt)
        elif isinstance(outcome, Failed):
            self.failed[outcome.failure.kind] += 1
        elif isinstance(outcome, Limit):
            self.limits[outcome.which] += 1
        else:
            self.cancelled += 1

    def stop(self, reason: str, to_run: int) -> None:
        """The run ended early; `to_run` rollouts were planned for it."""
        self.stopped = reason
        self.not_run = max(0, to_run - self.total)

    @property
    def total(self) -> int:
        return self.scored + self.failed.total() + self.limits.total() + self.cancelled

    def __str__(self) -> str:
        """`117 scored (3 retried) · 2 failed (timeout 2) · 1 limit (tokens 1)`; what did not happen is left out."""
        parts = [f"{self.scored} scored" + (f" ({self.retried} retried)" if self.retried else "")]
        for name, counts in (("failed", self.failed), ("limit", self.limits)):
            if counts:
                kinds = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
                parts.append(f"{counts.total()} {name} ({kinds})")
        if self.cancelled:
            parts.append(f"{self.cancelled} cancelled")
        if self.not_run:
            parts.append(f"{self.not_run} not run")
        return " · ".join(parts)
