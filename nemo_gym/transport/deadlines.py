"""Deadlines and the allowance: rollout deadline, call timeouts, and the turn and token limits of a rollout.

Deadline: a time on the monotonic clock in a ContextVar, inherited by nested calls. Between processes the remaining
seconds are sent as a header (`keys.DEADLINE_HEADER`), because the clocks of two machines may differ. An `Alarm`
enforces the deadline by cancelling the task; nested calls in the same task share the alarm.

Allowance: the limits of a rollout besides its deadline, which are model call timeout, tool call limit (timeout of one
tool call), verify timeout, request timeout, maximum turns and maximum tokens. The collector sends the allowance of each
rollout as a header (`ALLOWANCE_HEADER`). `ServerClient` applies the timeouts; agents check turns and tokens with
`reached_limit`.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import lru_cache
from types import TracebackType
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary, ref

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.transport.event_loop import PerLoop

ALLOWANCE_HEADER = "x-nemo-gym-allowance"
"""Request header with the limits of a rollout: `verify_seconds=600;steps=100`."""
VERIFY_PATH = "/verify"

MARGIN_FRACTION, MAX_MARGIN_SECONDS = 0.05, 0.5
"""A caller keeps this fraction of its remaining time, at most this many seconds, and gives the rest to the callee."""

MIN_SCAN_INTERVAL = 0.002
"""Minimum seconds between two scans of the alarms."""

Clock = Callable[[], float]

_deadline: ContextVar[float | None] = ContextVar("nemo_gym_deadline", default=None)
_alarm: ContextVar["Alarm | None"] = ContextVar("nemo_gym_alarm", default=None)
_allowance: ContextVar["Allowance | None"] = ContextVar("nemo_gym_allowance", default=None)


class LoopAlarms:
    """The active alarms of one event loop, checked by one timer.

    Most alarms never fire. One event-loop timer per alarm would cost more than all other bookkeeping of a call; adding
    to a set and removing from it is cheap.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # weak, because the loop references this object through its timer
        self._timer: asyncio.TimerHandle | None = None
        self.active: set[Alarm] = set()
        """The alarms that have not fired; an alarm adds and removes itself."""
        self.wakes_at = math.inf
        """Time of the next scan."""

    def wake_at(self, moment: float, now: float) -> None:
        """Scan the alarms at `moment` instead of the planned time."""
        loop = self._loop()
        if loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.wakes_at = moment
        self._timer = loop.call_later(max(0.0, moment - now), self._scan)

    def _scan(self) -> None:
        """Fire the alarms that are due and set the timer for the next alarm."""
        self._timer, self.wakes_at = None, math.inf
        now = time.monotonic()
        for alarm in [alarm for alarm in self.active if alarm.moment <= now]:
            self.active.discard(alarm)
            alarm.fire()
        if self.active:
            earliest = min(alarm.moment for alarm in self.active)
            self.wake_at(max(earliest, now + MIN_SCAN_INTERVAL), now)


class Alarm:
    """`with Alarm(seconds)`: cancel the task if the block takes longer, and raise `TimeoutError`.

    Like `asyncio.timeout`, but cheaper. A cancellation by other code remains a `CancelledError`.
    """

    has_fired = False
    """True after this alarm cancelled the task."""
    awaited_server: str | None = None
    """Name of the server that the task was waiting for when the alarm fired; None if unknown."""

    def __init__(self, seconds: float, outer: "Alarm | None" = None) -> None:
        """Prepare an alarm. `outer`, an enclosing alarm of the same task, saves the lookup of the task."""
        self.seconds = seconds
        self._outer = outer

    def __enter__(self) -> Self:
        outer = self._outer
        task: asyncio.Task[Any] | None
        if outer is None:
            loop = asyncio.get_running_loop()
            task, alarms = asyncio.current_task(loop), _alarms.of(loop)
            if task is None:
                raise RuntimeError("an alarm needs a running task to cancel")
        else:
            task, alarms = outer.task, outer._alarms
        self.task: asyncio.Task[Any] = task
        self._alarms: LoopAlarms = alarms
        self._prior_cancellations = task.cancelling()
        now = time.monotonic()
        self.moment = moment = now + self.seconds
        alarms.active.add(self)
        if moment < alarms.wakes_at:
            alarms.wake_at(moment, now)
        return self

    def fire(self) -> None:
        """Cancel the task."""
        self.has_fired = True
        self.task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarms.active.discard(self)
        if kind is None and not self.has_fired:
            return
        self.awaited_server = _awaited_servers.pop(self.task, None)
        # As `asyncio.timeout` does: if other code cancelled the task as well, the `CancelledError` remains.
        if self.has_fired and self.task.uncancel() <= self._prior_cancellations and kind is asyncio.CancelledError:
            raise TimeoutError from error


