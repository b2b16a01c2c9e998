"""The rollouts that are under way right now, oldest first: what to look at when a run seems to hang."""

import time
from collections.abc import Callable
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

    def under_way(self, job: Job) -> "UnderWay":
        """`with under_way(job)`: it counts as in flight inside the block."""
        return UnderWay(self, job)

    def begin(self, job: Job) -> None:
        """The job is sent now."""
        self._sent[job.key] = (job, self._clock())

    def end(self, job: Job) -> float:
        """The job came back; how long it took."""
        return self._clock() - self._sent.pop(job.key)[1]


class UnderWay:
    """A job between its beginning and its end. Every rollout passes through one."""

    __slots__ = ("_flights", "_job")

    def __init__(self, flights: Flights, job: Job) -> None:
        self._flights = flights
        self._job = job

    def __enter__(self) -> None:
        self._flights.begin(self._job)

    def __exit__(self, *_: object) -> None:
        self._flights.end(self._job)
