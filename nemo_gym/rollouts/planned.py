"""What a collection is about to do, told once before the first rollout is sent."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Planned:
    """How many rollouts there are, and what became of earlier ones."""

    total: int
    """Rollouts of the whole run."""
    finished: int = 0
    """Scored before; not run again."""
    given_up: int = 0
    """Failed too often, or in a way that trying again does not mend; not run again."""
    to_run: int = 0
    resumed: bool = False
    kept: Path | None = None
    """Where the files of an earlier run were moved, if there were any."""
    notes: list[str] = field(default_factory=list)
    """What a user should know: accepted changes, an identity that could not be checked."""
