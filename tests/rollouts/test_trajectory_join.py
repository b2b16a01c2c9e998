"""Observations of the agent joined with captured model calls."""

from typing import Any

import pytest

from nemo_gym.rollouts.capture_join import attach_trajectory_record, build_trajectory
from nemo_gym.wire.observations import OWNERSHIP_GAP, TrajectoryRecord

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


def answered_call(call_id: str, response_id: str, text: str) -> dict[str, Any]:
    """A captured call of the model server `policy` in the dialect Responses."""
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    response = {"id": response_id, "output": [{"type": "reasoning", "summary": [{"text": "hm"}]}, message]}
    request = {"input": [{"role": "user", "content": "2+2?"}, {"type": "reasoning", "summary": []}]}
    reference = {"type": "responses_api_models", "name": "policy"}
    call = {"model_call_id": call_id, "model_ref": reference, "dialect": "responses"}
    return {**call, "request": request, "response": response}


REPORT = {
    "task_id": "of the agent",
    "rollout_id": "r",
    "invocations": [{"invocation_id": "root", "status": "completed"}],
    "turns": [
        {
            "invocation_id": "root",
            "turn_no": 1,
            "question": "asked",
            "answer": "said",
            "model_calls": [
                {"model_ref": {"type": "responses_api_models", "name": "policy"}, "response_id": "resp_1"},
                {"model_ref": {"type": "responses_api_models", "name": "another"}, "response_id": "resp_1"},
            ],
        }
    ],
    "tool_calls": [{"invocation_id": "root", "tool_call_id": "c1", "output": "own"}],
    "model_calls": [{"model_call_id": "m1"}, {"model_call_id": "elsewhere"}],
    "gaps": [{"code": "lost"}],
}
CAPTURE = {"rollout_id": "3-1", "calls": [answered_call("m1", "resp_1", "4")]}


def test_the_trajectory_of_an_agent_is_completed_not_replaced():
    """An agent knows its turns; the captures know the requests. A replaced trajectory would lose the former."""
    observed = [
        {"kind": "agent_invocation", "invocation_id": "root", "status": "failed"},
        {"kind": "agent_invocation", "invocation_id": "sub", "parent_invocation_id": "root"},
        {"kind": "tool_call", "tool_call_id": "c1", "invocation_id": "root"},
        {"kind": "tool_call", "tool_call_id": "c2", "invocation_id": "root"},
    ]
    result = {"ng_trajectory": REPORT, "ng_model_call_capture": CAPTURE}
    result["ng_agent_observations"] = {"source": "agent", "records": observed}

    attach_trajectory_record({"_ng_task_index": 3}, result)

    trajectory = TrajectoryRecord.model_validate(result["ng_trajectory"])
    (turn,) = trajectory.turns
    assert (trajectory.task_id, turn.question, turn.answer) == ("of the agent", "asked", "said")
    assert [reference.model_call_id for reference in turn.model_calls] == ["m1", None]
    owned = [(one.invocation_id, one.status, len(one.model_calls)) for one in trajectory.invocations]
    assert owned == [("root", "completed", 1), ("sub", "unknown", 0)]
    assert [(call.tool_call_id, call.output) for call in trajectory.tool_calls] == [("c1", "own"), ("c2", None)]
    assert [(call.model_call_id, call.request is None) for call in trajectory.model_calls] == [
        ("m1", False),
        ("elsewhere", True),
    ]
    assert [gap.code for gap in trajectory.gaps] == ["lost"]


@pytest.mark.parametrize(("turns", "expected"), [({"turns": []}, 0), ({}, 1)])
def test_an_agent_may_report_that_it_had_no_turns(turns: dict[str, Any], expected: int):
    """Turns that are not reported come from the captured calls; reported ones do not, not even none."""
    report = {"task_id": "t", "rollout_id": "r", **turns}

    trajectory = build_trajectory({}, {"ng_trajectory": report, "ng_model_call_capture": CAPTURE})

    assert trajectory is not None
    assert len(trajectory.turns) == expected


def test_a_trajectory_alone_is_kept_and_an_unreadable_one_is_a_gap():
    """Without observability there is nothing to join."""
    assert build_trajectory({"ng_trajectory": REPORT}) == TrajectoryRecord.model_validate(REPORT)
    assert build_trajectory({"ng_trajectory": {"surprise": 1}}) is None

    trajectory = build_trajectory({"ng_trajectory": {"surprise": 1}, "ng_model_call_capture": CAPTURE})

    assert trajectory is not None
    assert "trajectory_invalid" in {gap.code for gap in trajectory.gaps}


