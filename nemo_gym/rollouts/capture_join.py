"""Add captured model calls, and a trajectory built from them and from agent observations, to the result of a rollout.

An agent may report observations: its invocations (each one run of an agent or sub-agent, with references to the model
calls it made) and its tool calls. A bundle holds the observations of one source. An agent that knows its turns may
report a whole trajectory instead, which captured calls and observations complete. An observation that is missing,
invalid or cannot be joined to a model call becomes a gap, which the trajectory lists; it never fails the rollout.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from nemo_gym.capture.call_text import answer_of, question_of
from nemo_gym.capture.record import CapturedExchange, ModelCallRecord
from nemo_gym.capture.store import (
    CaptureStore,
    clear_model_call_captures_for_rollouts,
    merge_model_call_capture_into_record,
)
from nemo_gym.keys import (
    NG_AGENT_OBSERVATIONS_KEY,
    NG_MODEL_CALL_CAPTURE_KEY,
    NG_TRAJECTORY_KEY,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.rollout_correlation import maybe_rollout_id_from_run_body
from nemo_gym.rollouts.collect import Send
from nemo_gym.rollouts.outcome import Job
from nemo_gym.rollouts.reported_trajectory import completed_report, with_report
from nemo_gym.wire.observations import (
    OWNERSHIP_GAP,
    AgentInvocation,
    AgentObservationBundle,
    ModelCallMetadata,
    ModelCallRef,
    ObservationGap,
    ToolCallObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    TrajectoryTokenStats,
    TrajectoryToolCall,
    TrajectoryTurn,
    join_model_call_observations,
)
from nemo_gym.wire.stored_rollout import Row, StoredRollout


def with_captures(send: Send, captures: CaptureStore) -> Send:
    """Wrap `send` so that its result contains the rollout's captured model calls and trajectory."""

    def join_captures(job: Job, result: Row, rollout_id: str) -> None:
        merge_model_call_capture_into_record(result, captures, rollout_id)
        attach_trajectory_record(job.row, result)

    async def send_and_join(job: Job) -> Any:
        rollout_id = maybe_rollout_id_from_run_body(job.row) or str(job.key)
        # Delete the remains of an interrupted attempt.
        await asyncio.to_thread(clear_model_call_captures_for_rollouts, captures, [rollout_id])
        result = await send(job)
        if isinstance(result, dict):
            await asyncio.to_thread(join_captures, job, result, rollout_id)
        return result

    return send_and_join


def attach_trajectory_record(row: Row, result: Row | None = None) -> Row:
    """Add the trajectory, if there is one, to a result in place, and return the result.

    With one argument, that argument is the result. With two, fields that the result lacks are read from the row.
    """
    target = row if result is None else result
    trajectory = build_trajectory(row, target)
    if trajectory is not None:
        target[NG_TRAJECTORY_KEY] = trajectory.model_dump(mode="json")
    return target


def build_trajectory(row: Row, result: Row | None = None) -> TrajectoryRecord | None:
    """Return the trajectory of a result: what its agent reports, completed by captured model calls and observations.

    None if there is nothing of all that. The arguments are those of `attach_trajectory_record`.
    """
    record = {**row, **(result or {})}
    observations = record.get(NG_AGENT_OBSERVATIONS_KEY)
    reported, report_gaps = _parse_report(row.get(NG_TRAJECTORY_KEY) if result is None else _own_report(row, result))
    if not isinstance(record.get(NG_MODEL_CALL_CAPTURE_KEY), Mapping) and not observations:
        return reported
    stored = StoredRollout(record)
    calls, parse_gaps = _parse_calls(stored)
    bundle, bundle_gaps = _parse_bundles(observations)
    if reported is not None:
        bundle, reported = with_report(bundle, reported, calls)
    joined = join_model_call_observations(bundle, calls)
    gaps = joined.gaps
    if not joined.invocations():
        # The agent reports no invocations, so it is no gap that no invocation refers to a model call.
        gaps = [gap for gap in gaps if gap.code != OWNERSHIP_GAP]
    task_id, rollout_id = str(record.get(TASK_INDEX_KEY_NAME, "")), str(stored.capture.get("rollout_id") or "")
    rollout_id = rollout_id or _rollout_id(record)
    trajectory = TrajectoryRecord(
        task_id=task_id,
        rollout_id=rollout_id,
        invocations=joined.invocations(),
        turns=_turns(calls, joined.invocations(), task_id, rollout_id),
        model_calls=[_trajectory_call(call) for call in calls],
        tool_calls=list(_tool_calls(joined, stored)),
        gaps=[*report_gaps, *parse_gaps, *bundle_gaps, *gaps, *_capture_gaps(stored.capture)],
    )
    return trajectory if reported is None else completed_report(reported, trajectory)


def _own_report(row: Row, result: Row) -> Any:
    """Return the trajectory of a result; None if it is that of the row, which is an earlier result used as input."""
    report = result.get(NG_TRAJECTORY_KEY)
    return None if report == row.get(NG_TRAJECTORY_KEY) else report


