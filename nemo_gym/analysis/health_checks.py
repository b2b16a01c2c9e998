"""The checks of rollout health: each yields findings of one rollout, or of all repeats of a task.

A check raises MissingEvidenceError if the record lacks what it needs; then the rollout is not healthy, but unobserved.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nemo_gym.analysis.rollout_evidence import (
    MissingEvidenceError,
    RolloutEvidence,
    failure_of,
    model_of,
    text_of_answer,
    tool_calls_of,
)
from nemo_gym.wire.observations import TrajectoryModelCall

CHECK_EXECUTION_ERROR = "check_execution_error"
RECORD_UNREADABLE = "record_unreadable"
DUPLICATE_IDENTITY = "rollout_duplicate_identity"
ENDED_ON_FAILED_CALL = "rollout_ended_on_failed_model_call"
CONSISTENTLY_UNHEALTHY = "task_consistently_unhealthy"
NO_SUCCESSFUL_CALLS = "task_no_successful_model_calls"

_LENGTH_REASONS = frozenset({"length", "max_output_tokens", "max_tokens", "MAX_TOKENS"})
_MISMATCHES = ("model_call_reference_ambiguous", "model_call_reference_conflict", "model_call_reference_unmatched")


@dataclass(frozen=True)
class HealthFinding:
    """One fault: its detail, and where in the record it is."""

    detail: str
    locator: str | None = None


def _missing_turns(evidence: RolloutEvidence) -> Iterator[HealthFinding]:
    turns = evidence.turns()
    if not any(turn.answer or turn.model_calls or evidence.turn_has_tool_call(turn) for turn in turns):
        yield HealthFinding(f"none of {len(turns)} turns has a message, a tool call or a model call")


def _hollow_turns(evidence: RolloutEvidence) -> Iterator[HealthFinding]:
    for turn in evidence.turns():
        if not turn.answer and not evidence.turn_has_tool_call(turn):
            yield HealthFinding("no message and no tool call", f"turn {turn.turn_no}")


def _ended_on_failed_call(evidence: RolloutEvidence) -> Iterator[HealthFinding]:
    calls_by_model: dict[str, list[TrajectoryModelCall]] = defaultdict(list)
    for call in evidence.owned_calls():
        calls_by_model[model_of(call)].append(call)
    for model, calls in calls_by_model.items():
        if all(failure_of(call) for call in calls):
            last = calls[-1]
        elif not any(failure_of(call) for call in calls):
            continue
        else:
            last = max(calls, key=_end_of)
        if failure := failure_of(last):
            yield HealthFinding(f"the last call of {model or 'the model'} failed: {failure}", last.model_call_id)


def _end_of(call: TrajectoryModelCall) -> float:
    moment = call.completed_at if call.completed_at is not None else call.started_at
    if not isinstance(moment, int | float):
        raise MissingEvidenceError("model_call_times_unavailable")
    return moment


def _failed_calls(evidence: RolloutEvidence) -> Iterator[HealthFinding]:
    for call in evidence.owned_calls():
        if failure := failure_of(call):
            yield HealthFinding(failure, call.model_call_id)


def _zero_completion_tokens(evidence: RolloutEvidence) -> Iterator[HealthFinding]:
    for call in evidence.owned_calls():
        if not failure_of(call) and call.token_stats is not None and call.token_stats.completion_tokens == 0:
            yield HealthFinding("0 completion tokens", call.model_call_id)


def _missing_token_counts(evidence: RolloutEvidence) -> Iterator[HealthFinding]:
    for call in evidence.owned_calls():
        stats = call.token_stats
        if not failure_of(call) and (stats is None or None in (stats.prompt_tokens, stats.completion_tokens)):
            yield HealthFinding("no prompt or completion tokens", call.model_call_id)


def _capture_mismatch(evidence: RolloutEvidence) -> Iterator[HealthFinding]:
    references = list(evidence.references())
    for gap in evidence.trajectory.gaps:
        if gap.code in _MISMATCHES:
            yield HealthFinding(f"{gap.code}: {gap.detail or ''}".removesuffix(": "), gap.invocation_id)
    if not references:
        return
    ids = {call.model_call_id for call in evidence.calls()}
    by_invocation = {(place, ref.model_call_id) for place, ref in references if place.startswith("invocation ")}
    owners = Counter(name for _, name in sorted(by_invocation, key=str))
    for place, reference in references:
        if reference.model_call_id not in ids:
            yield HealthFinding(f"call {reference.model_call_id or reference.response_id} is not captured", place)
    yield from (HealthFinding(f"{times} invocations refer to it", name) for name, times in owners.items() if times > 1)


def _token_count_mismatch(evidence: RolloutEvidence) -> Iterator[HealthFinding]:
    usage, counts = evidence.usage(), [0, 0]
    for call in evidence.calls_of_turns():
        stats = call.token_stats
        if stats is None or stats.prompt_tokens is None or stats.completion_tokens is None:
            raise MissingEvidenceError("token_counts_unavailable")
        counts[0] += stats.prompt_tokens
        counts[1] += stats.completion_tokens
    for name, reported, captured in zip(("input", "output"), usage, counts, strict=True):
        if reported != captured:
            yield HealthFinding(f"the response reports {reported} {name} tokens, its calls {captured}")


def _runaway_generation(evidence: RolloutEvidence) -> Iterator[HealthFinding]:
    for call in evidence.owned_calls():
        reason = None if call.response_metadata is None else call.response_metadata.finish_reason
        if reason in _LENGTH_REASONS and not text_of_answer(call) and not tool_calls_of(call):
            yield HealthFinding(f"ended with {reason} and has no content", call.model_call_id)


RowCheck = Callable[[RolloutEvidence], Iterator[HealthFinding]]
ROW_CHECKS: dict[str, RowCheck] = {
    "rollout_missing_agent_turns": _missing_turns,
    ENDED_ON_FAILED_CALL: _ended_on_failed_call,
    "agent_turn_hollow": _hollow_turns,
    "model_call_zero_completion_tokens": _zero_completion_tokens,
    "model_call_missing_token_counts": _missing_token_counts,
    "trajectory_capture_mismatch": _capture_mismatch,
    "model_call_failed": _failed_calls,
    "rollout_token_count_mismatch": _token_count_mismatch,
    "model_call_runaway_generation": _runaway_generation,
}
CHECK_IDS = (
    CHECK_EXECUTION_ERROR,
    RECORD_UNREADABLE,
    DUPLICATE_IDENTITY,
    *ROW_CHECKS,
    CONSISTENTLY_UNHEALTHY,
    NO_SUCCESSFUL_CALLS,
)


def task_flags(verdicts: Sequence[str], successes: Sequence[bool | None]) -> Iterator[str]:
    """Yield the checks that all repeats of a task fail, given their verdicts and whether a model call succeeded.

    A repeat whose calls are unknown has None.
    """
    computable = [verdict for verdict in verdicts if verdict != "unobserved"]
    if len(computable) > 1 and set(computable) == {"unhealthy"}:
        yield CONSISTENTLY_UNHEALTHY
    if successes and all(success is False for success in successes):
        yield NO_SUCCESSFUL_CALLS
