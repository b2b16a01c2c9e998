"""Join captured model calls and agent observations to a rollout: its capture and its trajectory."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

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
from nemo_gym.wire.observations import (
    AgentInvocation,
    AgentObservationBundle,
    ObservationGap,
    ToolCallObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    TrajectoryToolCall,
    TrajectoryTurn,
    join_model_call_observations,
)
from nemo_gym.wire.stored_rollout import Row, StoredRollout


def with_captures(send: Send, captures: CaptureStore) -> Send:
    """Wrap `send` so that its result contains the rollout's captured model calls. Files are accessed in a thread."""

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
    """Add `ng_trajectory` to a result, in place, if there are observations, and return the result.

    Called with the result alone, or with the row and its result: indices that the result lacks come from the row.
    """
    target = row if result is None else result
    trajectory = build_trajectory({**row, **target})
    if trajectory is not None:
        target[NG_TRAJECTORY_KEY] = trajectory.model_dump(mode="json")
    return target


def build_trajectory(record: Row) -> TrajectoryRecord | None:
    """Return the trajectory of a result, or None if neither the agent nor a model server observed anything.

    Observations that cannot be read or joined become gaps instead of errors, so that they never fail a rollout.
    """
    reported = record.get(NG_AGENT_OBSERVATIONS_KEY)
    if not isinstance(record.get(NG_MODEL_CALL_CAPTURE_KEY), Mapping) and not reported:
        return None
    stored = StoredRollout(record)
    capture, calls = stored.capture, stored.captured_calls
    bundles, gaps = _parse_bundles(reported)
    model_calls, unmatched = join_model_call_observations(bundles, calls)
    invocations = [item for bundle in bundles for item in bundle.records if isinstance(item, AgentInvocation)]
    tool_calls = list(_tool_calls(bundles, stored))
    if not invocations:
        # No agent reported its calls, so a call that no invocation claims is not a gap.
        unmatched = [gap for gap in unmatched if gap.code != "model_call_unclaimed"]
    return TrajectoryRecord(
        task_id=str(record.get(TASK_INDEX_KEY_NAME, "")),
        rollout_id=str(capture.get("rollout_id") or _rollout_id(record)),
        invocations=invocations,
        turns=_turns(model_calls, tool_calls, calls),
        model_calls=model_calls,
        tool_calls=tool_calls,
        gaps=[*gaps, *(gap for bundle in bundles for gap in bundle.gaps), *unmatched, *_capture_gaps(capture)],
    )


def _rollout_id(record: Row) -> str:
    indices = f"{record.get(TASK_INDEX_KEY_NAME, '')}-{record.get(ROLLOUT_INDEX_KEY_NAME, '')}"
    return str(record.get(ROLLOUT_ID_KEY_NAME) or indices)


def _parse_bundles(reported: Any) -> tuple[list[AgentObservationBundle], list[ObservationGap]]:
    """Parse an agent's observations, one bundle or a list; an invalid bundle becomes a gap."""
    bundles: list[AgentObservationBundle] = []
    gaps: list[ObservationGap] = []
    for bundle in reported if isinstance(reported, list) else [reported] if reported else []:
        try:
            bundles.append(AgentObservationBundle.model_validate(bundle))
        except ValidationError as error:
            first = error.errors()[0]
            gaps.append(ObservationGap(code="observations_invalid", detail=f"{first['loc']}: {first['msg']}"))
    return bundles, gaps


def _tool_calls(bundles: list[AgentObservationBundle], stored: StoredRollout) -> Iterator[TrajectoryToolCall]:
    """Yield the observed tool calls, each with its output if the response contains it."""
    outputs = {item.get("call_id"): item.get("output") for item in _items(stored, "function_call_output")}
    for bundle in bundles:
        for item in bundle.records:
            if isinstance(item, ToolCallObservation):
                yield TrajectoryToolCall(**item.model_dump(), output=outputs.get(item.tool_call_id))


def _items(stored: StoredRollout, kind: str) -> list[Mapping[str, Any]]:
    return [item for item in stored.output if isinstance(item, Mapping) and item.get("type") == kind]


def _turns(
    model_calls: list[TrajectoryModelCall], tool_calls: list[TrajectoryToolCall], calls: list[Mapping[str, Any]]
) -> list[TrajectoryTurn]:
    """Return one turn per model call, with the tool calls it requested."""
    observed_ids = {call.tool_call_id for call in tool_calls}
    turns: list[TrajectoryTurn] = []
    for index, (model_call, captured) in enumerate(zip(model_calls, calls, strict=True)):
        referring = [
            call.tool_call_id
            for call in tool_calls
            if call.model_call is not None and call.model_call.model_call_id == model_call.model_call_id
        ]
        requests = _items(StoredRollout(captured), "function_call")
        requested_ids = [str(item["call_id"]) for item in requests if item.get("call_id")]
        requested_ids = [name for name in requested_ids if name in observed_ids and name not in referring]
        turns.append(
            TrajectoryTurn(
                turn_index=index,
                invocation_id=model_call.invocation_id,
                model_call_id=model_call.model_call_id,
                tool_call_ids=[*referring, *requested_ids],
            )
        )
    return turns


def _capture_gaps(capture: Mapping[str, Any]) -> list[ObservationGap]:
    return [
        ObservationGap(code=str(gap.get("code", "capture_gap")), detail=gap.get("detail"))
        for gap in capture.get("gaps") or ()
        if isinstance(gap, Mapping)
    ]