class DeadlineAlarm(Alarm):
    """`with DeadlineAlarm(seconds)`: an alarm that also sets the deadline inside the block.

    If the context already has an earlier deadline, that deadline is kept; the alarm still fires after `seconds`.
    """

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
    """Record the server that this task was waiting for when it was cancelled; the first (innermost) record is kept."""
    task = asyncio.current_task()
    if task is not None:
        _awaited_servers.setdefault(task, name)


def count_alarms(loop: asyncio.AbstractEventLoop) -> int:
    """Return the number of active alarms of a loop, which approximates its calls in flight."""
    return len(_alarms.of(loop).active)


_alarms = PerLoop(LoopAlarms)
_awaited_servers: WeakKeyDictionary["asyncio.Task[Any]", str] = WeakKeyDictionary()


def shorter_of(first: float | None, second: float | None) -> float | None:
    """Return the earlier of two times or the shorter of two durations; None means no limit."""
    if first is None:
        return second
    if second is None:
        return first
    return min(first, second)


deadline_moment = _deadline.get
"""Return the deadline as a time on the monotonic clock; None without a deadline."""


def seconds_left(clock: Clock = time.monotonic) -> float | None:
    """Return the seconds until the deadline, never negative; None without a deadline."""
    moment = _deadline.get()
    return None if moment is None else max(0.0, moment - clock())


class time_limit:  # noqa: N801 - called like a function, once for every rollout
    """`with time_limit(seconds)`: set the deadline inside the block; keep an earlier one. None has no effect.

    The collector sets the rollout deadline with it, and `ServerClient` the timeout of a model, tool or verify call.
    """

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
    """Return the alarm of this context if it cancels the running task, else None. It may fire after the deadline."""
    alarm = _alarm.get()
    return alarm if alarm is not None and alarm.task is asyncio.current_task() else None


def covering_alarm() -> Alarm | None:
    """Return the alarm of the running task if it fires at the deadline or earlier; None otherwise."""
    alarm, moment = current_alarm(), _deadline.get()
    fires_late = alarm is not None and moment is not None and alarm.moment > moment
    return None if fires_late else alarm


def adopt_caller(alarm: Alarm | None, headers: Mapping[str, str] | None) -> None:
    """Set the deadline and the allowance of a call in the current context, which must be new.

    `alarm` enforces the deadline; None if the call has no deadline.
    """
    if alarm is not None:
        _deadline.set(alarm.moment)
        _alarm.set(alarm)
    if headers:
        for name, value in headers.items():
            if name.lower() == ALLOWANCE_HEADER:
                _allowance.set(parse_allowance(value))


