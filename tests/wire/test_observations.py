"""What agents report, and how it is joined with captured model calls."""

import pytest
from pydantic import ValidationError

from nemo_gym.capture.record import ModelCallRecord
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
            ToolCallObservation(invocation_id="main", tool_call_id="t", tool_name="add"),
            SandboxObservation(role="agent", sandbox_id="s", provider="docker"),
            ContextCompactionObservation(invocation_id="main", tokens_before=10, tokens_after=2),
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


def test_two_invocations_cannot_share_an_id():
    """A join by id would silently pick one of them."""
    with pytest.raises(ValidationError, match="two agent_invocation records have the id 'a'"):
        AgentObservationBundle(source="a", records=[invocation("a"), invocation("a")])
    AgentObservationBundle(source="a", records=[invocation("a"), ToolCallObservation(invocation_id="a")])


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


def record(call_id: str, index: int, model: str = "policy", response_id: str | None = None) -> ModelCallRecord:
    return ModelCallRecord(model_call_id=call_id, call_index=index, model_ref=model, response_id=response_id)


def test_references_to_captured_calls_are_completed_and_what_does_not_match_is_a_gap():
    """The trajectory answers which invocation made which call."""
    calls = [record("c1", 0), record("c2", 1, response_id="r2"), record("c3", 2, "judge"), record("c4", 3, "m", "twin")]
    calls += [record("c5", 4, "m", "twin")]
    conflict = ModelCallRef(model_call_id="c1", model_ref="policy", response_id="r2")
    bundle = AgentObservationBundle(
        source="a",
        records=[
            invocation("main", None, ModelCallRef(model_call_id="c1"), ModelCallRef(model_call_id="lost")),
            invocation("sub", "main", ModelCallRef(model_ref="policy", response_id="r2"), conflict),
            invocation("other", "main", ModelCallRef(model_ref="m", response_id="twin")),
        ],
    )

    joined = join_model_call_observations(bundle, calls)

    assert joined.invocations()[1].model_calls[0].model_call_id == "c2"
    assert [(gap.code, gap.invocation_id, gap.detail) for gap in joined.gaps] == [
        ("model_call_reference_unmatched", "main", "lost"),
        ("model_call_reference_conflict", "sub", "c1"),
        ("model_call_reference_ambiguous", "other", "m/twin"),
        ("model_call_ownership_unavailable", None, "c3, c4, c5"),
    ]


def test_a_call_without_a_reference_belongs_to_the_invocation_of_its_session():
    """Programs that see no ids of model calls still name their session in every request."""
    calls = [record("c1", 0), record("c2", 1, response_id="r2"), record("c3", 2), record("c4", 3)]
    for call, session in zip(calls, ("sub", "sub", "elsewhere", "main"), strict=True):
        call.client_session_id = session
    main = invocation("main", None, ModelCallRef(model_call_id="c1"))

    joined = join_model_call_observations(
        AgentObservationBundle(source="a", records=[main, invocation("sub", "main")]), calls
    )

    references = {one.invocation_id: [call.model_call_id for call in one.model_calls] for one in joined.invocations()}
    assert references == {"main": ["c1", "c4"], "sub": ["c2"]}
    assert [(gap.code, gap.detail) for gap in joined.gaps] == [("model_call_ownership_unavailable", "c3")]


def test_a_tool_call_cannot_end_before_it_starts_and_assignments_are_checked():
    """A wrong clock would give negative durations in every report."""
    with pytest.raises(ValidationError, match="before started_at"):
        ToolCallObservation(invocation_id="i", started_at=2.0, completed_at=1.0)
    call = ToolCallObservation(invocation_id="i", started_at=2.0)
    with pytest.raises(ValidationError):
        call.status = "on fire"


def test_a_trajectory_has_a_version_and_tool_outputs():
    """Readers of stored trajectories look at the version first."""
    trajectory = TrajectoryRecord(
        task_id="0",
        rollout_id="0-1",
        turns=[TrajectoryTurn(turn_no=1, question="6*7?", answer="42", step_count=0)],
        tool_calls=[TrajectoryToolCall(invocation_id="i", tool_call_id="t", output={"x": 1})],
    )

    assert trajectory.schema_version == "1.0"
    assert TrajectoryRecord.model_validate_json(trajectory.model_dump_json()) == trajectory
    assert AgentEpisode(response=None, observations=None).observations is None
