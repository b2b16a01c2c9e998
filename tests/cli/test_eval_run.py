"""`gym eval run` from the shell: real servers, the scripted model, files on disk."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROWS = [(1, 1), (2, 3), (4, 4), (2, 2)]


def gym(*words: str, cwd: Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def model_file(folder: Path, *script: dict[str, Any]) -> str:
    """A configuration of the scripted model that answers with `script`."""
    block = {"policy_model": {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "script": script}}}}
    path = folder / "model.yaml"
    path.write_text(json.dumps(block))
    return str(path)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    lines = [{"responses_create_params": {"input": f"What is {a} + {b}?"}, "expected_answer": a + b} for a, b in ROWS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


ARITHMETIC = ("eval", "run", "--resources-server", "arithmetic", "-a", "arithmetic_simple_agent", "-o", "out.jsonl")


def test_a_run_scores_every_row_and_says_so(tmp_path: Path, rows: str) -> None:
    """The main job: rows in, scores and files out, exit status 0."""
    done = gym(
        *ARITHMETIC, "--config", model_file(tmp_path, {"text": "It is 4."}), "-i", rows, "--num-repeats", "2",
        "--json", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["scored"], result["failed"], result["mean_reward"]) == (8, {}, 0.25)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted((r["_ng_task_index"], r["_ng_rollout_index"]) for r in records) == [
        (task, repeat) for task in range(4) for repeat in range(2)
    ]
    assert result["metrics"]["arithmetic_simple_agent"]["mean/reward"] == 0.25


def test_a_model_that_fails_gives_failures_and_no_reward(tmp_path: Path, rows: str) -> None:
    """An outage must never look like a bad model."""
    fault = {"fault": {"kind": "status", "status": 500, "message": "out of order"}}

    done = gym(*ARITHMETIC, "--config", model_file(tmp_path, fault), "-i", rows, "--json", cwd=tmp_path)

    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["scored"] == 0
    assert result["mean_reward"] is None
    failures = [json.loads(line) for line in (tmp_path / "out_failures.jsonl").read_text().splitlines()]
    assert len(failures) == 4
    assert {failure["_ng_failure"]["whom"] for failure in failures} == {"policy_model"}
    assert not [failure for failure in failures if "reward" in failure]


def test_resume_runs_what_is_missing_and_nothing_else(tmp_path: Path, rows: str) -> None:
    """Finished rollouts are money already spent."""
    model = model_file(tmp_path, {"text": "It is 4."})
    first = gym(*ARITHMETIC, "--config", model, "-i", rows, "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    output = tmp_path / "out.jsonl"
    kept = output.read_text().splitlines()[:2]
    output.write_text("".join(f"{line}\n" for line in kept) + '{"torn')

    second = gym(*ARITHMETIC, "--config", model, "-i", rows, "--resume", "--json", cwd=tmp_path)

    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["scored"] == 2
    lines = output.read_text().splitlines()
    assert lines[:2] == kept
    assert sorted(json.loads(line)["_ng_task_index"] for line in lines) == [0, 1, 2, 3]


def test_an_interrupt_keeps_what_is_done_and_names_the_next_command(tmp_path: Path, rows: str) -> None:
    """Ctrl-C is how people stop things; it must cost nothing that was earned."""
    stall = {"fault": {"kind": "stall", "seconds": 600}}
    command = [sys.executable, "-m", "nemo_gym.cli.main", *ARITHMETIC, "-i", rows]
    process = subprocess.Popen(
        [*command, "--config", model_file(tmp_path, stall)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    materialized = tmp_path / "out_materialized_inputs.jsonl"
    deadline = time.monotonic() + 60
    while not materialized.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == 130, stderr
    assert "--resume" in stdout


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("eval", "rum"), 2, "`rum` is not a command of gym. Did you mean `run`?"),
        (("evl",), 2, "`evl` is not a group of gym. Did you mean `eval`?"),
        (("eval", "run", "--environmnt", "x"), 2, "Did you mean `--environment`?"),
        (("eval", "run", "--environment", "arithmetik"), 1, "try: arithmetic"),
        (("eval", "run"), 1, "there is no server instance to start"),
        (("env", "validate", "+config_paths=nope.yaml"), 1, "config_paths"),
        (("env", "validate", "--config", "nope.yaml"), 1, "nope.yaml"),
    ],
)
def test_mistakes_get_one_clear_answer(tmp_path: Path, words: tuple[str, ...], status: int, message: str) -> None:
    """Where, what, and what to do; never a traceback."""
    done = gym(*words, cwd=tmp_path)

    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_misspelt_field_is_shown_where_it_stands(tmp_path: Path) -> None:
    """The server's own config class knows its fields; a typo must not be found by a puzzled user at run time."""
    config = tmp_path / "agent.yaml"
    lines = [
        "config_paths: [resources_servers/arithmetic/configs/arithmetic.yaml]",
        "arithmetic_simple_agent:",
        "  responses_api_agents:",
        "    simple_agent:",
        "      max_step: 3",
        "      model_server: {type: responses_api_models, name: policy_model}",
    ]
    config.write_text("\n".join(lines))

    done = gym(
        "env",
        "validate",
        "--config",
        str(config),
        "~arithmetic_simple_agent.responses_api_agents.simple_agent.max_steps",
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert "agent.yaml:5:7: 'max_step' is not a field of SimpleAgentConfig — did you mean 'max_steps'?" in done.stderr


def test_a_value_of_the_wrong_type_is_an_error_with_its_place(tmp_path: Path) -> None:
    """Found before anything is started."""
    config = tmp_path / "agent.yaml"
    config.write_text(
        "config_paths: [resources_servers/arithmetic/configs/arithmetic.yaml]\n"
        "arithmetic_simple_agent:\n  responses_api_agents:\n    simple_agent:\n      max_steps: many\n"
    )

    done = gym("env", "validate", "--config", str(config), cwd=tmp_path)

    assert done.returncode == 1
    assert "agent.yaml:5:" in done.stderr
    assert "max_steps" in done.stderr


def test_validate_and_resolve_start_nothing_and_hide_secrets(tmp_path: Path) -> None:
    """A pre-flight check that is safe to paste into an issue."""
    words = ("--environment", "arithmetic", "--model-type", "openai_model")
    model = ("--model-url", "http://127.0.0.1:1/v1", "--model-api-key", "sk-very-secret", "-m", "m")

    valid = gym("env", "validate", *words, "--json", cwd=tmp_path)
    shown = gym("env", "resolve", *words, *model, cwd=tmp_path)

    assert json.loads(valid.stdout)["valid"] is True
    assert shown.returncode == 0, shown.stderr
    assert "sk-very-secret" not in shown.stdout + shown.stderr
    assert not list(tmp_path.iterdir())


def test_help_and_version_work_without_a_configuration(tmp_path: Path) -> None:
    """The first two things anybody types."""
    assert "eval" in gym("--help", cwd=tmp_path).stdout
    assert "--num-repeats" in gym("eval", "run", "--help", cwd=tmp_path).stdout
    assert gym("--version", cwd=tmp_path).stdout.startswith("nemo-gym")
