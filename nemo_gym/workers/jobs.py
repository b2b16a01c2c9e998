"""What is waiting to be done by workers, and how it can end."""

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from nemo_gym.errors import EnvFailed


@dataclass(frozen=True)
class Finished:
    """The work returned this."""

    value: Any


@dataclass(frozen=True)
class Lost:
    """The work was ended, or ended itself."""

    kind: Literal["time", "memory", "crash"]
    reason: str


Result: TypeAlias = Finished | Lost


@dataclass(frozen=True)
class Limits:
    """What is run, by how many, and how much of everything one job may use."""

    work: str
    size: int
    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int
    most_waiting: int


@dataclass(eq=False)
class Job:
    payload: bytes
    future: "Future[Result]" = field(default_factory=Future)
    begun: bool = False
    tried_again: bool = False


class JobQueue:
    """First come, first served; bounded; closed for good by `close`."""

    def __init__(self, most: int, where: str) -> None:
        self._most, self._where = most, where
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._closed: str | None = None

    def add(self, job: Job) -> None:
        """Let a job wait for its turn.

        Raises:
            EnvFailed: too many are waiting, or nobody will come.
        """
        with self._lock:
            if self._closed is not None:
                raise EnvFailed(self._closed, where=self._where)
            if len(self._jobs) >= self._most:
                raise EnvFailed(f"{self._most:,} jobs are waiting already", where=self._where)
            self._jobs.append(job)

    def take(self) -> Job | None:
        """The next job somebody still waits for."""
        with self._lock:
            while self._jobs:
                job = self._jobs.popleft()
                if job.begun or job.future.set_running_or_notify_cancel():
                    job.begun = True
                    return job
        return None

    def give_back(self, job: Job) -> None:
        """Put a job whose worker was lost in front again."""
        with self._lock:
            self._jobs.appendleft(job)

    def fail_all(self, problem: str) -> None:
        while (job := self.take()) is not None:
            job.future.set_exception(EnvFailed(problem, where=self._where))

    def close(self, problem: str) -> None:
        """Fail what waits and refuse what comes."""
        with self._lock:
            self._closed = problem
        self.fail_all(problem)

    def __bool__(self) -> bool:
        return bool(self._jobs)
