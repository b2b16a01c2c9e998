"""Observations of the agent joined with captured model calls."""

from nemo_gym.rollouts.capture_join import build_trajectory
from nemo_gym.wire.observations import OWNERSHIP_GAP

RECORD = {
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
    "response": {"output": [{"type": "function_call_output", "call_id": "c1", "output": "42"}]},
    "ng_agent_observations": {
        "source": "agent",
        "records": [
            {"kind": "agent_invocation", "invocation_id": "i", "model_calls": [{"model_call_id": "m1"}]},
            {"kind": "tool_call", "tool_call_id": "c1", "invocation_id": "i", "tool_name": "add"},
        ],
        "gaps": [{"code": "lost", "detail": "a turn"}],
    },
    "ng_model_call_capture": {
        "rollout_id": "3-1",
        "calls": [
            {"model_call_id": "m1", "response": {"id": "r1", "output": [{"type": "function_call", "call_id": "c1"}]}},
            {"model_call_id": "m2", "response": {"id": "r2", "output": []}},
        ],
        "gaps": [{"code": "capture_incomplete", "detail": "one call"}],
    },
}


def test_a_rollout_is_shown_turn_by_turn():
    """Trainers and the viewer read turns."""
    trajectory = build_trajectory(RECORD)

    assert trajectory is not None
    assert (trajectory.task_id, trajectory.rollout_id) == ("3", "3-1")
    calls = [(turn.turn_no, turn.invocation_id, turn.model_calls[0].model_call_id) for turn in trajectory.turns]
    assert calls == [(1, "i", "m1"), (2, None, "m2")]
    assert [call.response_metadata.response_id for call in trajectory.model_calls] == ["r1", "r2"]
    assert trajectory.tool_calls[0].output == "42"
    assert {gap.code for gap in trajectory.gaps} == {"lost", "capture_incomplete", OWNERSHIP_GAP}


def test_nothing_observed_is_no_trajectory():
    """An empty trajectory would claim that nothing happened."""
    assert build_trajectory({"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1}) is None


def test_captured_calls_alone_make_a_trajectory():
    """Agents of other authors report no observations."""
    trajectory = build_trajectory({"ng_model_call_capture": RECORD["ng_model_call_capture"], "_ng_task_index": 0})

    assert trajectory is not None
    assert len(trajectory.turns) == 2
    assert OWNERSHIP_GAP not in {gap.code for gap in trajectory.gaps}


def test_observations_that_cannot_be_read_are_a_gap_not_an_error():
    """A mistake in what an agent reports must not cost the rollout."""
    trajectory = build_trajectory({**RECORD, "ng_agent_observations": {"source": "x", "surprise": 1}})

    assert trajectory is not None
    assert "observations_invalid" in {gap.code for gap in trajectory.gaps}
