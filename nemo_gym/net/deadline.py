"""How long the work in hand may still take, known to everything it calls.

The deadline is a moment on the monotonic clock kept in a ContextVar. Between processes it travels as the number of
seconds left (`keys.DEADLINE_HEADER`), because clocks of two machines need not agree.

A deadline is only a promise until somebody watches the clock. `Timer` does, and says so to what it encloses, so that
calls made in the same task need no timer of their own for the same moment.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

MARGIN, LONGEST_MARGIN = 0.05, 0.5
"""Of the time left, the share and the most seconds that a caller keeps to itself."""

Clock = Callable[[], float]
Watched = tuple["asyncio.Task[Any] | None", float]
"""A task and the moment at which a timer ends it."""

_deadline: ContextVar[float | None] = ContextVar("nemo_gym_deadline", default=None)
_watched: ContextVar[Watched | None] = ContextVar("nemo_gym_deadline_watched", default=None)
_blamed: WeakKeyDictionary["asyncio.Task[Any]", str] = WeakKeyDictionary()


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


@contextmanager
def within(seconds: float | None, clock: Clock = time.monotonic) -> Iterator[None]:
    """Give the enclosed work at most `seconds`. An earlier deadline stays; None changes nothing."""
    if seconds is None:
        yield
        return
    token = _deadline.set(sooner(_deadline.get(), clock() + max(0.0, seconds)))
    try:
        yield
    finally:
        _deadline.reset(token)


def watched() -> Watched | None:
    """The timer that ends this very task at the deadline in force or before, if there is one."""
    known = _watched.get()
    if known is None or known[0] is not asyncio.current_task():
        return None
    moment = _deadline.get()
    return known if moment is None or known[1] <= moment else None


def blame(where: str) -> None:
    """Note whom this task was waiting for when it was ended; of nested calls the innermost counts."""
    task = asyncio.current_task()
    if task is not None:
        _blamed.setdefault(task, where)


def begin(known: Watched) -> None:
    """Make the moment of a timer the deadline of this context, which is a new and empty one."""
    _deadline.set(known[1])
    _watched.set(known)


class Timer:
    """`async with Timer(seconds)`: the enclosed work ends by then at the latest, by cancellation and `TimeoutError`.

    Of an earlier deadline only the moment is known here, so that one is kept but not watched.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.blamed: str | None = None
        """Whom the work was waiting for when time ran out, if that is known."""
        self._timer = asyncio.timeout(seconds)

    async def __aenter__(self) -> Self:
        await self._timer.__aenter__()
        moment = time.monotonic() + self.seconds
        self.watched: Watched = (asyncio.current_task(), moment)
        self._tokens = (_deadline.set(sooner(_deadline.get(), moment)), _watched.set(self.watched))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _watched.reset(self._tokens[1])
        _deadline.reset(self._tokens[0])
        if kind is not None:
            task = asyncio.current_task()
            self.blamed = _blamed.pop(task, None) if task is not None else None
        await self._timer.__aexit__(kind, error, trace)

    def expired(self) -> bool:
        """Whether it was this timer that ended the work."""
        return self._timer.expired()


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


def format_seconds(seconds: float) -> str:
    """Seconds as the header carries them: a plain decimal, milliseconds are enough."""
    return f"{seconds:.3f}"
