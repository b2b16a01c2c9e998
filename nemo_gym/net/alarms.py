"""Ending work whose time is over: one timer of the event loop for all alarms that are set.

Every call of a rollout has a time of its own, and nearly none of them is ever reached. A timer of the loop for each
costs more than the call's own bookkeeping; here setting and unsetting an alarm is adding to and taking from a set, and
the loop is asked to wake us for the earliest only.
"""

import asyncio
import time
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary, ref

from nemo_gym.net.per_loop import PerLoop

SHORTEST_REST = 0.002
"""Seconds. When many alarms are due one after the other they are looked through no more often than this."""


class Alarms:
    """The alarms set in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # the loop knows us through its timer; the other way round nothing must be kept
        self._set: set[Alarm] = set()
        self._wakes_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._set)

    def add(self, alarm: "Alarm") -> None:
        self._set.add(alarm)
        if alarm.moment < self._wakes_at:
            self._wake_at(alarm.moment, time.monotonic())

    def remove(self, alarm: "Alarm") -> None:
        self._set.discard(alarm)

    def _wake_at(self, moment: float, now: float) -> None:
        loop = self._loop()
        if loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = moment
        self._timer = loop.call_later(max(0.0, moment - now), self._look)

    def _look(self) -> None:
        """Ring what is due, and wait for the next."""
        self._timer, self._wakes_at = None, float("inf")
        now = time.monotonic()
        for alarm in [alarm for alarm in self._set if alarm.moment <= now]:
            self._set.discard(alarm)
            alarm.ring()
        if self._set:
            earliest = min(alarm.moment for alarm in self._set)
            self._wake_at(max(earliest, now + SHORTEST_REST), now)


class Alarm:
    """`with Alarm(seconds)`: the enclosed work of this task is cancelled then, and `TimeoutError` raised instead.

    As `asyncio.timeout`, also in that a cancellation by somebody else stays one.
    """

    __slots__ = ("_alarms", "_before", "_outer", "blamed", "has_rung", "moment", "seconds", "task")

    def __init__(self, seconds: float, outer: "Alarm | None" = None) -> None:
        """`outer`, an alarm of the task that is running now, need not be given; with it the task is known."""
        self.seconds = seconds
        self.has_rung = False
        """Whether it was this alarm that ended the work."""
        self.blamed: str | None = None
        """Whom the work was waiting for when time ran out, if that is known."""
        self._outer = outer

    def __enter__(self) -> Self:
        outer = self._outer
        if outer is None:
            loop = asyncio.get_running_loop()
            task = asyncio.current_task(loop)
            if task is None:
                raise RuntimeError("an alarm needs a task to end")
            self.task: asyncio.Task[Any] = task
            self._alarms = _alarms.of(loop)
        else:
            self.task = outer.task
            self._alarms = outer._alarms
        self._before = self.task.cancelling()
        self.moment = time.monotonic() + self.seconds
        self._alarms.add(self)
        return self

    def ring(self) -> None:
        self.has_rung = True
        self.task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarms.remove(self)
        if kind is None and not self.has_rung:
            return
        self.blamed = _blamed.pop(self.task, None)
        if self.has_rung and self.task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error


def blame(where: str) -> None:
    """Note whom this task was waiting for when it was ended; of nested calls the innermost counts."""
    task = asyncio.current_task()
    if task is not None:
        _blamed.setdefault(task, where)


def calls_under_way(loop: asyncio.AbstractEventLoop) -> int:
    """How many alarms are set in a loop: every call has one."""
    return len(_alarms.of(loop))


_alarms = PerLoop(Alarms)
_blamed: WeakKeyDictionary["asyncio.Task[Any]", str] = WeakKeyDictionary()
