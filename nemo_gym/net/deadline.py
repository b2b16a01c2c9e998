"""How long the work in hand may still take, known to everything it calls.

The deadline is a moment on the monotonic clock kept in a ContextVar. Between processes it travels as the number of
seconds left (`keys.DEADLINE_HEADER`), because clocks of two machines need not agree.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Clock = Callable[[], float]

_deadline: ContextVar[float | None] = ContextVar("nemo_gym_deadline", default=None)


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
    return None if left is None else format_seconds(left)


def format_seconds(seconds: float) -> str:
    """Seconds as the header carries them: a plain decimal, milliseconds are enough."""
    return f"{seconds:.3f}"
