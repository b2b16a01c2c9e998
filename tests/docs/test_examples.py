"""Example data is what the code of today writes, and the page of environments what they say themselves."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import environments, examples


def test_the_page_of_environments_is_current() -> None:
    """What is read from configurations and READMEs is not written twice."""
    assert environments.page() == environments.PAGE.read_text(encoding="utf-8"), "run: python -m tools.environments"


def test_the_examples_of_a_folder_are_made_again_to_the_byte() -> None:
    """Nothing in them depends on the hour or the machine. CI compares all folders: `tools.examples --check`."""
    folder = examples.SERVERS / "example_session_state_mgmt"

    assert list(examples.drift(folder, examples.made(folder))) == []


@pytest.mark.parametrize(
    ("reply", "turns"),
    [
        ("Rome", [{"text": "Rome"}]),
        ([{"type": "message", "content": "Rome"}], [{"text": "Rome"}]),
        (
            [
                {"type": "function_call", "name": "f", "arguments": "{}"},
                {"type": "function_call", "name": "g", "arguments": {"x": 1}},
                {"type": "function_call_output", "call_id": "c", "output": "ok"},
                {"type": "message", "content": [{"type": "output_text", "text": "done"}]},
            ],
            [
                {"tool_calls": [{"name": "f", "arguments": "{}"}, {"name": "g", "arguments": {"x": 1}}]},
                {"text": "done"},
            ],
        ),
        (
            [
                {"content": "one"},
                {"role": "user", "content": "and?"},
                {"type": "reasoning", "summary": [{"text": "hm"}]},
                {"content": "two"},
            ],
            [{"text": "one"}, {"reasoning": "hm", "text": "two"}],
        ),
        (
            [{"type": "function_call", "name": "f", "arguments": "{}"}],
            [{"tool_calls": [{"name": "f", "arguments": "{}"}]}, {"text": "Done."}],
        ),
        ([], [{"text": ""}]),
    ],
)
def test_a_reply_is_played_turn_by_turn(reply: Any, turns: list[dict[str, Any]]) -> None:
    """Tools answer between the turns, so their real outputs are in the rollouts."""
    assert examples.turns(reply) == turns


def test_calls_come_one_by_one_where_a_row_forbids_parallel_ones() -> None:
    """A real model with that option calls one tool per turn, and the example must show that."""
    calls = [{"type": "function_call", "name": name, "arguments": "{}"} for name in "ab"]

    assert [len(turn["tool_calls"]) for turn in examples.turns(calls, one_by_one=True)[:-1]] == [1, 1]


def test_turns_in_the_prompt_are_not_the_model_s_own() -> None:
    """A scripted model counts every turn it sees."""
    shown = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3+4"},
    ]

    assert examples.turns_before({"responses_create_params": {"input": shown}}) == 1
    assert examples.turns_before({"responses_create_params": {"input": "3+4"}}) == 0


def test_values_that_differ_per_run_are_not_in_the_rollouts() -> None:
    """Times are dropped, marks set to zero, and the agent is called what it is called."""
    record = {
        "agent_ref": {"name": "agent_3"}, "_ng_seconds": 1.5, "_ng_phases": {}, "text": "<a 0fe1>x</a 0fe1>", "t": 0.25,
    }  # fmt: skip
    line = examples.stable(record, "agent", [r"</?a ([0-9a-f]{4})>", r'"t":([0-9.]+)'])

    assert json.loads(line) == {"agent_ref": {"name": "agent"}, "text": "<a 0000>x</a 0000>", "t": 0.0}


def test_drift_names_the_file_and_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The author of a change to a verifier sees which rewards it changed."""
    monkeypatch.setattr(examples, "ROOT", tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "example.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    lines = list(examples.drift(tmp_path, {"example.jsonl": b'{"a": 1}\n{"a": 3}\n', "example_metrics.json": b"{}"}))

    assert lines[0].startswith("data/example.jsonl: ")
    assert "line 2, character 6" in lines[1]
    assert lines[-1].startswith("data/example_metrics.json: is missing")
    assert list(examples.drift(tmp_path, {"example.jsonl": b'{"a": 1}\n{"a": 2}\n'})) == []


def test_a_folder_that_cannot_be_made_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The others are still made."""
    assert examples.main(["no_such_folder"]) == 2
    assert "no_such_folder" in capsys.readouterr().err


def test_an_oracle_that_is_not_paid_stops_the_writing() -> None:
    """Example rollouts must not show a right answer judged wrong as if that were meant."""
    audit: Any = SimpleNamespace(oracle=lambda row: "x", __name__="audit")
    rows = [{} for _ in range(5)]
    rewards = [1.0, 1.0, 0.0, 1.0, 0.0]

    with pytest.raises(Exception, match="row 2 got 0, not the full reward"):
        examples._check_rewards("words", audit, rows, [{"reward": reward} for reward in rewards])
