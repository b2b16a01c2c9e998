"""Timing of the calls that rollouts make in this process: pending calls, and phase times (time spent in each phase).

`ServerClient.request` writes both. `pending_calls` lists the unanswered calls of rollouts, so that a hanging run can
report them. `PhaseTimer` measures the duration of an agent's `/run` and sums the durations of the agent's calls by
phase; the answer carries the sums to the collector, which adds the time before the agent started.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel

from nemo_gym.keys import NG_PHASES_KEY, NG_TURN_SECONDS_KEY
from nemo_gym.transport.deadlines import VERIFY_PATH
from nemo_gym.wire.stored_rollout import RolloutId

SEED, MODEL, TOOLS, VERIFY, OTHER = PHASES = range(5)

PHASES_HEADER = "x-nemo-gym-phases"
"""Header of an error answer: the phase times, because an error answer has no JSON object to add them to."""

_MODEL_SERVERS, _RESOURCES_SERVERS = "responses_api_models", "resources_servers"
_PHASE_OF_PATH = {"/seed_session": SEED, VERIFY_PATH: VERIFY}
_SUMS_ATTRIBUTE = "nemo_gym_phases"

clock = time.monotonic


PendingCall = tuple[RolloutId, str, str]
"""Rollout, server and path of a call without an answer."""

FinishedCall = tuple[str, str, float, float]
"""Server type, path, start time and end time of an answered or failed call."""

TurnSeconds = list[list[float]]
"""For each model call its seconds, and those of the tool calls before the next one."""

pending_calls: dict[int, PendingCall] = {}
"""Calls without an answer by number, in the order of their start; a rollout waits for the call it started last."""
call_numbers = itertools.count()

_rollout: ContextVar[RolloutId | None] = ContextVar("nemo_gym_rollout", default=None)
_finished: ContextVar[list[FinishedCall] | None] = ContextVar("nemo_gym_finished_calls", default=None)

current_rollout = _rollout.get
"""Return the task index and rollout index of the current rollout; None outside a rollout."""
set_current_rollout = _rollout.set
_ROLLOUT_TEXT = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)
finished_calls = _finished.get
"""Return the list that collects the finished calls of the current rollout; None if the rollout is not timed."""


def format_rollout(rollout: RolloutId) -> str:
    """Return the value of the rollout header."""
    return f"{rollout[0]}-{rollout[1]}"


def parse_rollout(text: str | None) -> RolloutId | None:
    """Return the rollout of a header value; None if it is missing or malformed, as from a foreign client."""
    match = _ROLLOUT_TEXT.fullmatch(text) if text else None
    return (int(match[1]), int(match[2])) if match else None


class PhaseTimer:
    """Measure one `/run`: its duration, and the calls made in the current context summed by phase."""

    __slots__ = ("_calls", "_start")

    def __init__(self) -> None:
        self._start = clock()
        self._calls: list[FinishedCall] = []
        _finished.set(self._calls)

    def add_to(self, answer: Any) -> Any:
        """Add the phase times to an agent's answer, if it is a dict or a model that allows extra fields."""
        if isinstance(answer, BaseModel):
            extra = answer.__pydantic_extra__
            if extra is not None:
                turns: TurnSeconds = []
                extra[NG_TURN_SECONDS_KEY] = turns
                extra[NG_PHASES_KEY] = self.sums(turns)
        elif isinstance(answer, dict):
            turns = []
            answer = {**answer, NG_PHASES_KEY: self.sums(turns), NG_TURN_SECONDS_KEY: turns}
        return answer

    def add_to_error(self, error: Exception) -> None:
        """Attach the phase times to the exception that ended the rollout, for `phase_headers`."""
        with contextlib.suppress(AttributeError):  # an exception class with __slots__
            setattr(error, _SUMS_ATTRIBUTE, self.sums())

    def with_turn_seconds(self, response: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response of a failed rollout with the times of its turns; the collector moves them out."""
        turns: TurnSeconds = []
        self.sums(turns)
        return {**response, NG_TURN_SECONDS_KEY: turns}

    def sums(self, turns: TurnSeconds | None = None) -> list[float]:
        """Return the seconds in SEED, MODEL, TOOLS and VERIFY, and the total duration in place of OTHER.

        Append to `turns` for each model call its seconds, and those of the tool calls before the next one.
        """
        total = clock() - self._start
        return [*seconds_by_phase(self._calls, turns)[:OTHER], total]


def phase_headers(error: BaseException) -> dict[str, str]:
    """Return the header with the phase times for an error answer; empty if the rollout was not timed."""
    sums = getattr(error, _SUMS_ATTRIBUTE, None)
    return {PHASES_HEADER: ",".join(f"{seconds:.6f}" for seconds in sums)} if isinstance(sums, list) else {}


def phases_from_error(error: Exception) -> list[float] | None:
    """Return the phase times in the headers of an error answer to `/run`; None if they are missing or malformed."""
    headers = getattr(error, "headers", None)
    value = headers.get(PHASES_HEADER) if isinstance(headers, Mapping) else None
    try:
        return [float(seconds) for seconds in value.split(",")] if isinstance(value, str) else None
    except ValueError:
        return None


def seconds_by_phase(calls: Sequence[FinishedCall], turns: TurnSeconds | None = None) -> list[float]:
    """Return the seconds in each phase. Time in which calls of one phase overlap counts once.

    `calls` are in the order in which they ended. Append to `turns` as `PhaseTimer.sums` does.
    """
    sums, last_end = [0.0] * len(PHASES), 0.0
    for server_type, path, start, end in calls:
        if start < last_end:
            return _sum_overlapping(calls, turns)
        seconds, last_end = end - start, end
        if server_type == _MODEL_SERVERS:
            sums[MODEL] += seconds
            if turns is not None:
                turns.append([seconds // 1e-6 / 1e6, 0.0])
            continue
        phase = call_phase(server_type, path)
        sums[phase] += seconds
        if turns and phase == TOOLS:
            turns[-1][1] += seconds // 1e-6 / 1e6
    return sums


def _sum_overlapping(calls: Iterable[FinishedCall], turns: TurnSeconds | None) -> list[float]:
    """Return the seconds in each phase, also if calls of one phase overlap; slower than `seconds_by_phase`."""
    sums, ends = [0.0] * len(PHASES), [0.0] * len(PHASES)
    if turns is not None:
        turns.clear()
    for server_type, path, start, end in sorted(calls, key=lambda call: call[2]):
        phase = call_phase(server_type, path)
        seconds = max(0.0, end - max(start, ends[phase]))
        sums[phase] += seconds
        ends[phase] = max(end, ends[phase])
        if turns is not None and phase == MODEL:
            turns.append([(end - start) // 1e-6 / 1e6, 0.0])
        elif turns and phase == TOOLS:
            turns[-1][1] += seconds // 1e-6 / 1e6
    return sums


def call_phase(server_type: str, path: str) -> int:
    """Return the phase of a call: MODEL, SEED, VERIFY, TOOLS, or OTHER for a call to an agent."""
    if server_type == _MODEL_SERVERS:
        return MODEL
    if server_type != _RESOURCES_SERVERS:
        return OTHER
    return _PHASE_OF_PATH.get(path[path.rfind("/") :], TOOLS)


def phase_seconds(answer: Mapping[str, Any], seconds: float) -> dict[str, float] | None:
    """Return the seconds per phase of a rollout that took `seconds`; None if its answer has no phase times.

    `queue` is the time before the agent started, `agent` the time between its calls. The values add up to `seconds`,
    unless the agent called the model while a tool was running.
    """
    sums = answer.get(NG_PHASES_KEY)
    if sums is None:
        return None
    try:
        seed, model, tools, verify, total = sums
        agent, queue = total - seed - model - tools - verify, seconds - total
    except (TypeError, ValueError):  # the answer has an unrelated field of that name
        return None
    phases = {
        "queue": max(0.0, queue),
        "seed_session": seed,
        "model": model,
        "tools": tools,
        "verify": verify,
        "agent": max(0.0, agent),
    }
    return {name: value // 1e-6 / 1e6 for name, value in phases.items()}  # rounded down to microseconds
