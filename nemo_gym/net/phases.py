"""Where the time of a rollout goes: how long its agent waited for the environment, the model, tools and the verdict.

An agent's `/run` is timed as a whole, and every call it makes through `ServerClient` is noted. The answer carries the
sums to the collector, which adds what passed before the agent began. Only a collector's rollouts are timed; noting a
call costs two looks at the clock, and everything else is done once, at the end.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel

from nemo_gym.keys import NG_PHASES_KEY
from nemo_gym.net.allowance import VERIFY_PATH

SEED, MODEL, TOOLS, VERIFY, OTHER = range(5)

_MODELS, _ENVIRONMENTS = "responses_api_models", "resources_servers"
_OF_PATH = {"/seed_session": SEED, VERIFY_PATH: VERIFY}

Call = tuple[str, str, float, float]
"""The type of the server that was called, the path, and when the call began and ended."""

clock = time.perf_counter

_calls: ContextVar[list[Call] | None] = ContextVar("nemo_gym_calls", default=None)
noted = _calls.get
"""The calls of the rollout at hand, to be added to; None when it is not timed."""


PHASES_HEADER = "x-nemo-gym-phases"
"""On an error answer: the sums, for there is no body to put them into."""
_MARK = "nemo_gym_phases"


class Timed:
    """One `/run`: from now on the calls of this context, which is that of one rollout, are noted."""

    __slots__ = ("_began", "_calls")

    def __init__(self) -> None:
        self._began = clock()
        self._calls: list[Call] = []
        _calls.set(self._calls)

    def tell(self, answer: Any) -> Any:
        """Put the sums on what an agent answers, where that has room for a field that its class does not name."""
        if isinstance(answer, BaseModel):
            room = answer.__pydantic_extra__
            if room is not None:
                room[NG_PHASES_KEY] = self.sums()
        elif isinstance(answer, dict):
            answer = {**answer, NG_PHASES_KEY: self.sums()}
        return answer

    def mark(self, error: Exception) -> None:
        """Note the sums on what ended a rollout, for `error_headers`."""
        with contextlib.suppress(AttributeError):  # an exception that takes no attributes
            setattr(error, _MARK, self.sums())

    def sums(self) -> list[float]:
        """Seconds of seeding, model, tools and verdict, then of the whole."""
        whole = clock() - self._began
        sums = spent(self._calls)
        sums[OTHER] = whole
        return sums


def error_headers(error: BaseException) -> dict[str, str]:
    """What an error answer says about the rollout that ended with it; nothing, where it was not timed."""
    sums = getattr(error, _MARK, None)
    return {PHASES_HEADER: ",".join(f"{seconds:.6f}" for seconds in sums)} if isinstance(sums, list) else {}


def told_by_error(error: Exception) -> list[float] | None:
    """The sums that an error answer to `/run` brought, if it did."""
    headers = getattr(error, "headers", None)
    value = headers.get(PHASES_HEADER) if isinstance(headers, Mapping) else None
    try:
        return [float(seconds) for seconds in value.split(",")] if isinstance(value, str) else None
    except ValueError:
        return None


def spent(calls: Iterable[Call]) -> list[float]:
    """Seconds of wall time by phase; calls of one phase that overlap count once. In the order in which they ended."""
    sums, ends = [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]
    for kind, path, began, ended in calls:
        phase = MODEL if kind == _MODELS else phase_of(kind, path)
        if began < ends[phase]:
            return _spent_overlapping(calls)
        sums[phase] += ended - began
        ends[phase] = ended
    return sums


def _spent_overlapping(calls: Iterable[Call]) -> list[float]:
    sums, ends = [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]
    for kind, path, began, ended in sorted(calls, key=lambda call: call[2]):
        phase = phase_of(kind, path)
        sums[phase] += max(0.0, ended - max(began, ends[phase]))
        ends[phase] = max(ended, ends[phase])
    return sums


def phase_of(server_type: str, path: str) -> int:
    """What a call to such a server is for."""
    if server_type == _MODELS:
        return MODEL
    if server_type != _ENVIRONMENTS:
        return OTHER
    return _OF_PATH.get(path[path.rfind("/") :], TOOLS)


def phases_of(answer: Mapping[str, Any], seconds: float) -> dict[str, float] | None:
    """What a record says of an answer that came after `seconds`, to the microsecond; None when its agent told nothing.

    The phases add up to `seconds`, unless an agent asked the model while a tool was at work.
    """
    told = answer.get(NG_PHASES_KEY)
    if told is None:
        return None
    try:
        seed, model, tools, verify, whole = told
        own, waited = whole - seed - model - tools - verify, seconds - whole
    except (TypeError, ValueError):  # somebody else's field of that name
        return None
    return {
        "queue": waited // 1e-6 / 1e6 if waited > 0.0 else 0.0,
        "seed_session": seed // 1e-6 / 1e6,
        "model": model // 1e-6 / 1e6,
        "tools": tools // 1e-6 / 1e6,
        "verify": verify // 1e-6 / 1e6,
        "agent": own // 1e-6 / 1e6 if own > 0.0 else 0.0,
    }
