"""Example data and the page of environments match the code that generates them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import environments, examples


def test_the_page_of_environments_is_current() -> None:
    """A page that repeats configurations and READMEs must not contradict them."""
    assert environments.page() == environments.PAGE.read_text(encoding="utf-8"), "run: python -m tools.environments"


def test_the_examples_of_a_folder_are_reproducible() -> None:
    """Reviewers can trust a diff of example data; CI compares all folders with `tools.examples --check`."""
    folder = examples.SERVERS / "example_session_state_mgmt"

    assert list(examples.differences(folder, examples.generate_files(folder))) == []


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
def test_a_reply_becomes_the_turns_of_a_script(reply: Any, turns: list[dict[str, Any]]) -> None:
    """Tools run between the turns, so example rollouts contain their real outputs."""
    assert examples.script_turns(reply) == turns


def test_calls_are_sequential_if_a_row_forbids_parallel_calls() -> None:
    """The scripted model must behave like a model that honours the setting."""
    calls = [{"type": "function_call", "name": name, "arguments": "{}"} for name in "ab"]

    assert [len(turn["tool_calls"]) for turn in examples.script_turns(calls, one_by_one=True)[:-1]] == [1, 1]


def test_turns_in_the_prompt_are_counted() -> None:
    """The scripted model counts every turn it sees, so the script must skip those of the prompt."""
    shown = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3+4"},
    ]

    assert examples.turns_before({"responses_create_params": {"input": shown}}) == 1
    assert examples.turns_before({"responses_create_params": {"input": "3+4"}}) == 0


def test_values_that_differ_between_runs_are_removed() -> None:
    """Timings and random marks would make every regeneration a diff."""
    record = {
        "agent_ref": {"name": "agent_3"}, "_ng_seconds": 1.5, "_ng_phases": {}, "text": "<a 0fe1>x</a 0fe1>", "t": 0.25,
    }  # fmt: skip
    line = examples.stable(record, "agent", [r"</?a ([0-9a-f]{4})>", r'"t":([0-9.]+)'])

    assert json.loads(line) == {"agent_ref": {"name": "agent"}, "text": "<a 0000>x</a 0000>", "t": 0.0}


def test_differences_name_the_file_and_the_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The author of a verifier change sees its effect."""
    monkeypatch.setattr(examples, "ROOT", tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "example.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    lines = list(
        examples.differences(tmp_path, {"example.jsonl": b'{"a": 1}\n{"a": 3}\n', "example_metrics.json": b"{}"})
    )

    assert lines[0].startswith("data/example.jsonl: ")
    assert "line 2, character 6" in lines[1]
    assert lines[-1].startswith("data/example_metrics.json: is missing")
    assert list(examples.differences(tmp_path, {"example.jsonl": b'{"a": 1}\n{"a": 2}\n'})) == []


def test_a_missing_folder_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt folder name must not pass silently."""
    assert examples.main(["no_such_folder"]) == 2
    assert "no_such_folder" in capsys.readouterr().err


def test_an_oracle_without_the_full_reward_is_an_error() -> None:
    """Example rollouts must not show a misjudged right answer as if it were intended."""
    audit: Any = SimpleNamespace(oracle=lambda row: "x", __name__="audit")
    rows = [{} for _ in range(5)]
    rewards = [1.0, 1.0, 0.0, 1.0, 0.0]

    with pytest.raises(Exception, match="row 2 got 0, not the full reward"):
        examples._check_rewards("words", audit, rows, [{"reward": reward} for reward in rewards])
