"""Add captured model calls, and a trajectory built from them and from agent observations, to the result of a rollout.

An agent may report observations: its invocations (each one run of an agent or sub-agent, with references to the model
calls it made) and its tool calls. A bundle holds the observations of one source. An observation that is missing,
invalid or cannot be joined to a model call becomes a gap, which the trajectory lists; it never fails the rollout.
"""

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
    trajectory = build_trajectory({**row, **target})
    if trajectory is not None:
        target[NG_TRAJECTORY_KEY] = trajectory.model_dump(mode="json")
    return target


def build_trajectory(record: Row) -> TrajectoryRecord | None:
    """Return the trajectory of a result, or None if it has neither captured model calls nor observations."""
    observations = record.get(NG_AGENT_OBSERVATIONS_KEY)
    if not isinstance(record.get(NG_MODEL_CALL_CAPTURE_KEY), Mapping) and not observations:
        return None
    stored = StoredRollout(record)
    capture, captured_calls = stored.capture, stored.captured_calls
    bundles, parse_gaps = _parse_bundles(observations)
    model_calls, join_gaps = join_model_call_observations(bundles, captured_calls)
    invocations = [item for bundle in bundles for item in bundle.records if isinstance(item, AgentInvocation)]
    tool_calls = list(_tool_calls(bundles, stored))
    if not invocations:
        # The agent reports no invocations, so it is no gap that no invocation refers to a model call.
        join_gaps = [gap for gap in join_gaps if gap.code != "model_call_unclaimed"]
    bundle_gaps = [gap for bundle in bundles for gap in bundle.gaps]
    return TrajectoryRecord(
        task_id=str(record.get(TASK_INDEX_KEY_NAME, "")),
        rollout_id=str(capture.get("rollout_id") or _rollout_id(record)),
        invocations=invocations,
        turns=_turns(model_calls, tool_calls, captured_calls),
        model_calls=model_calls,
        tool_calls=tool_calls,
        gaps=[*parse_gaps, *bundle_gaps, *join_gaps, *_capture_gaps(capture)],
    )


def _rollout_id(record: Row) -> str:
    indices = f"{record.get(TASK_INDEX_KEY_NAME, '')}-{record.get(ROLLOUT_INDEX_KEY_NAME, '')}"
    return str(record.get(ROLLOUT_ID_KEY_NAME) or indices)


def _parse_bundles(observations: Any) -> tuple[list[AgentObservationBundle], list[ObservationGap]]:
    """Parse an agent's observations, one bundle or a list of bundles; an invalid bundle becomes a gap."""
    bundles: list[AgentObservationBundle] = []
    gaps: list[ObservationGap] = []
    for bundle in observations if isinstance(observations, list) else [observations] if observations else []:
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
    model_calls: list[TrajectoryModelCall],
    tool_calls: list[TrajectoryToolCall],
    captured_calls: list[Mapping[str, Any]],
) -> list[TrajectoryTurn]:
    """Return one turn per model call, with the observed tool calls that refer to it or that its reply requests."""
    observed_ids = {call.tool_call_id for call in tool_calls}
    turns: list[TrajectoryTurn] = []
    for index, (model_call, captured) in enumerate(zip(model_calls, captured_calls, strict=True)):
        referring_ids = [
            call.tool_call_id
            for call in tool_calls
            if call.model_call is not None and call.model_call.model_call_id == model_call.model_call_id
        ]
        requests = _items(StoredRollout(captured), "function_call")  # a captured call holds its response like a record
        requested_ids = [str(item["call_id"]) for item in requests if item.get("call_id")]
        requested_ids = [each for each in requested_ids if each in observed_ids and each not in referring_ids]
        turns.append(
            TrajectoryTurn(
                turn_index=index,
                invocation_id=model_call.invocation_id,
                model_call_id=model_call.model_call_id,
                tool_call_ids=[*referring_ids, *requested_ids],
            )
        )
    return turns


def _capture_gaps(capture: Mapping[str, Any]) -> list[ObservationGap]:
    return [
        ObservationGap(code=str(gap.get("code", "capture_gap")), detail=gap.get("detail"))
        for gap in capture.get("gaps") or ()
        if isinstance(gap, Mapping)
    ]
