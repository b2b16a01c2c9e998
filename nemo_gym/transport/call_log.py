"""Calls of the rollouts in this process: the call each one waits for, and the time each spent in its phases.

`ServerClient.request` writes both. `pending_calls` has an entry for every call of a rollout that has no answer yet, so
that a hanging run can report what it waits for. `PhaseTimer` times an agent's `/run` as a whole and sums the calls the
agent made; the answer carries the sums to the collector, which adds the time before the agent began.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel

from nemo_gym.keys import NG_PHASES_KEY
from nemo_gym.transport.deadlines import VERIFY_PATH
from nemo_gym.wire.stored_rollout import RolloutId

SEED, MODEL, TOOLS, VERIFY, OTHER = range(5)

PHASES_HEADER = "x-nemo-gym-phases"
"""On an error answer: the sums, because there is no body to put them into."""

_MODELS, _ENVIRONMENTS = "responses_api_models", "resources_servers"
_PHASE_OF_PATH = {"/seed_session": SEED, VERIFY_PATH: VERIFY}
_SUMS_ATTRIBUTE = "nemo_gym_phases"

clock = time.perf_counter


PendingCall = tuple[str, str, float]
"""Server, path and begin of a call that has no answer yet."""

FinishedCall = tuple[str, str, float, float]
"""Type of the called server, path, begin and end of the call."""

pending_calls: dict[RolloutId, list[PendingCall]] = {}
"""Calls without an answer by rollout, in the order they began; the last one is what the rollout waits for."""

_rollout: ContextVar[RolloutId | None] = ContextVar("nemo_gym_rollout", default=None)
_finished: ContextVar[list[FinishedCall] | None] = ContextVar("nemo_gym_finished_calls", default=None)

current_rollout = _rollout.get
"""Return the rollout in hand; None outside one."""
set_current_rollout = _rollout.set
finished_calls = _finished.get
"""Return the list to add finished calls of the rollout in hand to; None when it is not timed."""


def remove_pending(rollout: RolloutId, call: PendingCall) -> None:
    """Remove a call that ended, and the entry of its rollout with the last one."""
    calls = pending_calls[rollout]
    calls.remove(call)
    if not calls:
        del pending_calls[rollout]


class PhaseTimer:
    """Time one `/run`: the calls made in this context, which must be that of one rollout, are summed by phase."""

    __slots__ = ("_began", "_calls")

    def __init__(self) -> None:
        self._began = clock()
        self._calls: list[FinishedCall] = []
        _finished.set(self._calls)

    def add_to(self, answer: Any) -> Any:
        """Put the sums on an agent's answer, if that has room for a field its class does not name."""
        if isinstance(answer, BaseModel):
            extra = answer.__pydantic_extra__
            if extra is not None:
                extra[NG_PHASES_KEY] = self.sums()
        elif isinstance(answer, dict):
            answer = {**answer, NG_PHASES_KEY: self.sums()}
        return answer

    def add_to_error(self, error: Exception) -> None:
        """Keep the sums on the exception that ended a rollout, for `phase_headers`."""
        with contextlib.suppress(AttributeError):  # an exception that takes no attributes
            setattr(error, _SUMS_ATTRIBUTE, self.sums())

    def sums(self) -> list[float]:
        """Return the seconds of seeding, model, tools and verification, then of the whole."""
        whole = clock() - self._began
        sums = seconds_by_phase(self._calls)
        sums[OTHER] = whole
        return sums


def phase_headers(error: BaseException) -> dict[str, str]:
    """Return the header with the sums for an error answer; empty if the rollout was not timed."""
    sums = getattr(error, _SUMS_ATTRIBUTE, None)
    return {PHASES_HEADER: ",".join(f"{seconds:.6f}" for seconds in sums)} if isinstance(sums, list) else {}


def phases_from_error(error: Exception) -> list[float] | None:
    """Return the sums that an error answer to `/run` carried, if it did."""
    headers = getattr(error, "headers", None)
    value = headers.get(PHASES_HEADER) if isinstance(headers, Mapping) else None
    try:
        return [float(seconds) for seconds in value.split(",")] if isinstance(value, str) else None
    except ValueError:
        return None


def seconds_by_phase(calls: Iterable[FinishedCall]) -> list[float]:
    """Sum wall time by phase; overlapping calls of one phase count once. `calls` are in the order they ended."""
    sums, ends = [0.0] * 5, [0.0] * 5
    for kind, path, began, ended in calls:
        phase = MODEL if kind == _MODELS else phase_of(kind, path)
        if began < ends[phase]:
            return _sum_overlapping(calls)
        sums[phase] += ended - began
        ends[phase] = ended
    return sums


def _sum_overlapping(calls: Iterable[FinishedCall]) -> list[float]:
    sums, ends = [0.0] * 5, [0.0] * 5
    for kind, path, began, ended in sorted(calls, key=lambda call: call[2]):
        phase = phase_of(kind, path)
        sums[phase] += max(0.0, ended - max(began, ends[phase]))
        ends[phase] = max(ended, ends[phase])
    return sums


def phase_of(server_type: str, path: str) -> int:
    """Return the phase that a call to a server of this type belongs to."""
    if server_type == _MODELS:
        return MODEL
    if server_type != _ENVIRONMENTS:
        return OTHER
    return _PHASE_OF_PATH.get(path[path.rfind("/") :], TOOLS)


def phases_of(answer: Mapping[str, Any], seconds: float) -> dict[str, float] | None:
    """Return the phases of a rollout whose answer came after `seconds`; None when its agent was not timed.

    The phases add up to `seconds`, unless the agent called the model while a tool was running.
    """
    sums = answer.get(NG_PHASES_KEY)
    if sums is None:
        return None
    try:
        seed, model, tools, verify, whole = sums
        own, queued = whole - seed - model - tools - verify, seconds - whole
    except (TypeError, ValueError):  # an unrelated field of that name
        return None
    return {
        "queue": queued // 1e-6 / 1e6 if queued > 0.0 else 0.0,
        "seed_session": seed // 1e-6 / 1e6,
        "model": model // 1e-6 / 1e6,
        "tools": tools // 1e-6 / 1e6,
        "verify": verify // 1e-6 / 1e6,
        "agent": own // 1e-6 / 1e6 if own > 0.0 else 0.0,
    }
