"""How long the work in hand may still take, known to everything it calls.

The deadline is a moment on the monotonic clock kept in a ContextVar. Between processes it travels as the number of
seconds left (`keys.DEADLINE_HEADER`), because clocks of two machines need not agree.

A deadline is only a promise until somebody watches the clock. `Timer` does, and says so to what it encloses, so that
calls made in the same task need no timer of their own for the same moment.
"""

import asyncio
import math
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self

from nemo_gym.net.alarms import Alarm, blame

MARGIN, LONGEST_MARGIN = 0.05, 0.5
"""Of the time left, the share and the most seconds that a caller keeps to itself."""

Clock = Callable[[], float]

_deadline: ContextVar[float | None] = ContextVar("nemo_gym_deadline", default=None)
_watched: ContextVar[Alarm | None] = ContextVar("nemo_gym_deadline_watched", default=None)


def sooner(first: float | None, second: float | None) -> float | None:
    """The earlier of two moments (or shorter of two spans), where None means "no limit"."""
    if first is None:
        return second
    if second is None:
        return first
    return min(first, second)


def remaining(clock: Clock = time.monotonic) -> float | None:
    """Seconds left, never negative; None when nobody set a deadline."""
    moment = _deadline.get()
    return None if moment is None else max(0.0, moment - clock())


def moment() -> float | None:
    """When the time is over, on the monotonic clock; None when nobody set a deadline."""
    return _deadline.get()


def until(moment: float) -> Token[float | None]:
    """Make `moment` the deadline, which must be before the one in force; undone by `restore`."""
    return _deadline.set(moment)


def restore(before: Token[float | None]) -> None:
    """Undo an `until`."""
    _deadline.reset(before)


class within:  # noqa: N801 - called like a function, once for every rollout
    """`with within(seconds)`: give the enclosed work at most that. An earlier deadline stays; None changes nothing."""

    __slots__ = ("_before", "_clock", "_seconds")

    def __init__(self, seconds: float | None, clock: Clock = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock

    def __enter__(self) -> None:
        if self._seconds is not None:
            self._before = _deadline.set(sooner(_deadline.get(), self._clock() + max(0.0, self._seconds)))

    def __exit__(self, *_: object) -> None:
        if self._seconds is not None:
            _deadline.reset(self._before)


def watching() -> Alarm | None:
    """The alarm that ends this very task, if there is one; the deadline in force may be earlier."""
    known = _watched.get()
    return known if known is not None and known.task is asyncio.current_task() else None


def watched() -> Alarm | None:
    """What ends this very task at the deadline in force or before, if there is something."""
    known, moment = watching(), _deadline.get()
    return known if known is None or moment is None or known.moment <= moment else None


def begin(known: Alarm) -> None:
    """Make the moment of an alarm the deadline of this context, which is a new and empty one."""
    _deadline.set(known.moment)
    _watched.set(known)


class Timer(Alarm):
    """`with Timer(seconds)`: the enclosed work ends by then at the latest, by cancellation and `TimeoutError`.

    Of an earlier deadline only the moment is known here, so that one is kept but not watched.
    """

    __slots__ = ("_tokens",)

    def __enter__(self) -> Self:
        super().__enter__()
        self._tokens = (_deadline.set(sooner(_deadline.get(), self.moment)), _watched.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _watched.reset(self._tokens[1])
        _deadline.reset(self._tokens[0])
        super().__exit__(kind, error, trace)


def from_header(value: str | bytes | None) -> float | None:
    """Seconds left according to a header; None when it is absent or is not a number of seconds.

    A header nobody can read must not end a request, so nonsense counts as absent.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def header_value(clock: Clock = time.monotonic) -> str | None:
    """What to send in the header of an outgoing call, or None without a deadline."""
    left = remaining(clock)
    return None if left is None else passed_on(left)


def passed_on(left: float) -> str:
    """What to tell somebody we call, as the header carries it: a little less than we have ourselves.

    So whoever is called last gives up first, and the error names the one that did not answer instead of all before it.
    """
    return format_seconds(left - min(LONGEST_MARGIN, left * MARGIN))


def first_noticed(seconds: float, calls: int) -> float:
    """When `seconds` are over for the one at the end of so many calls, each of which passed on what it had left."""
    for _ in range(calls):
        seconds -= min(LONGEST_MARGIN, seconds * MARGIN)
    return seconds


def format_seconds(seconds: float) -> str:
    """Seconds as the header carries them: a plain decimal, milliseconds are enough."""
    return f"{seconds:.3f}"


__all__ = [
    "Alarm",
    "Timer",
    "begin",
    "blame",
    "first_noticed",
    "format_seconds",
    "from_header",
    "header_value",
    "moment",
    "passed_on",
    "remaining",
    "restore",
    "sooner",
    "until",
    "watched",
    "watching",
    "within",
]
