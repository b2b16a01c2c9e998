"""Recovery from the crash of a server: which failures a crash can cause, and how lost rollouts are sent again."""

from collections.abc import Collection, Sequence
from typing import Protocol

from nemo_gym.rollouts.outcome import FailureKind
from nemo_gym.serve.process_status import Crash, RunningHandler
from nemo_gym.transport.event_loop import SlotQueue

LOST_CALL_KINDS = frozenset(
    {FailureKind.SERVER_DIED, FailureKind.MODEL_UNREACHABLE, FailureKind.JUDGE_FAILED, FailureKind.TIMEOUT}
)
"""Kinds of failures that the crash of a server, or a blocked server, can cause."""
MAX_RESENDS = 10
"""How often one attempt may be sent again because another server or rollout ended or blocked a process."""


class ServerMonitor(Protocol):
    """What the process that runs the servers knows about crashes."""

    @property
    def lost_instances(self) -> Collection[str]:
        """The servers that ended and will not be restarted."""
        ...

    def blocking_handler(self, instance: str) -> RunningHandler | None:
        """Return the handler that blocks a process which serves a server; None without one."""
        ...

    def is_suspended(self, instance: str) -> bool:
        """Return whether every process that serves a server is stopped from outside."""
        ...

    async def find_crashes(self, instance: str, since: float) -> Sequence[Crash]:
        """Return the crashes since a time of processes that serve a server; wait for reports that may follow."""
        ...


class ResendGate:
    """Limits how many rollouts are sent again at once after the crashes of one server.

    Rollouts that run together are lost together. The limit is halved at each crash and grows with every answer, so
    that a rollout which ends the server soon runs with few others, and the others are lost only a few times.
    """

    def __init__(self) -> None:
        self._limit = 0
        self._running = 0
        self._queue = SlotQueue()
        self.crashes = 0
        """Number of crashes that this gate knows of."""

    def record_crash(self, crashes_before: int, in_flight: int) -> None:
        """Halve the limit. `crashes_before` is the number of crashes when the lost rollout was sent.

        The other rollouts that were lost in the same crash have no effect.
        """
        if crashes_before == self.crashes:
            self.crashes += 1
            self._limit = max(1, (self._limit or in_flight) // 2)

    async def enter(self) -> None:
        """Wait until a rollout may be sent again."""
        while self._running >= self._limit:
            await self._queue.wait(self._queue.grant)
        self._running += 1

    def leave(self, *, is_answered: bool) -> None:
        """Let other rollouts run after this one; an answer raises the limit."""
        self._running -= 1
        self._limit += is_answered
        for _ in range(self._limit - self._running):
            if not self._queue.grant():
                break