def _parse_report(report: Any) -> tuple[TrajectoryRecord | None, list[ObservationGap]]:
    """Parse the trajectory that an agent reports, if any; an invalid one becomes a gap."""
    if report is None:
        return None, []
    try:
        reported = TrajectoryRecord.model_validate(report)
        AgentObservationBundle(source="agent", records=[*reported.invocations])  # checks their ids and parents
        return reported, []
    except ValidationError as error:
        return None, [ObservationGap(code="trajectory_invalid", detail=_first_problem(error))]


def _rollout_id(record: Row) -> str:
    indices = f"{record.get(TASK_INDEX_KEY_NAME, '')}-{record.get(ROLLOUT_INDEX_KEY_NAME, '')}"
    return str(record.get(ROLLOUT_ID_KEY_NAME) or indices)


def _parse_calls(stored: StoredRollout) -> tuple[list[ModelCallRecord], list[ObservationGap]]:
    """Return the captured calls of a record; a call that another tool has malformed becomes a gap."""
    calls: list[ModelCallRecord] = []
    gaps: list[ObservationGap] = []
    for index, call in enumerate(stored.captured_calls):
        try:
            calls.append(ModelCallRecord.of(CapturedExchange.model_validate(call), index))
        except ValidationError as error:
            gaps.append(ObservationGap(code="model_call_invalid", detail=f"call {index}: {_first_problem(error)}"))
    return calls, gaps


def _parse_bundles(observations: Any) -> tuple[AgentObservationBundle, list[ObservationGap]]:
    """Parse an agent's observations, one bundle or a list of bundles, into one; an invalid bundle becomes a gap."""
    bundles: list[AgentObservationBundle] = []
    gaps: list[ObservationGap] = []
    for bundle in observations if isinstance(observations, list) else [observations] if observations else []:
        try:
            parsed = AgentObservationBundle.model_validate(bundle)
            records = [record for one in (*bundles, parsed) for record in one.records]
            bundle_gaps = [gap for one in (*bundles, parsed) for gap in one.gaps]
            bundles = [AgentObservationBundle(source=parsed.source, records=records, gaps=bundle_gaps)]
        except ValidationError as error:
            gaps.append(ObservationGap(code="observations_invalid", detail=_first_problem(error)))
    return bundles[0] if bundles else AgentObservationBundle(source="none"), gaps


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{first['loc']}: {first['msg']}"


def _tool_calls(bundle: AgentObservationBundle, stored: StoredRollout) -> Iterator[TrajectoryToolCall]:
    """Yield the observed tool calls, each with its output if the response contains it."""
    items = (item for item in stored.output if isinstance(item, Mapping) and item.get("type") == "function_call_output")
    outputs = {item.get("call_id"): item.get("output") for item in items}
    for record in bundle.records:
        if isinstance(record, ToolCallObservation):
            yield TrajectoryToolCall(**record.model_dump(), output=outputs.get(record.tool_call_id))


def _trajectory_call(call: ModelCallRecord) -> TrajectoryModelCall:
    """Return a captured call as the trajectory contains it."""
    metadata = {name: getattr(call, name) for name in ModelCallMetadata.model_fields}
    return TrajectoryModelCall(
        model_call_id=call.model_call_id,
        started_at=call.started_at,
        completed_at=call.completed_at,
        duration_ms=call.latency_ms,
        request=call.request,
        response=call.response,
        token_stats=TrajectoryTokenStats(
            prompt_tokens=call.tokens_in,
            completion_tokens=call.tokens_out,
            reasoning_tokens=call.tokens_reasoning,
            total_tokens=call.tokens_total,
            cached_tokens=call.cached_tokens,
        ),
        response_metadata=ModelCallMetadata(**metadata),
    )


def _turns(
    calls: list[ModelCallRecord], invocations: list[AgentInvocation], task_id: str, rollout_id: str
) -> list[TrajectoryTurn]:
    """Return one turn per captured call, with the invocation that refers to it."""
    owner = {ref.model_call_id: one.invocation_id for one in invocations for ref in one.model_calls}
    return [
        TrajectoryTurn(
            turn_no=number,
            invocation_id=owner.get(call.model_call_id),
            task_id=task_id,
            rollout_id=rollout_id,
            timestamp=call.started_at,
            question=question_of(call),
            answer=answer_of(call),
            reasoning_content=call.reasoning_content,
            step_count=number,
            model_calls=[ModelCallRef(model_call_id=call.model_call_id)],
        )
        for number, call in enumerate(calls, start=1)
    ]


def _capture_gaps(capture: Mapping[str, Any]) -> list[ObservationGap]:
    return [
        ObservationGap(code=str(gap.get("code", "capture_gap")), detail=gap.get("detail"))
        for gap in capture.get("gaps") or ()
        if isinstance(gap, Mapping)
    ]
