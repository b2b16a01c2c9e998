"""ATIF trajectories: export, import, and verification of what was imported."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.data.atif_export import ExportAtifConfig, export_trajectories, trajectory_of
from nemo_gym.data.atif_import import read_manifest, response_of
from nemo_gym.errors import ConfigError
from nemo_gym.wire.atif import AtifError, AtifTrajectory, parse_strict_json
from tests.cli.eval.test_run import gym, lines_of, model_file

CALL = {"type": "function_call", "name": "weather", "call_id": "c1", "arguments": '{"city": "Oslo"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "grey"}


def message(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


PARAMS = {"instructions": "Be brief.", "input": "What to wear?", "tools": [{"name": "weather"}]}


def record(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "agent_ref": {"name": "mine"},
        "reward": 1.0,
        "responses_create_params": {
            "instructions": "Be brief.",
            "input": "What to wear?",
            "tools": [{"name": "weather"}],
        },
        "response": {
            "model": "small",
            "output": list(output),
            "usage": {"input_tokens": 30, "output_tokens": 9, "total_tokens": 39},
        },
        **fields,
    }


REASONING = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Look."}]}
ROLLOUT = record(REASONING, CALL, OUTPUT, message("A coat."), _ng_turns=[[2, 10, 2, 5, 3], [1, 20, 0, 4, 0]])


def test_a_rollout_is_a_trajectory_with_its_turns_calls_and_tokens() -> None:
    """Other tools must see what the model saw, did and used, turn by turn."""
    trajectory = trajectory_of(ROLLOUT, "run")

    assert [step.source for step in trajectory.steps] == ["system", "user", "agent", "agent"]
    step = trajectory.steps[2]
    assert (step.reasoning_content, step.tool_calls[0].arguments) == ("Look.", {"city": "Oslo"})
    assert (step.observation.results[0].source_call_id, step.observation.results[0].content) == ("c1", "grey")
    assert (step.metrics.prompt_tokens, step.metrics.cached_tokens, step.metrics.extra) == (
        10,
        2,
        {"reasoning_tokens": 3},
    )
    assert (trajectory.final_metrics.total_prompt_tokens, trajectory.final_metrics.total_steps) == (30, 4)
    assert (trajectory.trajectory_id, trajectory.agent.name) == ("run:3:1", "mine")


def test_two_turns_without_output_between_them_stay_two_steps() -> None:
    """A turn of reasoning only is a model call, which a reader must be able to count."""
    rollout = record(REASONING, message("A coat."), _ng_turns=[[1, 1, 0, 1, 0], [1, 2, 0, 1, 0]])

    assert [step.source for step in trajectory_of(rollout, "run").steps][2:] == ["agent", "agent"]


def test_sub_agents_are_trajectories_of_the_call_that_started_them() -> None:
    """Their model calls are part of the rollout."""
    conversation = [{"role": "user", "type": "message", "content": "Oslo?"}, message("grey")]
    run = {
        "kind": "agent_invocation",
        "invocation_id": "a-1",
        "spawned_by_tool_call_id": "c1",
        "conversation": conversation,
    }
    root = {"kind": "agent_invocation", "invocation_id": "root", "conversation": conversation}

    trajectory = trajectory_of(ROLLOUT | {"ng_agent_observations": {"source": "x", "records": [root, run]}}, "run")

    assert [each.trajectory_id for each in trajectory.subagent_trajectories] == ["run:3:1:a-1"]
    assert trajectory.steps[2].observation.results[0].subagent_trajectory_ref[0].trajectory_id == "run:3:1:a-1"


def test_a_response_survives_export_and_import() -> None:
    """A verifier must judge the same answer, including calls with arguments that are no JSON."""
    bad = {**CALL, "call_id": "c2", "arguments": "{city"}
    rollout = record(REASONING, CALL, bad, OUTPUT, {**OUTPUT, "call_id": "c2"}, message("A coat."))

    output = response_of(trajectory_of(rollout, "run"), "digest")["output"]

    assert [item["type"] for item in output] == [
        "reasoning", "function_call", "function_call", "function_call_output", "function_call_output", "message",
    ]  # fmt: skip
    assert [item["arguments"] for item in output[1:3]] == ['{"city":"Oslo"}', "{city"]
    assert output[-1]["content"][0]["text"] == "A coat."


def test_an_image_is_listed_and_nothing_is_written(tmp_path: Path) -> None:
    """Half an export looks like a whole one."""
    image = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}
    path = tmp_path / "rollouts.jsonl"
    bad = {**record(message("x")), "_ng_task_index": 4, "responses_create_params": {"input": [image]}}
    path.write_text("".join(json.dumps(row) + "\n" for row in (ROLLOUT, bad)))
    config = ExportAtifConfig(rollouts_jsonl_fpath=str(path), output_dirpath=str(tmp_path / "out"))

    with pytest.raises(DataError, match="task 4, rollout 1: a content has parts that are no text"):
        export_trajectories(config)

    assert [each.name for each in tmp_path.iterdir()] == ["rollouts.jsonl"]


def test_an_existing_folder_is_never_replaced(tmp_path: Path) -> None:
    """It may be the only copy of another run."""
    config = ExportAtifConfig(rollouts_jsonl_fpath="x", output_dirpath=str(tmp_path))

    with pytest.raises(ConfigError, match="the folder exists"):
        export_trajectories(config)


def step(**fields: Any) -> dict[str, Any]:
    return {"step_id": 1, "source": "agent", "message": "4", **fields}


def trajectory(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"schema_version": "ATIF-v1.7", "agent": {"name": "a", "version": "1"}, "steps": list(steps), **fields}


TOOL_CALL = {"tool_call_id": "c", "function_name": "f", "arguments": {}}
RESULT = {"source_call_id": "c", "content": "x"}
LOST = {"results": [{"content": "x"}]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (trajectory(step(step_id=2)), "does not count from 1"),
        (trajectory(step(colour="red")), "Extra inputs"),
        (trajectory(step(step_id="1")), "valid integer"),
        (trajectory(step(observation={"results": [{"source_call_id": "c"}]})), "has no call in this step"),
        (trajectory(step(llm_call_count=0, reasoning_content="x")), "without a model call"),
        (trajectory(step(source="user", model_name="m")), "in a step of the user"),
        (trajectory(step(timestamp="yesterday")), "isoformat"),
        (trajectory(step(), final_metrics={"total_steps": 2}), "total_steps is 2"),
        (trajectory(step(llm_call_count=2)), "stands for 2 model calls"),
        (trajectory(step(is_copied_context=True)), "copied from another context"),
        (trajectory(step(tool_calls=[TOOL_CALL])), "has no result"),
        (trajectory(step(observation={"results": [{"content": "x"}]})), "belongs to no call"),
        (trajectory(step(), step(step_id=2, source="system", observation=LOST)), "step 2 has a result that belongs"),
        (trajectory(step(tool_calls=[TOOL_CALL], observation={"results": [RESULT, RESULT]})), "two for one call"),
        (trajectory(step(tool_calls=[TOOL_CALL], observation={"results": [RESULT, {}]})), "belongs to no call"),
        (trajectory(step(message=[{"type": "image"}])), "has an image"),
        (trajectory(step(source="user")), "no step of the agent"),
        (trajectory(step(), continued_trajectory_ref="b.json"), "continued in another file"),
        (trajectory(step(), extra={"nemo_gym": {"source": {"task_index": 5, "rollout_index": 0}}}), "another task"),
    ],
)
def test_what_cannot_be_verified_is_refused(content: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """A trajectory that is read in part would be scored for another answer."""
    with pytest.raises(AtifError, match=problem):
        read_one(tmp_path, json.dumps(content))


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', '{"a": 1e-999}', "{", "[" * 100_000]
)
def test_json_that_readers_disagree_about_is_refused(text: str) -> None:
    """Two tools would read two trajectories from one file."""
    with pytest.raises(AtifError):
        parse_strict_json(text.encode())


def read_one(folder: Path, text: str, **fields: Any) -> list[dict[str, Any]]:
    (folder / "t.json").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    line = {
        "trajectory_path": "t.json",
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "expected_sha256": digest,
        **fields,
    }
    (folder / "manifest.jsonl").write_text(json.dumps(line) + "\n")
    return list(read_manifest(folder / "manifest.jsonl", {(0, 0): {"name": "mine"}}))


def test_only_files_below_the_manifest_are_read(tmp_path: Path) -> None:
    """A manifest comes from elsewhere; it must not name a pipe, a folder or any file of the machine."""
    folder = tmp_path / "atif"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "outside.json").write_text(json.dumps(trajectory(step())))
    (folder / "link.json").symlink_to(tmp_path / "outside.json")
    os.mkfifo(folder / "pipe.json")

    for name in ("../outside.json", str(tmp_path / "outside.json"), "link.json"):
        with pytest.raises(AtifError, match="outside the folder of the manifest"):
            read_one(folder, "{}", trajectory_path=name)
    for name in ("sub", "pipe.json", "missing.json"):
        with pytest.raises(AtifError, match="is no file"):
            read_one(folder, "{}", trajectory_path=name)


def test_a_changed_file_and_an_unknown_task_are_refused(tmp_path: Path) -> None:
    """The verdict must be that of the trajectory that the manifest names."""
    text = json.dumps(trajectory(step()))
    with pytest.raises(AtifError, match="hash differs"):
        read_one(tmp_path, text, expected_sha256="0" * 64)
    with pytest.raises(AtifError, match="belongs to no input row"):
        read_one(tmp_path, text, _ng_task_index=7)

    (row,) = read_one(tmp_path, text)
    assert AtifTrajectory.model_validate(json.loads(text)).steps[0].message == "4"
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(manifest.read_text() * 2)
    with pytest.raises(AtifError, match=r"manifest.jsonl:2: .* occurs twice"):
        list(read_manifest(manifest, {(0, 0): None}))
    assert row["agent_ref"] == {"name": "mine"}


def test_an_exported_run_is_verified_again_from_its_trajectories(tmp_path: Path) -> None:
    """The way of another tool's run: trajectories in, scores out."""
    run = ("eval", "run", "--environment", "arithmetic", "--config", model_file(tmp_path, {"text": "It is 4."}))
    first = gym(*run, "--limit", "3", "-o", "run/out.jsonl", cwd=tmp_path)
    assert first.returncode == 0, first.stderr

    exported = gym("eval", "export", "--format", "atif", "--rollouts", "run/out.jsonl", "-o", "atif", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    words = ("--input-format", "atif", "--atif-manifest", "atif/manifest.jsonl", "--environment", "arithmetic")
    inputs = "run/out_materialized_inputs.jsonl"
    done = gym("eval", "reverify", *words, "--inputs", inputs, "-o", "again/out.jsonl", cwd=tmp_path)
    refused = gym("eval", "reverify", *words, "--inputs", inputs, "-o", "b.jsonl", "--force", cwd=tmp_path)
    imported = tmp_path / "again" / "out_trajectories.jsonl"
    before_refusal = imported.stat().st_mtime_ns, imported.stat().st_ino
    again = gym("eval", "reverify", *words, "--inputs", inputs, "-o", "again/out.jsonl", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    before, after = lines_of(tmp_path / "run" / "out.jsonl"), lines_of(tmp_path / "again" / "out.jsonl")
    rewards = [{row["_ng_task_index"]: row["reward"] for row in rows} for rows in (before, after)]
    assert rewards[0] == rewards[1] and len(after) == 3
    assert {row["_ng_atif_provenance"]["projection_status"] for row in after} == {"complete"}
    assert again.returncode != 0 and "the output already exists" in again.stderr
    assert (imported.stat().st_mtime_ns, imported.stat().st_ino) == before_refusal
    assert (refused.returncode, "trajectories exclude --force" in refused.stderr) == (2, True)
