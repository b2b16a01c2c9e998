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

    def __call__(self, outcome: Outcome) -> None:
        if isinstance(outcome, Scored):
            self.scored += 1
        elif isinstance(outcome, Failed):
            self.failed[outcome.failure.kind] += 1
        elif isinstance(outcome, Limit):
            self.limits[outcome.which] += 1
        else:
            self.cancelled += 1

    @property
    def total(self) -> int:
        return self.scored + self.failed.total() + self.limits.total() + self.cancelled

    def __str__(self) -> str:
        """`117 scored · 2 failed (timeout 2) · 1 limit (tokens 1)`; what did not happen is not mentioned."""
        parts = [f"{self.scored} scored"]
        for name, counts in (("failed", self.failed), ("limit", self.limits)):
            if counts:
                kinds = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
                parts.append(f"{counts.total()} {name} ({kinds})")
        if self.cancelled:
            parts.append(f"{self.cancelled} cancelled")
        return " · ".join(parts)
