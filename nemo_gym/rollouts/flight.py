"""The rollouts that are under way right now, oldest first: what to look at when a run seems to hang."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.key import RolloutKey

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Flight:
    """One rollout that was sent and has not come back."""

    key: RolloutKey
    agent: str
    seconds: float
    """Since it was sent; time spent waiting for its turn is not part of it."""
    waiting_for: str | None = None
    """Who has not answered, as far as this process can see."""


class Flights:
    """What is in flight. Reading is cheap and safe at any time from the loop's thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._sent: dict[RolloutKey, tuple[Job, float]] = {}  # a dictionary keeps the order of sending

    def __len__(self) -> int:
        return len(self._sent)

    def oldest(self, count: int) -> list[Flight]:
        """The `count` rollouts that have been under way longest, longest first."""
        now = self._clock()
        return [
            Flight(key, job.agent, now - sent, waiting_for=f"agent {job.agent}")
            for key, (job, sent) in islice(self._sent.items(), count)
        ]

    @contextmanager
    def under_way(self, job: Job) -> Iterator[None]:
        """The job counts as in flight inside the block."""
        self._sent[job.key] = (job, self._clock())
        try:
            yield
        finally:
            del self._sent[job.key]
