"""Time limits of the work in hand, and what a rollout may use: deadlines, alarms, the allowance.

The deadline is a moment on the monotonic clock kept in a ContextVar. Between processes it travels as the number of
seconds left (`keys.DEADLINE_HEADER`), because the clocks of two machines need not agree. An `Alarm` enforces it by
cancelling the task; calls made in the same task need no second alarm for the same moment.

The allowance is set by the collector for each rollout and travels as a header. `ServerClient` holds calls to their
time; agents count turns and tokens with `reached_limit`.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import lru_cache
from types import TracebackType
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary, ref

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.transport.event_loop import PerLoop

ALLOWANCE_HEADER = "x-nemo-gym-allowance"
VERIFY_PATH = "/verify"

MARGIN, LONGEST_MARGIN = 0.05, 0.5
"""Share and largest number of seconds of the time left that a caller keeps for itself."""

MIN_SCAN_INTERVAL = 0.002
"""Seconds between two scans of the alarms when many are due one after the other."""

Clock = Callable[[], float]

_deadline: ContextVar[float | None] = ContextVar("nemo_gym_deadline", default=None)
_alarm: ContextVar["Alarm | None"] = ContextVar("nemo_gym_alarm", default=None)
_allowance: ContextVar["Allowance | None"] = ContextVar("nemo_gym_allowance", default=None)


class LoopAlarms:
    """The alarms set in one event loop, served by one timer.

    Nearly no alarm ever rings. A timer of the loop for each costs more than the rest of a call's bookkeeping; adding
    to and removing from a set does not.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # weak: the loop refers to this object through its timer
        self._alarms: set[Alarm] = set()
        self._wakes_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._alarms)

    def add(self, alarm: "Alarm") -> None:
        self._alarms.add(alarm)
        if alarm.moment < self._wakes_at:
            self._wake_at(alarm.moment, time.monotonic())

    def remove(self, alarm: "Alarm") -> None:
        self._alarms.discard(alarm)

    def _wake_at(self, moment: float, now: float) -> None:
        loop = self._loop()
        if loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = moment
        self._timer = loop.call_later(max(0.0, moment - now), self._scan)

    def _scan(self) -> None:
        """Ring the alarms that are due and set the timer for the next one."""
        self._timer, self._wakes_at = None, math.inf
        now = time.monotonic()
        for alarm in [alarm for alarm in self._alarms if alarm.moment <= now]:
            self._alarms.discard(alarm)
            alarm.ring()
        if self._alarms:
            earliest = min(alarm.moment for alarm in self._alarms)
            self._wake_at(max(earliest, now + MIN_SCAN_INTERVAL), now)


class Alarm:
    """`with Alarm(seconds)`: cancel the enclosed work of this task after that time and raise `TimeoutError`.

    Like `asyncio.timeout`: a cancellation that came from elsewhere stays a cancellation.
    """

    __slots__ = ("_alarms", "_cancels_before", "_outer", "awaited_server", "has_rung", "moment", "seconds", "task")

    def __init__(self, seconds: float, outer: "Alarm | None" = None) -> None:
        """Take the task from `outer`, an alarm of the same task, if that is given; looking it up costs more."""
        self.seconds = seconds
        self.has_rung = False
        """This alarm ended the work."""
        self.awaited_server: str | None = None
        """The server that the work was waiting for when time ran out, if known."""
        self._outer = outer

    def __enter__(self) -> Self:
        outer = self._outer
        if outer is None:
            loop = asyncio.get_running_loop()
            task = asyncio.current_task(loop)
            if task is None:
                raise RuntimeError("an alarm needs a running task to cancel")
            self.task: asyncio.Task[Any] = task
            self._alarms = _alarms.of(loop)
        else:
            self.task = outer.task
            self._alarms = outer._alarms
        self._cancels_before = self.task.cancelling()
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
        self.awaited_server = _awaited_servers.pop(self.task, None)
        if self.has_rung and self.task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError:
            raise TimeoutError from error


