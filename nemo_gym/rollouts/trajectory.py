"""One rollout as a trajectory: what the agent observed, joined with the model calls that were captured."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from nemo_gym.keys import (
    NG_AGENT_OBSERVATIONS_KEY,
    NG_MODEL_CALL_CAPTURE_KEY,
    NG_TRAJECTORY_KEY,
    RESPONSE_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.rollout_observability import (
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
from nemo_gym.rollouts.job import Row


def trajectory_of(record: Row) -> TrajectoryRecord | None:
    """The trajectory of a result, or None when neither the agent nor a model server observed anything.

    What cannot be read or joined is a gap in it, never an error: observing must not cost a rollout.
    """
    capture = record.get(NG_MODEL_CALL_CAPTURE_KEY)
    reported = record.get(NG_AGENT_OBSERVATIONS_KEY)
    if not isinstance(capture, Mapping) and not reported:
        return None
    capture = capture if isinstance(capture, Mapping) else {}
    bundles, gaps = _bundles(reported)
    calls = [call for call in capture.get("calls") or () if isinstance(call, Mapping)]
    model_calls, unmatched = join_model_call_observations(bundles, calls)
    invocations = [item for bundle in bundles for item in bundle.records if isinstance(item, AgentInvocation)]
    tool_calls = list(_tool_calls(bundles, record))
    if not invocations:
        # Nobody said who made which call, so that nobody claims one is no news.
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


def attach_trajectory_record(row: Row, result: Row | None = None) -> Row:
    """Put `ng_trajectory` on a result, in place, if anything was observed, and return the result.

    Called with the result alone, or with the row it answers first; the row's indices are used where the result
    does not have its own.
    """
    target = row if result is None else result
    trajectory = trajectory_of({**row, **target})
    if trajectory is not None:
        target[NG_TRAJECTORY_KEY] = trajectory.model_dump(mode="json")
    return target


def _rollout_id(record: Row) -> str:
    return str(
        record.get(ROLLOUT_ID_KEY_NAME)
        or f"{record.get(TASK_INDEX_KEY_NAME, '')}-{record.get(ROLLOUT_INDEX_KEY_NAME, '')}"
    )


def _bundles(reported: Any) -> tuple[list[AgentObservationBundle], list[ObservationGap]]:
    given = reported if isinstance(reported, list) else [reported] if reported else []
    bundles: list[AgentObservationBundle] = []
    gaps: list[ObservationGap] = []
    for bundle in given:
        try:
            bundles.append(AgentObservationBundle.model_validate(bundle))
        except ValidationError as error:
            first = error.errors()[0]
            gaps.append(ObservationGap(code="observations_invalid", detail=f"{first['loc']}: {first['msg']}"))
    return bundles, gaps


def _tool_calls(bundles: list[AgentObservationBundle], record: Row) -> Iterator[TrajectoryToolCall]:
    """The observed tool calls with what the tool answered, where the response has it."""
    response = record.get(RESPONSE_KEY_NAME)
    items = response.get("output") if isinstance(response, Mapping) else None
    outputs = {
        item.get("call_id"): item.get("output")
        for item in items or ()
        if isinstance(item, Mapping) and item.get("type") == "function_call_output"
    }
    for bundle in bundles:
        for item in bundle.records:
            if isinstance(item, ToolCallObservation):
                yield TrajectoryToolCall(**item.model_dump(), output=outputs.get(item.tool_call_id))


def _turns(
    model_calls: list[TrajectoryModelCall], tool_calls: list[TrajectoryToolCall], calls: list[Mapping[str, Any]]
) -> list[TrajectoryTurn]:
    """One turn per model call, with the tool calls it asked for."""
    observed = {call.tool_call_id for call in tool_calls}
    turns: list[TrajectoryTurn] = []
    for index, (model_call, captured) in enumerate(zip(model_calls, calls, strict=True)):
        referring = [
            call.tool_call_id
            for call in tool_calls
            if call.model_call is not None and call.model_call.model_call_id == model_call.model_call_id
        ]
        asked = [name for name in _asked_for(captured) if name in observed and name not in referring]
        turns.append(
            TrajectoryTurn(
                turn_index=index,
                invocation_id=model_call.invocation_id,
                model_call_id=model_call.model_call_id,
                tool_call_ids=[*referring, *asked],
            )
        )
    return turns


def _asked_for(captured: Mapping[str, Any]) -> list[str]:
    """Ids of the tool calls in a captured Responses answer."""
    response = captured.get("response")
    items = response.get("output") if isinstance(response, Mapping) else None
    return [
        str(item["call_id"])
        for item in items or ()
        if isinstance(item, Mapping) and item.get("type") == "function_call" and item.get("call_id")
    ]


def _capture_gaps(capture: Mapping[str, Any]) -> list[ObservationGap]:
    return [
        ObservationGap(code=str(gap.get("code", "capture_gap")), detail=gap.get("detail"))
        for gap in capture.get("gaps") or ()
        if isinstance(gap, Mapping)
    ]
