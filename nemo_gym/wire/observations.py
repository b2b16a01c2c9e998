"""Observations: an agent's reports about its work in addition to the answer, and the trajectory built from them.

A bundle holds the observations of one source; a gap reports something that should have been observed but was not. Every
model rejects unknown fields, because they are mistakes of the agent's author.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from nemo_gym.wire.base import WIRE_CONFIG, Json, JsonObject, TaggedUnion, dump_object, field_text, literal_tags
from nemo_gym.wire.responses import NeMoGymResponse

Moment = float | str | None
"""Seconds since the epoch or an ISO 8601 text, as the agent reports it."""

ServerName = Annotated[str | JsonObject, BeforeValidator(dump_object)]
"""A server's instance id, or a reference `{type, name}` to it."""


class ObservationModel(BaseModel):
    model_config = ConfigDict(**{**WIRE_CONFIG, "extra": "forbid"})


class ModelCallRef(ObservationModel):
    """A reference to a captured model call: by its id, or by model and response id."""

    model_call_id: str | None = None
    model_ref: ServerName | None = None
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
    name: str | None = None
    status: str | None = None
    started_at: Moment = None
    completed_at: Moment = None
    model_calls: list[ModelCallRef] = []
    metadata: JsonObject = {}


class ToolCallObservation(ObservationModel):
    kind: Literal["tool_call"] = "tool_call"
    tool_call_id: str
    invocation_id: str | None = None
    name: str | None = None
    arguments: Json = None
    status: str | None = None
    error: str | None = None
    started_at: Moment = None
    completed_at: Moment = None
    latency_ms: float | None = None
    model_call: ModelCallRef | None = None
    metadata: JsonObject = {}


class SandboxObservation(ObservationModel):
    kind: Literal["sandbox"] = "sandbox"
    sandbox_id: str
    invocation_id: str | None = None
    provider: str | None = None
    image: str | None = None
    status: str | None = None
    error: str | None = None
    started_at: Moment = None
    completed_at: Moment = None
    metadata: JsonObject = {}


class ContextCompactionObservation(ObservationModel):
    """The agent shortened its context."""

    kind: Literal["context_compaction"] = "context_compaction"
    compaction_id: str
    invocation_id: str | None = None
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    started_at: Moment = None
    completed_at: Moment = None
    model_call: ModelCallRef | None = None
    metadata: JsonObject = {}


class ObservationGap(ObservationModel):
    """Something that should have been observed but was not."""

    code: str
    invocation_id: str | None = None
    detail: str | None = None


Observation = Annotated[
    AgentInvocation | ToolCallObservation | SandboxObservation | ContextCompactionObservation,
    TaggedUnion(tag=lambda record: field_text(record, "kind"), member_tags=lambda member: literal_tags(member, "kind")),
]
_ID_FIELDS = {
    "agent_invocation": "invocation_id",
    "tool_call": "tool_call_id",
    "sandbox": "sandbox_id",
    "context_compaction": "compaction_id",
}


class AgentObservationBundle(ObservationModel):
    """The observations of one rollout by one source. Ids are unique per kind; no invocation is its own ancestor."""

    source: str
    records: list[Observation] = []
    gaps: list[ObservationGap] = []

    @model_validator(mode="after")
    def _check_records(self) -> Self:
        """Check that ids are unique per kind and that no invocation is its own ancestor."""
        seen: set[tuple[str, str]] = set()
        for record in self.records:
            key = (record.kind, getattr(record, _ID_FIELDS[record.kind]))
            if key in seen:
                raise ValueError(f"two {key[0]} records have the id {key[1]!r}")
            seen.add(key)
        _check_no_parent_cycle(record for record in self.records if isinstance(record, AgentInvocation))
        return self


def _check_no_parent_cycle(invocations: Iterable[AgentInvocation]) -> None:
    parents = {child.invocation_id: [child.parent_invocation_id] for child in invocations if child.parent_invocation_id}
    try:
        TopologicalSorter(parents).prepare()  # raises an error for a cycle
    except CycleError as error:
        cycle: list[str] = error.args[1]
        raise ValueError(f"invocation {cycle[0]!r} is its own ancestor") from None


class TrajectoryTokenStats(ObservationModel):
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    tokens_total: int | None = None
    cached_tokens: int | None = None


class TrajectoryModelCall(ObservationModel):
    """A captured model call and the invocation that made it."""

    model_call_id: str
    invocation_id: str | None = None
    model_ref: ServerName | None = None
    response_id: str | None = None
    dialect: Literal["responses", "chat", "messages"] | None = None
    started_at: Moment = None
    completed_at: Moment = None
    latency_ms: float | None = None
    latency_ttft_ms: float | None = None
    status_code: int | None = None
    error_category: str | None = None
    tokens: TrajectoryTokenStats | None = None


class TrajectoryToolCall(ToolCallObservation):
    output: Json = None


class TrajectoryTurn(ObservationModel):
    """One turn: a model call and the tool calls that follow from it."""

    turn_index: int
    invocation_id: str | None = None
    model_call_id: str | None = None
    tool_call_ids: list[str] = []


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


def _server_name(reference: Any) -> Any:
    return reference.get("name") if isinstance(reference, Mapping) else reference


def join_model_call_observations(
    bundles: Iterable[AgentObservationBundle], calls: Iterable[Mapping[str, Any]]
) -> tuple[list[TrajectoryModelCall], list[ObservationGap]]:
    """Assign each captured call to the first invocation that refers to it; return calls and gaps.

    `calls` are capture records (`model_call_id`, `model_ref`, `response`, ...). Gaps are references to calls that were
    not captured or that belong to another invocation, and calls to which no invocation refers.
    """
    joined = [_trajectory_call(call) for call in calls]
    by_id = {call.model_call_id: call for call in joined}
    by_response: dict[tuple[Any, str | None], TrajectoryModelCall] = {
        (_server_name(call.model_ref), call.response_id): call for call in joined if call.response_id
    }
    gaps: list[ObservationGap] = []
    records = (record for bundle in bundles for record in bundle.records)
    invocations = (record for record in records if isinstance(record, AgentInvocation))
    references = ((one.invocation_id, reference) for one in invocations for reference in one.model_calls)
    for invocation_id, reference in references:
        call = by_id.get(reference.model_call_id) if reference.model_call_id else None
        call = call or by_response.get((_server_name(reference.model_ref), reference.response_id))
        if call is None:
            detail = reference.model_call_id or f"{_server_name(reference.model_ref)}/{reference.response_id}"
            gaps.append(ObservationGap(code="model_call_not_captured", invocation_id=invocation_id, detail=detail))
        elif call.invocation_id is None:
            call.invocation_id = invocation_id
        elif call.invocation_id != invocation_id:
            detail = f"{call.model_call_id} belongs to {call.invocation_id}"
            gaps.append(ObservationGap(code="model_call_claimed_twice", invocation_id=invocation_id, detail=detail))
    gaps.extend(
        ObservationGap(code="model_call_unclaimed", detail=call.model_call_id)
        for call in joined
        if call.invocation_id is None
    )
    return joined, gaps


def _trajectory_call(call: Mapping[str, Any]) -> TrajectoryModelCall:
    """Return a capture record as a call that belongs to no invocation yet."""
    response = call.get("response")
    fields = {name: call[name] for name in TrajectoryModelCall.model_fields if name in call and name != "invocation_id"}
    if isinstance(response, Mapping):
        fields.setdefault("response_id", response.get("id"))
    return TrajectoryModelCall(**fields)
