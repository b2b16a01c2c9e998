"""`gym eval aggregate`, `profile`, `prepare` and `reverify` as a person types them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.main import main
from nemo_gym.rollouts.run_identity import Identity, describe_planned_rows, write_identity

GYM = (sys.executable, "-m", "nemo_gym.cli.main")
Rows = Sequence[dict[str, Any]]
AGENT = "arithmetic_simple_agent"


def record(task: int, rollout: int, reward: float, **fields: Any) -> dict[str, Any]:
    place = {"_ng_task_index": task, "_ng_rollout_index": rollout}
    return {**place, "agent_ref": {"name": AGENT}, "reward": reward, **fields}


RECORDS = [record(t, r, float(t < 2 or r), kind="even" if t % 2 == 0 else "odd") for t in range(4) for r in range(2)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", "")
    return tmp_path


def write(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a command with --json and returns its result."""

    def run(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def gym(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "NEMO_GYM_EXTRA_ROOTS": ""}
    return subprocess.run([*GYM, *words], cwd=cwd, capture_output=True, text=True, timeout=120, check=False, env=env)


def test_one_file_is_scored_where_it_is(here: Path, run_json: Callable[..., Any]) -> None:
    """The short form needs no output, no copy and no server."""
    write(here / "run.jsonl", RECORDS)
    write(here / "run_failures.jsonl", [record(9, 0, 0.0, _ng_failure_class="timeout")])

    result = run_json("eval", "aggregate", "-i", "run.jsonl")

    assert result["metrics"] == "run_aggregate_metrics.json"
    (agent,) = result["agents"]
    assert agent["key_metrics"] == {"mean/reward": 0.75}
    assert agent["scores"]["reward"]["pass^k"]["2"]["mean"] == 0.5
    assert agent["scores"]["reward"]["failures_as_zero"]["mean"] == pytest.approx(6 / 9)
    assert agent["attrition"] == {"scored": 8, "failed": 1, "failed_by_kind": {"timeout": 1}}
    (entry,) = json.loads((here / "run_aggregate_metrics.json").read_text())
    assert list(entry)[:4] == ["agent_ref", "agent_metrics", "key_metrics", "group_level_metrics"]
    assert sorted(path.name for path in here.iterdir()) == [
        "run.jsonl",
        "run_aggregate_metrics.json",
        "run_failures.jsonl",
    ]


def test_shards_are_merged_in_order_and_scored_together(here: Path, run_json: Callable[..., Any]) -> None:
    """A run on ten machines ends as one file with one score."""
    write(here / "shards/b.jsonl", RECORDS[:3])
    write(here / "shards/a.jsonl", RECORDS[3:])

    result = run_json("eval", "aggregate", "-i", "shards/*.jsonl", "-o", "all.jsonl")

    merged = [json.loads(line) for line in (here / "all.jsonl").read_text().splitlines()]
    assert merged == RECORDS
    assert result["agents"][0]["scores"]["reward"]["num_rollouts"] == 8
    assert result["rollouts"] == "all.jsonl"


def test_merging_can_be_disabled(here: Path, run_json: Callable[..., Any]) -> None:
    """Large files need not be copied to get a score."""
    write(here / "shards/a.jsonl", RECORDS)

    run_json("eval", "aggregate", "-i", "shards/*.jsonl", "-o", "all.jsonl", "+merge_shards=false")

    assert not (here / "all.jsonl").exists()
    assert (here / "all_aggregate_metrics.json").exists()


def test_parts_of_the_data_have_their_own_scores(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Subsets show where a model is weak."""
    write(here / "run.jsonl", RECORDS)

    assert main(["eval", "aggregate", "-i", "run.jsonl", "--by", "kind"]) == 0

    shown = capsys.readouterr().out
    assert f"{AGENT}: 8 rollouts scored" in shown
    assert "95 % interval" in shown
    assert "\n  even\n" in shown and "\n  odd\n" in shown


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["-i", "*.jsonl"], 2, "2 files match"),
        (["-i", "none/*.jsonl"], 1, "no rollouts match 'none/*.jsonl'"),
        ([], 2, "--input-glob (or +input_glob=…) is missing"),
        (["-i", "run.jsonl", "--by", "kidn"], 1, "try: kind"),
        (["-i", "*.jsonl", "-o", "all.jsonl"], 1, "rollout 0 of task 0 occurs twice"),
        (["-i", "empty.jsonl.txt"], 1, "contains no rollouts"),
        (["-i", "bad.txt"], 1, "bad.txt:1: this line is not a rollout"),
        (["-i", "run.jsonl", "-o", "run.jsonl/x.jsonl"], 3, "run.jsonl: File exists"),
        (["-i", "odd.txt"], 1, "odd_failures.jsonl: a failure has no rollout key"),
    ],
)
def test_files_that_cannot_be_scored_are_one_clear_error(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, message: str
) -> None:
    """A wrong score must not be written."""
    write(here / "run.jsonl", RECORDS)
    write(here / "copy.jsonl", RECORDS)
    (here / "empty.jsonl.txt").write_text("")
    (here / "bad.txt").write_text("[1]\n")
    write(here / "odd.txt", RECORDS)
    write(here / "odd_failures.jsonl", [{"_ng_failure_class": "timeout"}])

    assert main(["eval", "aggregate", *words]) == status

    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out
    assert not list(here.glob("*_aggregate_metrics.json"))
    assert not (here / "all.jsonl").exists()


def test_a_profile_is_written_beside_the_rollouts_and_summed_up(here: Path, run_json: Callable[..., Any]) -> None:
    """Users name only the rollouts."""
    write(here / "run.jsonl", RECORDS)
    write(here / "run_materialized_inputs.jsonl", [{**one, "question": "?"} for one in RECORDS])

    result = run_json("eval", "profile", "--rollouts", "run.jsonl")

    assert result["summary"]["completion_pct"] == 100.0
    assert result["spread"] == {
        "num_tasks": 4,
        "rewards_differ": 2,
        "all_rewards_equal": 2,
        "never_solved": 0,
        "always_solved": 2,
    }
    lines = [json.loads(line) for line in (here / "run_reward_profiling.jsonl").read_text().splitlines()]
    assert [line["mean/reward"] for line in lines] == [1.0, 1.0, 0.5, 0.5]
    assert lines[0]["sample"]["question"] == "?"
    (agent,) = json.loads((here / "run_agent_metrics.json").read_text())
    assert agent["agent_ref"] == {"name": AGENT}


def test_an_incomplete_run_is_profiled_only_with_allow_partial(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile of half the data looks like a profile of all of it."""
    write(here / "run.jsonl", RECORDS[:-1])
    write(here / "run_materialized_inputs.jsonl", RECORDS)

    assert main(["eval", "profile", "--rollouts", "run.jsonl"]) == 1
    assert "1 of 8 rollouts are missing or failed: 3:1" in capsys.readouterr().err
    assert not (here / "run_reward_profiling.jsonl").exists()

    assert main(["eval", "profile", "--rollouts", "run.jsonl", "--allow-partial"]) == 0
    shown = capsys.readouterr().out
    assert "rollouts  8         7         1        0" in shown
    assert "87.5 % of the rollouts exist; 1 tasks have only some of their rollouts" in shown


def test_profile_without_rollouts_names_the_flag(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The inputs follow from the rollouts, so only one flag is missing."""
    assert main(["eval", "profile"]) == 2

    assert "--rollouts (or +rollouts_jsonl_fpath=…) is missing" in capsys.readouterr().err


def test_both_benchmarks_are_prepared_offline(here: Path, run_json: Callable[..., Any]) -> None:
    """The first thing a new user can do without a key or a network."""
    for name, rows in (("arithmetic_suite", 180), ("general_knowledge", 60)):
        (prepared,) = run_json("eval", "prepare", "--benchmark", name)["prepared"]

        assert (prepared["name"], prepared["rows"]) == (name, rows)


def test_a_benchmark_that_does_not_exist_gets_the_nearest_that_does(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo is the most common mistake."""
    assert main(["eval", "prepare", "--benchmark", "aritmetic_suite"]) != 0

    assert "arithmetic_suite" in capsys.readouterr().err


def arithmetic_run(folder: Path) -> None:
    """A stored run: two sums, the second reply wrong, the first verdict wrong."""
    text_part = {"type": "output_text", "text": "It is 4.", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text_part]}
    fixed = {"created_at": 0.0, "model": "m", "object": "response", "tools": [], "tool_choice": "auto"}
    response = {"id": "r", "output": [message], "parallel_tool_calls": True, **fixed}
    inputs = [
        {**record(n, 0, 0.0), "responses_create_params": {"input": "?"}, "expected_answer": answer}
        for n, answer in enumerate((4, 5))
    ]
    for one in inputs:
        del one["reward"]
    write(folder / "run_materialized_inputs.jsonl", inputs)
    write(folder / "run.jsonl", [{**one, "response": response, "extracted_answer": 4, "reward": 0.5} for one in inputs])


def test_reverify_starts_only_the_verifier_and_stops_it(tmp_path: Path) -> None:
    """No model is needed, and the verdicts come from the current verifier."""
    arithmetic_run(tmp_path)

    done = gym(
        "eval", "reverify", "--resources-server", "arithmetic", "--rollouts", "run.jsonl", "-o", "new.jsonl", "--json",
        cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["scored"], result["failed"]) == (2, {})
    assert result["agents"][0]["key_metrics"]["mean/reward"] == 0.5
    rows = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert {row["_ng_task_index"]: row["reward"] for row in rows} == {0: 1.0, 1: 0.0}


@pytest.mark.parametrize(
    "command",
    [
        "aggregate -i run.jsonl",
        "profile --rollouts run.jsonl --allow-partial",
        "reverify --resources-server arithmetic --rollouts run.jsonl -o new.jsonl --limit 1",
    ],
)
def test_planned_rows_that_were_cut_are_one_clear_error(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """What is left of a run must not look like the whole run."""
    arithmetic_run(here)
    inputs = here / "run_materialized_inputs.jsonl"
    identity = Identity(rows="", plan={}, servers={}, code={}, planned=describe_planned_rows(inputs))
    write_identity(here / "run_run.json", identity)
    for path in (inputs, here / "run.jsonl"):
        path.write_text(path.read_text().splitlines(keepends=True)[0])

    assert main(["eval", *command.split()]) != 0

    assert "run_materialized_inputs.jsonl: the planned rows were damaged" in (error := capsys.readouterr().err)
    assert "1 of 2 rows are left" in error
    assert not (here / "new.jsonl").exists()


def test_aggregate_starts_a_server_with_custom_metrics(tmp_path: Path) -> None:
    """Only the server that computes metrics starts, not the model and the agent."""
    arithmetic_run(tmp_path)

    done = gym("eval", "aggregate", "-i", "run.jsonl", "--resources-server", "arithmetic", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    (agent,) = json.loads(done.stdout)["agents"]
    assert agent["key_metrics"]["pass@1/accuracy"] == 50.0
    assert agent["scores"]["reward"]["mean"] == 0.5
