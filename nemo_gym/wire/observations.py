"""Observations: an agent's reports about its work in addition to the answer, and the trajectory built from them.

A bundle holds the observations of one source; a gap reports something that should have been observed but was not. Every
model rejects unknown fields, because they are mistakes of the agent's author, and validates assignments.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nemo_gym.wire.base import WIRE_CONFIG, Json, TaggedUnion, field_text, literal_tags
from nemo_gym.wire.responses import NeMoGymResponse, NeMoGymResponseInput
from nemo_gym.wire.server_refs import ModelServerRef

Moment = float | str | None
"""Seconds since the epoch or an ISO 8601 text, as the agent reports it."""

ObservedStatus = Literal["completed", "failed", "incomplete", "unknown"]

OWNERSHIP_GAP = "model_call_ownership_unavailable"
"""Code of the gap for captured calls to which no invocation refers."""


def _with_server_type(reference: Any) -> Any:
    """Return a reference to a model server; an instance id alone gets the type."""
    return {"type": "responses_api_models", "name": reference} if isinstance(reference, str) else reference


ModelRef = Annotated[ModelServerRef, BeforeValidator(_with_server_type)]

Dialect = Literal["responses", "chat", "messages", "gemini"]
"""The APIs that clients of model servers speak."""


class ObservationModel(BaseModel):
    model_config = ConfigDict(**{**WIRE_CONFIG, "extra": "forbid", "validate_assignment": True})


class ModelCallRef(ObservationModel):
    """A reference to a captured model call: by its id, or by model and response id."""

    model_call_id: str | None = None
    model_ref: ModelRef | None = None
    response_id: str | None = None

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        if self.model_call_id is None and (self.model_ref is None or self.response_id is None):
            raise ValueError("give model_call_id, or both model_ref and response_id")
        return self


class AgentInvocation(ObservationModel):
    """One run of an agent or sub-agent, with the model calls it made."""

    kind: Literal["agent_invocation"] = "agent_invocation"
    invocation_id: str
    parent_invocation_id: str | None = None
    spawned_by_tool_call_id: str | None = None
    status: ObservedStatus = "unknown"
    duration_ms: float | None = None
    error_type: str | None = None
    model_calls: list[ModelCallRef] = []
    conversation: NeMoGymResponseInput = []


class ToolCallObservation(ObservationModel):
    kind: Literal["tool_call"] = "tool_call"
    invocation_id: str
    tool_call_id: str | None = None
    sandbox_id: str | None = None
    tool_name: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    duration_ms: float | None = None
    timing_source: Literal["executor", "artifact", "harness"] | None = None
    status: ObservedStatus | Literal["timeout", "cancelled"] = "unknown"
    error_type: str | None = None

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.started_at is not None and self.completed_at is not None and self.completed_at < self.started_at:
            raise ValueError(f"completed_at {self.completed_at} is before started_at {self.started_at}")
        return self


class SandboxObservation(ObservationModel):
    kind: Literal["sandbox"] = "sandbox"
    role: Literal["agent", "verifier", "environment"]
    provider: str | None = None
    sandbox_id: str | None = None
    outcome: str | None = None
    exit_code: int | None = None
    wall_time_s: float | None = None
    cpu_time_s: float | None = None
    peak_memory_mib: float | None = None
    resource_usage_source: str | None = None
    error_type: str | None = None


class ContextCompactionObservation(ObservationModel):
    """The agent shortened its context."""

    kind: Literal["context_compaction"] = "context_compaction"
    invocation_id: str
    observed_at: Moment = None
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    outcome: Literal["completed", "failed", "aborted", "unknown"] = "unknown"
    summary: str | None = None
    first_kept_item_id: str | None = None
    before_model_call: ModelCallRef | None = None
    model_calls: list[ModelCallRef] = []
    after_model_call: ModelCallRef | None = None


class ObservationGap(ObservationModel):
    """Something that should have been observed but was not."""

    code: str
    invocation_id: str | None = None
    detail: str | None = None


Observation = Annotated[
    AgentInvocation | ToolCallObservation | SandboxObservation | ContextCompactionObservation,
    TaggedUnion(tag=lambda record: field_text(record, "kind"), member_tags=lambda member: literal_tags(member, "kind")),
]


class AgentObservationBundle(ObservationModel):
    """The observations of one rollout by one source. Invocation ids are unique; no invocation is its own ancestor."""

    source: str
    records: list[Observation] = []
    gaps: list[ObservationGap] = []

    @model_validator(mode="after")
    def _check_records(self) -> Self:
        """Check that invocation ids are unique and that no invocation is its own ancestor."""
        parents: dict[str, list[str]] = {}
        for record in self.invocations():
            if record.invocation_id in parents:
                raise ValueError(f"two agent_invocation records have the id {record.invocation_id!r}")
            parents[record.invocation_id] = [record.parent_invocation_id] if record.parent_invocation_id else []
        try:
            TopologicalSorter(parents).prepare()  # raises an error for a cycle
        except CycleError as error:
            cycle: list[str] = error.args[1]
            raise ValueError(f"invocation {cycle[0]!r} is its own ancestor") from None
        return self

    def invocations(self) -> list[AgentInvocation]:
        return [record for record in self.records if isinstance(record, AgentInvocation)]


class TrajectoryTokenStats(ObservationModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None


class ModelCallMetadata(ObservationModel):
    """What is known about the response of a captured call besides its content."""

    response_id: str | None = None
    model_ref: ModelRef | None = None
    model: str | None = None
    dialect: Dialect | None = None
    status_code: int | None = None
    response_status: str | None = None
    finish_reason: str | None = None
    error_category: str | None = None
    latency_ttft_ms: float | None = None
    client_session_id: str | None = None
    upstream_attempted: bool | None = None
    response_source: Literal["upstream", "local"] | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None


class TrajectoryModelCall(ObservationModel):
    """A captured model call."""

    model_call_id: str
    started_at: Moment = None
    completed_at: Moment = None
    duration_ms: float | None = None
    request: Json = None
    response: Json = None
    token_stats: TrajectoryTokenStats | None = None
    response_metadata: ModelCallMetadata | None = None


class TrajectoryToolCall(ToolCallObservation):
    output: Json = None


class TrajectoryTurn(ObservationModel):
    """One turn: what the agent was asked, what it answered, and the model calls for the answer."""

    turn_no: int = Field(ge=1)
    invocation_id: str | None = None
    task_id: str | None = None
    rollout_id: str | None = None
    timestamp: Moment = None
    question: Json = None
    answer: Json = None
    reasoning_content: str | None = None
    resolved: bool | None = None
    step_count: int | None = Field(default=None, ge=0)
    model_calls: list[ModelCallRef] = []


class TrajectoryRecord(ObservationModel):
    schema_version: Literal["1.0"] = "1.0"
    task_id: str
    rollout_id: str
    invocations: list[AgentInvocation] = []
    turns: list[TrajectoryTurn] = []
    model_calls: list[TrajectoryModelCall] = []
    tool_calls: list[TrajectoryToolCall] = []
    gaps: list[ObservationGap] = []


@dataclass
class AgentEpisode:
    """The result of an agent's episode: the response and the observations."""

    response: NeMoGymResponse
    observations: AgentObservationBundle | None = None


