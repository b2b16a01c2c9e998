"""What we export, as the libraries that read it see it: `datasets` loads it, and the columns are TRL's."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.data.export import ExportDatasetConfig, export

datasets = pytest.importorskip("datasets")

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
FIND = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}


def episode(name: str, arguments: dict[str, Any], words: str) -> list[dict[str, Any]]:
    return [
        {"type": "function_call", "call_id": "c1", "name": name, "arguments": json.dumps(arguments)},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]},
    ]


def record(task: int, number: int, reward: float, tool: Any, arguments: Any, words: str) -> dict[str, Any]:
    output = episode(tool["name"], arguments, words) if tool else episode("x", {}, words)[2:]
    return {
        "responses_create_params": {"input": f"question {task}", **({"tools": [tool]} if tool else {})},
        "response": {"model": "m", "output": output},
        "reward": reward,
        "_ng_task_index": task,
        "_ng_rollout_index": number,
        "agent_ref": {"name": "solver"},
        "expected": {"kind": task} if task else "text",
    }


ROLLOUTS = [
    record(0, 0, 1.0, ADD, {"a": 1}, "two"),
    record(0, 1, 0.0, ADD, {"a": 2}, "three"),
    record(1, 0, 1.0, FIND, {"q": "x", "deep": {"n": [1]}}, "here"),
    record(1, 1, 0.0, FIND, {}, "nowhere"),
    record(2, 0, 1.0, None, None, "plain"),
    record(2, 1, 0.5, None, None, "other"),
]


@pytest.fixture(params=["jsonl", "parquet"])
def load_export(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that exports one kind in one format and loads it as a training script does."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets.disable_progress_bars()

    def load(kind: str) -> Any:
        source, target = tmp_path / "rollouts.jsonl", tmp_path / f"{kind}.{request.param}"
        source.write_text("".join(json.dumps(line) + "\n" for line in ROLLOUTS))
        export(ExportDatasetConfig(rollouts_jsonl_fpath=str(source), output_fpath=str(target), format=kind))
        builder = "json" if request.param == "jsonl" else "parquet"
        return datasets.load_dataset(builder, data_files=str(target), split="train", cache_dir=str(tmp_path / "cache"))

    return load


def without_nulls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the null fields that a table adds to every row."""
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def assert_conversation(messages: list[dict[str, Any]]) -> None:
    """Assert TRL's conversational format: roles, texts, calls with objects as arguments."""
    for message in without_nulls(messages):
        assert message["role"] in ("system", "developer", "user", "assistant", "tool")
        assert isinstance(message["content"], str)
        for call in message.get("tool_calls") or ():
            assert call["type"] == "function"
            assert isinstance(call["function"]["name"], str) and isinstance(call["function"]["arguments"], dict)
        if message["role"] == "tool":
            assert message["name"] and message["tool_call_id"]


def test_sft_rows_load_as_language_modelling_data(load_export: Any) -> None:
    """`SFTTrainer` takes `messages`, and `tools` beside them."""
    rows = load_export("sft")

    assert {"messages", "tools", "loss_mask", "task", "rollout", "reward", "agent"} <= set(rows.column_names)
    for row in rows:
        assert_conversation(row["messages"])
        assert row["messages"][-1]["role"] == "assistant"
        assert len(row["loss_mask"]) == len(row["messages"])
    calls = [without_nulls(row["messages"])[1].get("tool_calls") for row in rows]
    assert [call and call[0]["function"]["arguments"] for call in calls] == [
        {"a": 1},
        {"q": "x", "deep": {"n": [1]}},
        None,
    ]
    assert rows[1]["tools"] == [{"type": "function", "function": {"name": "find", "parameters": FIND["parameters"]}}]


def test_dpo_rows_load_as_preference_data(load_export: Any) -> None:
    """`DPOTrainer` takes an explicit prompt and the two completions that follow it."""
    rows = load_export("dpo")

    assert {"prompt", "chosen", "rejected"} <= set(rows.column_names) and len(rows) == 3
    for row in rows:
        assert [message["role"] for message in row["prompt"]] == ["user"]
        for side in ("chosen", "rejected"):
            assert_conversation(row[side])
            assert row[side][0]["role"] == "assistant"
        assert row["chosen_reward"] > row["rejected_reward"]


def test_rl_rows_load_as_prompt_only_data(load_export: Any) -> None:
    """`GRPOTrainer` takes a prompt; every other column reaches the reward function."""
    rows = load_export("rl")

    assert without_nulls(rows[0]["prompt"]) == [{"role": "user", "content": "question 0"}]
    assert [row["metadata"]["expected"] for row in rows] == ["text", {"kind": 1}, {"kind": 2}]
    assert [row["mean_reward"] for row in rows] == [0.5, 0.5, 0.75]


def test_the_parquet_columns_have_the_features_trl_recommends(tmp_path: Path) -> None:
    """Arguments and schemas of every shape side by side: TRL's documentation asks for `Json()` there."""
    source, target = tmp_path / "rollouts.jsonl", tmp_path / "sft.parquet"
    source.write_text("".join(json.dumps(line) + "\n" for line in ROLLOUTS))
    export(ExportDatasetConfig(rollouts_jsonl_fpath=str(source), output_fpath=str(target), format="sft"))

    features = datasets.load_dataset(
        "parquet", data_files=str(target), split="train", cache_dir=str(tmp_path / "cache")
    ).features

    assert features["tools"] == datasets.List(datasets.Json())
    assert features["messages"].feature["tool_calls"] == datasets.List(datasets.Json())
    assert features["messages"].feature["role"] == datasets.Value("string")
