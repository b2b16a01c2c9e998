"""What one rollout may use: time for each kind of call, model turns and tokens.

The collector says it once, with the rollout; it travels as a header (`ALLOWANCE_HEADER`) and is kept for everything
the request calls, beside the deadline. `ServerClient` holds calls to their time; counting turns and tokens is for the
agent, which alone knows them: `current()` tells it how many it has.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import lru_cache
from types import TracebackType
from typing import Any, ClassVar

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.net import deadline

ALLOWANCE_HEADER = "x-nemo-gym-allowance"
VERIFY_PATH = "/verify"

_WHOLE = frozenset({"steps", "tokens"})

_current: ContextVar["Allowance | None"] = ContextVar("nemo_gym_allowance", default=None)


class CallTimeout(DeadlineExceeded):
    """A call of a rollout took longer than one of its kind may take."""

    setting: ClassVar[str] = "request_timeout_seconds"


class ModelCallTimeout(CallTimeout):
    """A model did not answer within the time that one call may take."""

    setting = "model_call_timeout_seconds"


class ToolCallTimeout(CallTimeout):
    """A tool did not answer within the time that one call may take."""

    setting = "tool_call_timeout_seconds"


class VerifyTimeout(CallTimeout):
    """The verdict did not come within the time it may take."""

    setting = "verify_timeout_seconds"


Span = tuple[float, type[CallTimeout]]
"""How many seconds one call may take, and what it is called when it takes longer."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one rollout may use; None means no limit."""

    model_call_seconds: float | None = None
    tool_call_seconds: float | None = None
    verify_seconds: float | None = None
    steps: int | None = None
    tokens: int | None = None

    def header_value(self) -> str:
        """The limits there are: `verify_seconds=600;steps=100`."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ";".join(f"{name}={value!r}" for name, value in given if value is not None)

    def of_call(self, server_type: str, path: str) -> tuple[float | None, type[CallTimeout]]:
        """How long one call to such a server may take, and what it is called when it takes longer."""
        if server_type == "responses_api_models":
            return self.model_call_seconds, ModelCallTimeout
        if server_type != "resources_servers":
            return None, CallTimeout
        if path.endswith(VERIFY_PATH):
            return self.verify_seconds, VerifyTimeout
        return self.tool_call_seconds, ToolCallTimeout


class _Held:
    """Gives the enclosed call the time that one call may take, and names that limit when it is what ended it.

    A class of its own because every call of a rollout passes through it.
    """

    __slots__ = ("_before", "_began", "_kind", "_seconds")

    def __init__(self, began: float, seconds: float, kind: type[CallTimeout]) -> None:
        """`began` is now; `seconds` are over before the deadline in force is."""
        self._began = began
        self._seconds = seconds
        self._kind = kind

    def __enter__(self) -> None:
        self._before = deadline.until(self._began + self._seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline.restore(self._before)
        if kind is not None and isinstance(error, DeadlineExceeded):
            late = named(error, self._began, (self._seconds, self._kind))
            if late is not None:
                raise late from error


_FREE: AbstractContextManager[None] = nullcontext()


def held(server_type: str, path: str) -> AbstractContextManager[None]:
    """Holds one call to such a server to the time it may take, if the rollout at hand says so.

    Raises:
        ModelCallTimeout, ToolCallTimeout, VerifyTimeout: for the `DeadlineExceeded` of the enclosed call.
    """
    span = span_of(server_type, path)
    if span is None:
        return _FREE
    now, over = time.monotonic(), deadline.moment()
    if over is not None and over - now <= span[0]:  # the rollout's own time is over before that
        return _FREE
    return _Held(now, *span)


def span_of(server_type: str, path: str) -> Span | None:
    """How long one call to such a server may take, and what it is called when it takes longer; None without a limit."""
    allowed = _current.get()
    if allowed is None:
        return None
    seconds, kind = allowed.of_call(server_type, path)
    return None if seconds is None else (seconds, kind)


def named(late: DeadlineExceeded, began: float, span: Span | None) -> CallTimeout | None:
    """The failure of a call that `began` then, by the name of its limit; None if it was not that which ended it."""
    if span is None or time.monotonic() - began < span[0]:
        return None
    kind = span[1]
    return kind(late.problem, where=late.where, fix=f"raise {kind.setting}, or find out why it is slow")


def current() -> Allowance | None:
    """What the rollout at hand may use; None outside one, or when nobody said."""
    return _current.get()


def reached(*, steps: int, usages: Iterable[Any]) -> str | None:
    """Which limit an episode has reached after so many model turns that used so much: `steps`, `tokens` or None.

    An agent that stops for it answers with `_ng_failure_class: "limit"` and `_ng_failure: {"which": …}`.
    """
    allowed = _current.get()
    if allowed is None:
        return None
    if allowed.steps is not None and steps >= allowed.steps:
        return "steps"
    if allowed.tokens is not None and sum(usage.total_tokens for usage in usages if usage) >= allowed.tokens:
        return "tokens"
    return None


@contextmanager
def using(allowed: Allowance | None) -> Iterator[None]:
    """Make `allowed` the current allowance; None changes nothing."""
    if allowed is None:
        yield
        return
    token = _current.set(allowed)
    try:
        yield
    finally:
        _current.reset(token)


def begin(headers: Mapping[str, str]) -> None:
    """Make the allowance that a caller's headers tell, if they do, the one of this context, which is a new one."""
    for name, value in headers.items():
        if name.lower() == ALLOWANCE_HEADER:
            _current.set(from_header(value))


@lru_cache(maxsize=64)
def from_header(value: str | bytes | None) -> Allowance | None:
    """The allowance a header tells; None when there is none. What cannot be read counts as not said.

    A run sends the same value with every rollout, so it is read once.
    """
    if not value:
        return None
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    known = {field.name for field in fields(Allowance)}
    said: dict[str, Any] = {}
    for part in text.split(";"):
        name, _, number = part.strip().partition("=")
        if name in known:
            said[name] = _number(number, whole=name in _WHOLE)
    return Allowance(**said)


def _number(text: str, *, whole: bool) -> float | int | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number) or number <= 0:
        return None
    return int(number) if whole else number
