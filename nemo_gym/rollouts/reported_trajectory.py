"""Complete the trajectory that an agent reports with captured model calls and with observations.

What the agent reports has priority: its turns (also none), and its record of an invocation or tool call. Captured calls
replace its own records of these calls, because they contain the whole request and response.
"""

from collections.abc import Sequence

from pydantic import ValidationError

from nemo_gym.capture.record import ModelCallRecord
from nemo_gym.wire.observations import (
    AgentInvocation,
    AgentObservationBundle,
    ModelCallRef,
    ObservationGap,
    TrajectoryRecord,
)


def with_report(
    bundle: AgentObservationBundle, reported: TrajectoryRecord, calls: Sequence[ModelCallRecord]
) -> tuple[AgentObservationBundle, TrajectoryRecord]:
    """Return the bundle with the reported invocations and gaps, and the report with completed references in its turns.

    A call to which only a turn refers belongs to the invocation of the turn.
    """
    turns = [
        turn.model_copy(
            update={"model_calls": [complete_reference(reference, calls) for reference in turn.model_calls]}
        )
        for turn in reported.turns
    ]
    if turns:  # a copy with empty turns would claim that the agent has reported them
        reported = reported.model_copy(update={"turns": turns})
    captured = {call.model_call_id for call in calls}
    invocations = [_with_calls_of_turns(invocation, reported, captured) for invocation in reported.invocations]
    reported_ids = {invocation.invocation_id for invocation in invocations}
    observed = [
        _with_calls_of_turns(one, reported, captured) if isinstance(one, AgentInvocation) else one
        for one in bundle.records
        if not (isinstance(one, AgentInvocation) and one.invocation_id in reported_ids)
    ]
    gaps = [*reported.gaps, *bundle.gaps]
    try:
        return AgentObservationBundle(source=bundle.source, records=[*invocations, *observed], gaps=gaps), reported
    except ValidationError as error:  # together they contradict each other, for example in a cycle of parents
        problem = ObservationGap(code="observations_invalid", detail=str(error.errors()[0]["msg"]))
        return AgentObservationBundle(source=bundle.source, records=invocations, gaps=[*gaps, problem]), reported


def completed_report(reported: TrajectoryRecord, built: TrajectoryRecord) -> TrajectoryRecord:
    """Return the report with invocations, calls and gaps of the trajectory that captures and observations have built.

    A report without the field `turns` gets the turns of the captured calls.
    """
    captured = {call.model_call_id for call in built.model_calls}
    tools = {call.tool_call_id for call in reported.tool_calls} - {None}
    update = {
        "task_id": reported.task_id or built.task_id,
        "rollout_id": reported.rollout_id or built.rollout_id,
        "invocations": built.invocations,
        "turns": reported.turns if "turns" in reported.model_fields_set else built.turns,
        "model_calls": [
            *built.model_calls,
            *(call for call in reported.model_calls if call.model_call_id not in captured),
        ],
        "tool_calls": [
            *reported.tool_calls,
            *(call for call in built.tool_calls if call.tool_call_id not in tools),
        ],
        "gaps": built.gaps,
    }
    return reported.model_copy(update=update)


def complete_reference(reference: ModelCallRef, calls: Sequence[ModelCallRecord]) -> ModelCallRef:
    """Return the reference with all ids of its captured call; unchanged without exactly one such call."""
    if reference.model_call_id is not None:
        matches = [call for call in calls if call.model_call_id == reference.model_call_id]
    else:
        response = _response_key(reference)
        matches = [call for call in calls if call.response_id is not None and _response_key(call) == response]
    if len(matches) != 1:
        return reference
    (call,) = matches
    return ModelCallRef(
        model_call_id=call.model_call_id,
        model_ref=call.model_ref or reference.model_ref,
        response_id=call.response_id or reference.response_id,
    )


def _response_key(source: ModelCallRef | ModelCallRecord) -> tuple[str | None, str | None]:
    return None if source.model_ref is None else source.model_ref.name, source.response_id


def _with_calls_of_turns(
    invocation: AgentInvocation, reported: TrajectoryRecord, captured: set[str]
) -> AgentInvocation:
    """Return the invocation with the references of its turns to captured calls that it lacks, each reference once."""
    ids = {reference.model_call_id for reference in invocation.model_calls}
    responses = {reference.response_id for reference in invocation.model_calls} - {None}
    missing = [
        reference
        for turn in reported.turns
        if turn.invocation_id == invocation.invocation_id
        for reference in turn.model_calls
        if reference.model_call_id in captured - ids and reference.response_id not in responses
    ]
    unique = {
        (reference.model_call_id, _response_key(reference)): reference
        for reference in reversed([*invocation.model_calls, *missing])
    }
    return invocation.model_copy(update={"model_calls": [*reversed(unique.values())]})