class DeadlineAlarm(Alarm):
    """`with DeadlineAlarm(seconds)`: an alarm that is also the deadline of the enclosed work.

    An earlier deadline of the context is kept, but this alarm does not enforce it.
    """

    __slots__ = ("_tokens",)

    def __enter__(self) -> Self:
        super().__enter__()
        self._tokens = (_deadline.set(shorter_of(_deadline.get(), self.moment)), _alarm.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _alarm.reset(self._tokens[1])
        _deadline.reset(self._tokens[0])
        super().__exit__(kind, error, trace)


def note_awaited_server(name: str) -> None:
    """Record which server this task was waiting for when it was cancelled; of nested calls the innermost counts."""
    task = asyncio.current_task()
    if task is not None:
        _awaited_servers.setdefault(task, name)


def count_alarms(loop: asyncio.AbstractEventLoop) -> int:
    """Return the number of alarms set in a loop: about the number of calls in flight."""
    return len(_alarms.of(loop))


_alarms = PerLoop(LoopAlarms)
_awaited_servers: WeakKeyDictionary["asyncio.Task[Any]", str] = WeakKeyDictionary()


def shorter_of(first: float | None, second: float | None) -> float | None:
    """Return the earlier of two moments or the shorter of two durations; None means no limit."""
    if first is None:
        return second
    if second is None:
        return first
    return min(first, second)


deadline_moment = _deadline.get
"""Return the deadline on the monotonic clock; None without one."""


def seconds_left(clock: Clock = time.monotonic) -> float | None:
    """Return the seconds until the deadline, never negative; None without a deadline."""
    moment = _deadline.get()
    return None if moment is None else max(0.0, moment - clock())


class time_limit:  # noqa: N801 - called like a function, once for every rollout
    """`with time_limit(seconds)`: set a deadline for the enclosed work. An earlier one stays; None changes nothing."""

    __slots__ = ("_clock", "_seconds", "_token")

    def __init__(self, seconds: float | None, clock: Clock = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock

    def __enter__(self) -> None:
        if self._seconds is not None:
            self._token = _deadline.set(shorter_of(_deadline.get(), self._clock() + max(0.0, self._seconds)))

    def __exit__(self, *_: object) -> None:
        if self._seconds is not None:
            _deadline.reset(self._token)


def current_alarm() -> Alarm | None:
    """Return the alarm that cancels the running task, if any; the deadline may be earlier."""
    alarm = _alarm.get()
    return alarm if alarm is not None and alarm.task is asyncio.current_task() else None


def covering_alarm() -> Alarm | None:
    """Return the alarm that cancels the running task at the deadline or before, if any."""
    alarm, moment = current_alarm(), _deadline.get()
    return alarm if alarm is None or moment is None or alarm.moment <= moment else None


def adopt_alarm(alarm: Alarm) -> None:
    """Make an alarm and its moment the deadline of this context, which must be new and empty."""
    _deadline.set(alarm.moment)
    _alarm.set(alarm)


def parse_seconds(value: str | bytes | None) -> float | None:
    """Read the deadline header; None when it is absent or not a number of seconds.

    An unreadable header must not end a request, so it counts as absent.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def seconds_for_callee(left: float) -> float:
    """Return the time to allow a callee: slightly less than the caller has.

    The last server in a chain of calls then gives up first, and the error names the server that did not answer.
    """
    return left - min(LONGEST_MARGIN, left * MARGIN)


def seconds_after_hops(seconds: float, hops: int) -> float:
    """Return the time that is left of `seconds` for the last server in a chain of `hops` calls."""
    for _ in range(hops):
        seconds = seconds_for_callee(seconds)
    return seconds


def format_seconds(seconds: float) -> str:
    """Write seconds as the deadline header carries them: a decimal with milliseconds."""
    return f"{seconds:.3f}"


class CallTimeout(DeadlineExceeded):
    """A call took longer than the allowance of its rollout gives calls of its kind."""

    setting: ClassVar[str] = "request_timeout_seconds"


class ModelCallTimeout(CallTimeout):
    """A model did not answer within the time for one call."""

    setting = "model_call_timeout_seconds"


class ToolCallTimeout(CallTimeout):
    """A tool did not answer within the time for one call."""

    setting = "tool_call_timeout_seconds"


class VerifyTimeout(CallTimeout):
    """The verifier did not answer within its time."""

    setting = "verify_timeout_seconds"


CallLimit = tuple[float, type[CallTimeout]]
"""Seconds one call may take, and the error to raise when it takes longer."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one rollout may use; None means no limit."""

    model_call_seconds: float | None = None
    tool_call_seconds: float | None = None
    verify_seconds: float | None = None
    steps: int | None = None
    tokens: int | None = None

    def header_value(self) -> str:
        """Write the limits that are set: `verify_seconds=600;steps=100`."""
        limits = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ";".join(f"{name}={value!r}" for name, value in limits if value is not None)

    def call_limit(self, server_type: str, path: str) -> CallLimit | None:
        """Return the limit of one call to a server of this type, if there is one."""
        error: type[CallTimeout]
        if server_type == "responses_api_models":
            seconds, error = self.model_call_seconds, ModelCallTimeout
        elif server_type != "resources_servers":
            return None
        elif path.endswith(VERIFY_PATH):
            seconds, error = self.verify_seconds, VerifyTimeout
        else:
            seconds, error = self.tool_call_seconds, ToolCallTimeout
        return None if seconds is None else (seconds, error)


current_allowance = _allowance.get
"""Return the allowance of the rollout in hand; None outside a rollout or when the collector set none."""


def call_limit(server_type: str, path: str) -> CallLimit | None:
    """Return the limit that the current allowance sets for one call; None without one."""
    allowance = _allowance.get()
    return None if allowance is None else allowance.call_limit(server_type, path)


class _LimitedCall:
    """Set the deadline of one call, and name the limit if it is what ended the call."""

    __slots__ = ("_began", "_limit", "_token")

    def __init__(self, began: float, limit: CallLimit) -> None:
        self._began = began
        self._limit = limit

    def __enter__(self) -> None:
        self._token = _deadline.set(self._began + self._limit[0])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _deadline.reset(self._token)
        if kind is not None and isinstance(error, DeadlineExceeded):
            timeout = as_call_timeout(error, self._began, self._limit)
            if timeout is not None:
                raise timeout from error


_NO_LIMIT: AbstractContextManager[None] = nullcontext()


def call_time_limit(server_type: str, path: str) -> AbstractContextManager[None]:
    """Hold the enclosed call to the time its kind may take, if the current allowance limits it.

    Raises:
        ModelCallTimeout, ToolCallTimeout, VerifyTimeout: for the `DeadlineExceeded` of the enclosed call.
    """
    limit = call_limit(server_type, path)
    if limit is None:
        return _NO_LIMIT
    now, deadline = time.monotonic(), _deadline.get()
    if deadline is not None and deadline - now <= limit[0]:
        return _NO_LIMIT
    return _LimitedCall(now, limit)


def as_call_timeout(late: DeadlineExceeded, began: float, limit: CallLimit | None) -> CallTimeout | None:
    """Return the error that names the limit of a call begun at `began`; None if another limit ended the call."""
    if limit is None or time.monotonic() - began < limit[0]:
        return None
    kind = limit[1]
    return kind(late.problem, where=late.where, fix=f"raise {kind.setting}, or find out why it is slow")


def reached_limit(*, steps: int, usages: Iterable[Any]) -> str | None:
    """Return the limit an episode has reached after `steps` model turns with these usages: `steps`, `tokens` or None.

    An agent that stops for it answers with `_ng_failure_class: "limit"` and `_ng_failure: {"which": …}`.
    """
    allowance = _allowance.get()
    if allowance is None:
        return None
    if allowance.steps is not None and steps >= allowance.steps:
        return "steps"
    if allowance.tokens is not None and sum(usage.total_tokens for usage in usages if usage) >= allowance.tokens:
        return "tokens"
    return None


@contextmanager
def using_allowance(allowance: Allowance | None) -> Iterator[None]:
    """Make `allowance` current for the enclosed work; None changes nothing."""
    if allowance is None:
        yield
        return
    token = _allowance.set(allowance)
    try:
        yield
    finally:
        _allowance.reset(token)


def adopt_allowance(headers: Mapping[str, str]) -> None:
    """Make the allowance in a caller's headers, if any, current in this context, which must be new."""
    for name, value in headers.items():
        if name.lower() == ALLOWANCE_HEADER:
            _allowance.set(parse_allowance(value))


@lru_cache(maxsize=64)
def parse_allowance(value: str | bytes | None) -> Allowance | None:
    """Read the allowance header; None when it is absent. Unreadable parts are ignored.

    A run sends the same value with every rollout, so the result is cached.
    """
    if not value:
        return None
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    names = {field.name for field in fields(Allowance)}
    limits: dict[str, Any] = {}
    for part in text.split(";"):
        name, _, number = part.strip().partition("=")
        if name in names:
            limits[name] = _parse_positive(number, whole=name in ("steps", "tokens"))
    return Allowance(**limits)


def _parse_positive(text: str, *, whole: bool) -> float | int | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number) or number <= 0:
        return None
    return int(number) if whole else number