@pytest.mark.parametrize("result", [{}, {"ng_trajectory": REPORT}], ids=["left out", "echoed"])
def test_the_trajectory_of_an_earlier_run_is_no_report(result: dict[str, Any]):
    """Results are used as input rows, and many agents return the fields of their row."""
    row = {"ng_trajectory": REPORT, "_ng_task_index": 0}
    result = {**result, "ng_model_call_capture": CAPTURE}

    attach_trajectory_record(row, result)

    trajectory = TrajectoryRecord.model_validate(result["ng_trajectory"])
    assert [(turn.question, turn.answer) for turn in trajectory.turns] == [("2+2?", "4")]


def test_reports_that_contradict_the_observations_are_a_gap():
    """A cycle of parents, half reported and half observed, must not cost the rollout."""
    report = {**REPORT, "invocations": [{"invocation_id": "root", "parent_invocation_id": "sub"}]}
    records = [{"kind": "agent_invocation", "invocation_id": "sub", "parent_invocation_id": "root"}]

    trajectory = build_trajectory(
        {"ng_trajectory": report, "ng_agent_observations": {"source": "a", "records": records}}
    )

    assert trajectory is not None
    assert [one.invocation_id for one in trajectory.invocations] == ["root"]
    assert {gap.code for gap in trajectory.gaps} >= {"lost", "observations_invalid"}


@pytest.mark.parametrize(
    "invocations",
    [
        [{"invocation_id": "root"}, {"invocation_id": "root"}],
        [{"invocation_id": "a", "parent_invocation_id": "b"}, {"invocation_id": "b", "parent_invocation_id": "a"}],
    ],
    ids=["two of one id", "cycle"],
)
def test_reported_invocations_that_are_no_tree_are_a_gap(invocations: list[dict[str, Any]]):
    """The rollout is scored; a mistake in the agent's report must not fail it."""
    result: dict[str, Any] = {"ng_trajectory": {**REPORT, "invocations": invocations}, "ng_model_call_capture": CAPTURE}

    attach_trajectory_record({}, result)

    trajectory = TrajectoryRecord.model_validate(result["ng_trajectory"])
    assert [call.model_call_id for call in trajectory.model_calls] == ["m1"]
    assert "trajectory_invalid" in {gap.code for gap in trajectory.gaps}


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_call_of_several_turns_belongs_to_their_invocation_once(is_reported: bool):
    """Two references of one invocation to one call would read as two owners; observed invocations get them as well."""
    turn = {"invocation_id": "root", "model_calls": [{"model_call_id": "m1"}, {"model_call_id": "m1"}]}
    root = {"invocation_id": "root", "status": "completed"}
    report = {**REPORT, "turns": [turn | {"turn_no": 1}, turn | {"turn_no": 2}]}
    report["invocations"] = [root] if is_reported else []
    observed = [] if is_reported else [{"kind": "agent_invocation", **root}]
    result = {"ng_trajectory": report, "ng_model_call_capture": CAPTURE}

    trajectory = build_trajectory({**result, "ng_agent_observations": {"source": "agent", "records": observed}})

    assert trajectory is not None
    (invocation,) = trajectory.invocations
    assert [reference.model_call_id for reference in invocation.model_calls] == ["m1"]


CHAT = {
    "dialect": "chat",
    "request": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]}]
    },
    "response": {"choices": [{"message": {"role": "assistant", "content": "4", "reasoning_content": "hm"}}]},
}
MESSAGES = {
    "dialect": "messages",
    "request": {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "well"}]},
    "response": {
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}, {"type": "tool_use"}]
    },
}
GEMINI = {
    "dialect": "gemini",
    "request": {"contents": [{"role": "user", "parts": [{"text": "2+2?"}]}]},
    "response": {"candidates": [{"content": {"parts": [{"text": "hm", "thought": True}, {"text": "4"}]}}]},
}


@pytest.mark.parametrize(
    "call", [answered_call("m", "r", "4"), CHAT, MESSAGES, GEMINI], ids=lambda call: call["dialect"]
)
def test_a_turn_has_question_answer_and_reasoning_of_its_call(call: dict[str, Any]):
    """A reader of a trajectory does not know the dialect of the agent."""
    capture = {"ng_model_call_capture": {"calls": [{"model_call_id": "m", **call}]}}

    trajectory = build_trajectory(capture)

    assert trajectory is not None
    (turn,) = trajectory.turns
    assert (turn.question, turn.answer, turn.reasoning_content) == ("2+2?", "4", "hm")


def test_a_call_that_only_calls_tools_or_fails_has_no_answer():
    """An empty text would look like an answer."""
    calls = [
        {"model_call_id": "a", "request": {"input": "x"}, "response": {"output": [{"type": "function_call"}]}},
        {"model_call_id": "b", "request": None, "response": "not an object"},
    ]

    trajectory = build_trajectory({"ng_model_call_capture": {"calls": calls}})

    assert trajectory is not None
    assert [(turn.question, turn.answer) for turn in trajectory.turns] == [("x", None), (None, None)]