def join_model_call_observations(bundle: AgentObservationBundle, calls: Iterable[Any]) -> AgentObservationBundle:
    """Return the bundle with each reference to a captured call completed, and with gaps for what does not match.

    `calls` are `ModelCallRecord`s. A gap reports a reference that matches no call, several calls or two different ones
    (by its id and by its response), and calls to which no invocation refers. A call without a reference belongs to the
    invocation whose id is its `client_session_id`.
    """
    captured = list(calls)
    by_id = {call.model_call_id: call for call in captured}
    by_response: dict[tuple[str | None, str], list[Any]] = defaultdict(list)
    for call in captured:
        if call.response_id is not None:
            by_response[_server_name(call.model_ref), call.response_id].append(call)
    owned: set[str] = set()
    gaps = list(bundle.gaps)

    def complete(reference: ModelCallRef, invocation_id: str) -> ModelCallRef:
        """Return the reference with all ids of its call; add a gap and return it unchanged without exactly one."""
        response = (_server_name(reference.model_ref), reference.response_id or "")
        matches = {call.model_call_id for call in by_response.get(response, ())}
        is_conflict = False
        if reference.model_call_id in by_id:
            is_conflict = bool(matches) and reference.model_call_id not in matches
            matches = {reference.model_call_id}
        if len(matches) != 1 or is_conflict:
            problem = "conflict" if is_conflict else "ambiguous" if matches else "unmatched"
            detail = reference.model_call_id or f"{_server_name(reference.model_ref)}/{reference.response_id}"
            code = f"model_call_reference_{problem}"
            gaps.append(ObservationGap(code=code, invocation_id=invocation_id, detail=detail))
            return reference
        call = by_id[matches.pop()]
        owned.add(call.model_call_id)
        return ModelCallRef(
            model_call_id=call.model_call_id,
            model_ref=call.model_ref or reference.model_ref,
            response_id=call.response_id or reference.response_id,
        )

    records = [_with_references(record, complete) for record in bundle.records]
    _add_calls_of_sessions(records, [call for call in captured if call.model_call_id not in owned], owned)
    unowned = [call.model_call_id for call in captured if call.model_call_id not in owned]
    if unowned:
        gaps.append(ObservationGap(code=OWNERSHIP_GAP, detail=", ".join(unowned)))
    return AgentObservationBundle(source=bundle.source, records=records, gaps=gaps)


def _add_calls_of_sessions(records: list[Any], unowned: list[Any], owned: set[str]) -> None:
    """Refer each unowned call from the invocation whose id is the `client_session_id` of the call; update `owned`."""
    for position, record in enumerate(records):
        if not isinstance(record, AgentInvocation):
            continue
        calls = [call for call in unowned if getattr(call, "client_session_id", None) == record.invocation_id]
        if calls:
            owned.update(call.model_call_id for call in calls)
            references = [*record.model_calls, *map(_reference_to, calls)]
            records[position] = record.model_copy(update={"model_calls": references})


def _reference_to(call: Any) -> ModelCallRef:
    return ModelCallRef(model_call_id=call.model_call_id, model_ref=call.model_ref, response_id=call.response_id)


def _with_references(record: Any, complete: Any) -> Any:
    """Return a copy of a record whose references to model calls are replaced by `complete(reference, invocation)`."""
    if not isinstance(record, AgentInvocation | ContextCompactionObservation):
        return record
    fields: dict[str, Any] = {
        "model_calls": [complete(reference, record.invocation_id) for reference in record.model_calls]
    }
    if isinstance(record, ContextCompactionObservation):
        for name in ("before_model_call", "after_model_call"):
            reference = getattr(record, name)
            fields[name] = None if reference is None else complete(reference, record.invocation_id)
    return record.model_copy(update=fields)


def _server_name(reference: Any) -> str | None:
    return reference.name if isinstance(reference, ModelServerRef) else reference
