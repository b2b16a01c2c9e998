"""What agents report, and how it is joined with captured model calls."""

import pytest
from pydantic import ValidationError

from nemo_gym.rollout_observability import (
    AgentEpisode,
    AgentInvocation,
    AgentObservationBundle,
    ContextCompactionObservation,
    ModelCallRef,
    ObservationGap,
    SandboxObservation,
    ToolCallObservation,
    TrajectoryRecord,
    TrajectoryToolCall,
    TrajectoryTurn,
    join_model_call_observations,
)


def invocation(name: str, parent: str | None = None, *calls: ModelCallRef) -> AgentInvocation:
    return AgentInvocation(invocation_id=name, parent_invocation_id=parent, model_calls=list(calls))


def test_records_are_reported_apart_by_kind_and_come_back_from_json():
    """Bundles travel inside result rows."""
    bundle = AgentObservationBundle(
        source="my_agent",
        records=[
            invocation("main", None, ModelCallRef(model_call_id="c1")),
            ToolCallObservation(tool_call_id="t", name="add", arguments={"a": 1}),
            SandboxObservation(sandbox_id="s", provider="docker"),
            ContextCompactionObservation(compaction_id="k", tokens_before=10, tokens_after=2),
        ],
        gaps=[ObservationGap(code="log_truncated", invocation_id="main", detail="after 1 MB")],
    )

    again = AgentObservationBundle.model_validate_json(bundle.model_dump_json())

    assert again == bundle
    assert [record.kind for record in again.records] == [
        "agent_invocation",
        "tool_call",
        "sandbox",
        "context_compaction",
    ]


@pytest.mark.parametrize(
    "record", [{"kind": "agent_invocation", "invocation_id": "i", "mood": "good"}, {"kind": "dream"}, {}, 3]
)
def test_a_record_that_says_something_unknown_is_refused(record):
    """No reader would use it; its author should learn that at once."""
    with pytest.raises(ValidationError):
        AgentObservationBundle(source="a", records=[record])


def test_two_records_of_a_kind_cannot_share_an_id():
    """A join by id would silently pick one of them."""
    with pytest.raises(ValidationError, match="two agent_invocation records have the id 'a'"):
        AgentObservationBundle(source="a", records=[invocation("a"), invocation("a")])
    AgentObservationBundle(source="a", records=[invocation("a"), ToolCallObservation(tool_call_id="a")])


@pytest.mark.parametrize("parents", [{"a": "a"}, {"a": "b", "b": "a"}, {"x": None, "a": "b", "b": "c", "c": "a"}])
def test_an_invocation_cannot_be_its_own_ancestor(parents):
    """Walking up from it would never end."""
    with pytest.raises(ValidationError, match="its own ancestor"):
        AgentObservationBundle(source="a", records=[invocation(name, parent) for name, parent in parents.items()])


def test_a_long_chain_and_a_parent_outside_the_bundle_are_fine():
    """Sub-agents nest, and a bundle may tell only part of the story."""
    chain = [invocation(str(n), str(n - 1)) for n in range(5000)]

    assert len(AgentObservationBundle(source="a", records=chain).records) == 5000


@pytest.mark.parametrize("reference", [{}, {"model_ref": "m"}, {"response_id": "r"}])
def test_a_reference_must_name_a_call(reference):
    """Half a name matches nothing or too much."""
    with pytest.raises(ValidationError, match="model_call_id, or both"):
        ModelCallRef(**reference)


def test_captured_calls_get_the_invocation_that_claims_them():
    """The trajectory answers who asked the model what."""
    calls = [
        {"model_call_id": "c1", "model_ref": {"type": "responses_api_models", "name": "policy"}, "latency_ms": 5},
        {"model_call_id": "c2", "model_ref": "policy", "response": {"id": "resp_2"}, "request": {}},
        {"model_call_id": "c3", "model_ref": "judge", "dialect": "chat"},
    ]
    bundle = AgentObservationBundle(
        source="a",
        records=[
            invocation("main", None, ModelCallRef(model_call_id="c1"), ModelCallRef(model_call_id="lost")),
            invocation("sub", "main", ModelCallRef(model_ref="policy", response_id="resp_2")),
            invocation("thief", "main", ModelCallRef(model_call_id="c1")),
        ],
    )

    joined, gaps = join_model_call_observations([bundle], calls)

    claims = {call.model_call_id: call.invocation_id for call in joined}
    assert claims == {"c1": "main", "c2": "sub", "c3": None}
    assert [(gap.code, gap.invocation_id, gap.detail) for gap in gaps] == [
        ("model_call_not_captured", "main", "lost"),
        ("model_call_claimed_twice", "thief", "c1 belongs to main"),
        ("model_call_unclaimed", None, "c3"),
    ]


def test_a_trajectory_has_a_version_and_tool_outputs():
    """Readers of stored trajectories look at the version first."""
    record = TrajectoryRecord(
        task_id="0",
        rollout_id="0-1",
        turns=[TrajectoryTurn(turn_index=0, tool_call_ids=["t"])],
        tool_calls=[TrajectoryToolCall(tool_call_id="t", output={"x": 1})],
    )

    assert record.schema_version == "1.0"
    assert TrajectoryRecord.model_validate_json(record.model_dump_json()) == record
    assert AgentEpisode(response=None, observations=None).observations is None