def parse_seconds(value: str | bytes | None) -> float | None:
    """Parse the deadline header; None if it is absent or malformed (which must not fail a request)."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def seconds_for_callee(left: float) -> float:
    """Return the seconds to allow a callee: slightly less than `left`, the remaining time of the caller.

    The innermost server of a chain of calls then times out first, and the error names the server that did not answer.
    """
    return left - min(MAX_MARGIN_SECONDS, left * MARGIN_FRACTION)


def seconds_after_hops(seconds: float, hops: int) -> float:
    """Return the seconds that the last server in a chain of `hops` calls gets if the first caller has `seconds`."""
    for _ in range(hops):
        seconds = seconds_for_callee(seconds)
    return seconds


def format_seconds(seconds: float) -> str:
    """Return the value of the deadline header: seconds with three decimals."""
    return f"{seconds:.3f}"


class CallTimeout(DeadlineExceeded):
    """A call took longer than the allowance of its rollout permits for this kind of call."""

    setting: ClassVar[str] = "request_timeout_seconds"
    """Configuration key of the limit."""


class ModelCallTimeout(CallTimeout):
    """A model call exceeded its timeout."""

    setting = "model_call_timeout_seconds"


class ToolCallTimeout(CallTimeout):
    """A tool call exceeded its timeout."""

    setting = "tool_call_timeout_seconds"


class VerifyTimeout(CallTimeout):
    """The verifier exceeded its timeout."""

    setting = "verify_timeout_seconds"


CallLimit = tuple[float | None, type[CallTimeout]]
"""Timeout of one call in seconds (None: no timeout), and the error class to raise when the call exceeds it."""
NO_LIMIT: CallLimit = (None, CallTimeout)


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of a rollout: call timeouts, maximum turns (`steps`) and maximum tokens. None means no limit."""

    model_call_seconds: float | None = None
    tool_call_seconds: float | None = None
    verify_seconds: float | None = None
    steps: int | None = None
    tokens: int | None = None
    request_seconds: float | None = None
    """Timeout of any call, if `request_timeout_seconds` is set; the other timeouts are not longer."""
    keep_replies: int | None = None
    """Not a limit: set if the agent keeps the model replies, so that the rollout returns them when it is cancelled.

    The number tells callers apart that use the same rollout ids."""

    def header_value(self) -> str:
        """Return the value of `ALLOWANCE_HEADER`; limits that are None are omitted."""
        limits = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ";".join(f"{name}={value!r}" for name, value in limits if value is not None)

    def call_limit(self, server_type: str, path: str) -> CallLimit:
        """Return the model call timeout, verify timeout or tool call limit, whichever applies.

        The tool call limit applies to all calls to a resources server except `/verify`.
        """
        if server_type == "responses_api_models":
            return self.model_call_seconds, ModelCallTimeout
        if server_type != "resources_servers":
            return self.request_seconds, CallTimeout
        if path.endswith(VERIFY_PATH):
            return self.verify_seconds, VerifyTimeout
        return self.tool_call_seconds, ToolCallTimeout


current_allowance = _allowance.get
"""Return the allowance of the current rollout; None outside a rollout or if the collector sent no allowance."""


def as_call_timeout(error: DeadlineExceeded, start: float, limit: CallLimit) -> CallTimeout | None:
    """Return the error for a call, begun at `start`, that exceeded `limit`; None if an earlier deadline ended it."""
    allowance, (seconds, timeout_class) = _allowance.get(), limit
    if seconds is None or time.monotonic() - start < seconds:
        return None
    is_any_call = allowance is not None and seconds == allowance.request_seconds
    setting = CallTimeout.setting if is_any_call else timeout_class.setting
    return timeout_class(error.problem, where=error.where, fix=f"raise {setting}, or find out why it is slow")


def reached_limit(*, steps: int, usages: Iterable[Any]) -> str | None:
    """Return the limit of the rollout that an episode has reached: `steps`, `tokens`, or None.

    `steps` is the number of model turns so far, `usages` the token usage of each. An agent that stops because of a
    limit answers with `_ng_failure_class: "limit"` and `_ng_failure: {"which": …}`.
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
    """Set the current allowance inside the block; None has no effect."""
    if allowance is None:
        yield
        return
    token = _allowance.set(allowance)
    try:
        yield
    finally:
        _allowance.reset(token)


@lru_cache(maxsize=64)
def parse_allowance(value: str | bytes | None) -> Allowance | None:
    """Parse the allowance header; None if it is absent. Malformed parts are ignored.

    The result is cached, because all rollouts of a run usually have the same value.
    """
    if not value:
        return None
    header = value.decode("latin-1") if isinstance(value, bytes) else value
    names = {field.name for field in fields(Allowance)}
    limits: dict[str, Any] = {}
    for part in header.split(";"):
        name, _, number = part.strip().partition("=")
        if name in names:
            limits[name] = _parse_positive(number, whole=name in ("steps", "tokens", "keep_replies"))
    return Allowance(**limits)


def _parse_positive(text: str, *, whole: bool) -> float | int | None:
    """Parse a positive finite number; None if the text is not one. `whole` first drops the decimals."""
    try:
        number = int(float(text)) if whole else float(text)
    except (ValueError, OverflowError):  # also NaN and infinity as a whole number
        return None
    return number if math.isfinite(number) and number > 0 else None
