"""What is said when a run has ended, and the exit status that goes with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.eval_report import Report, as_json, as_text, intervals, read_entries, resumed, time_line
from nemo_gym.cli.progress import Progress
from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.outcome import Failed, Failure, Limit, Scored
from nemo_gym.rollouts.planned import Planned

ENTRY = {
    "agent_ref": {"name": "math_agent"},
    "agent_metrics": {},
    "key_metrics": {"mean/reward": 0.5, "pass@1/accuracy": 50.0, "pass@1/other": 20.0, "note": "text"},
    "group_level_metrics": [],
    "scores": {"reward": {"mean": 0.5, "ci95": [0.25, 0.75], "pass@k": {"1": {"mean": 0.5, "ci95": [0.25, 0.75]}}}},
}


def job(task: int) -> Job:
    row = {"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "math_agent"}}
    return Job(RolloutKey(task, 0), row)


def report(target: Path, *, scored: int = 2, failed: int = 0, plan: Planned | None = None, **more: Any) -> Report:
    progress = Progress()
    progress.on_plan(plan or Planned(total=scored + failed, to_run=scored + failed))
    for task in range(scored):
        progress(Scored(job(task), {"reward": task % 2}))
    for task in range(failed):
        progress(Failed(job(task), Failure("timeout", "model", "not done\nwithin 3 s", "policy_model")))
    words = ["eval", "run", "--config", "my file.yaml"]
    commands = frozenset({"eval profile"})
    return Report(target=target, progress=progress, words=words, commands=commands, seconds=2.0, **more)


def test_the_exit_status_says_how_it_went(tmp_path: Path) -> None:
    """0 all scored, 1 something failed, 130 interrupted."""
    target = tmp_path / "x.jsonl"

    assert report(target).status == 0
    assert report(target, failed=1).status == 1
    assert report(target, failed=1, interrupted=True).status == 130
    assert report(target, plan=Planned(total=5, finished=3, to_run=2)).status == 0
    assert report(target, plan=Planned(total=5, finished=2, given_up=1, to_run=2)).status == 1
    assert report(target, plan=Planned(total=9, to_run=9), stopped="tokens are spent").status == 1


def test_people_read_tally_scores_files_and_what_to_type_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a run is where people decide what to do."""
    target = tmp_path / "x.jsonl"
    target.touch()
    (tmp_path / "x_failures.jsonl").write_text("{}\n")

    as_text(report(target, failed=1, entries=[ENTRY]))

    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "timeout: policy_model: not done within 3 s"
    assert lines[2].startswith("2 scored · 1 failed (timeout 1) · 2.0 s (1.5/s)")
    assert lines[3].startswith("mean reward  0.5000 ±")
    assert "  mean/reward      0.5  [0.25, 0.75]" in lines
    assert "  pass@1/accuracy  50   [25, 75]" in lines
    assert "  pass@1/other     20" in lines
    assert f"failures  {tmp_path / 'x_failures.jsonl'}" in lines
    assert "retry the failed  gym eval run --config 'my file.yaml' --resume" in lines
    assert lines[-1].startswith("profile           gym eval profile --inputs")


def test_programs_read_the_same_as_one_object(tmp_path: Path) -> None:
    """Nothing that people are told is kept from programs."""
    target = tmp_path / "x.jsonl"
    target.touch()

    told = json.loads(json.dumps(as_json(report(target, failed=1, entries=[ENTRY], pages={"mlflow": "http://x"}))))

    assert (told["exit_status"], told["scored"], told["failed"], told["missing"]) == (1, 2, {"timeout": 1}, 1)
    assert told["intervals_95"] == {"math_agent": {"mean/reward": [0.25, 0.75], "pass@1/accuracy": [25.0, 75.0]}}
    assert told["next"]["retry the failed"].endswith("--resume")
    assert told["files"] == {"rollouts": str(target)}
    assert told["pages"] == {"mlflow": "http://x"}


def test_nothing_scored_is_not_a_mean_of_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An outage must never look like a bad model."""
    ended = report(tmp_path / "x.jsonl", scored=0, failed=3)

    as_text(ended)

    assert "mean reward  none: nothing was scored" in capsys.readouterr().out
    assert as_json(ended)["mean_reward"] is None


def test_the_mean_of_a_resumed_run_includes_what_was_scored_before(tmp_path: Path) -> None:
    """The score is that of the run, not of its last hour."""
    target = tmp_path / "x.jsonl"
    records = [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0} for task in range(8)]
    records += [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 0.0} for task in (8, 9)]
    target.write_text("".join(json.dumps(record) + "\n" for record in records))

    mean = report(target, plan=Planned(total=10, finished=8, to_run=2, resumed=True)).mean()

    assert mean is not None
    assert (mean.value, mean.count) == (0.8, 10)


def test_commands_that_do_not_exist_are_not_suggested(tmp_path: Path) -> None:
    """A hint that fails is worse than none."""
    target = tmp_path / "x.jsonl"
    target.touch()
    ended = report(target)

    assert set(ended.next_commands()) == {"profile"}


def test_a_run_that_was_stopped_can_be_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a limit, or by Ctrl-C."""
    plan = Planned(total=9, to_run=9)
    stopped = report(tmp_path / "x.jsonl", plan=plan, stopped="100 tokens are spent (max_total_tokens 100)")

    as_text(stopped)

    said = capsys.readouterr().out
    assert "2 scored · 7 not run" in said
    assert "stopped early: 100 tokens are spent" in said
    assert stopped.next_commands()["continue"].endswith("--resume")


def test_the_command_after_a_limit_allows_more(tmp_path: Path) -> None:
    """The same command would end at the same place; the one that is shown gets further."""
    limits = {"steps": 50, "tokens": 1000, "total": 300}
    spent = report(tmp_path / "x.jsonl", stopped="300 tokens are spent (max_total_tokens 300)", limits=limits)
    ended = report(tmp_path / "x.jsonl", limits=limits)
    ended.progress(Limit(job(5), "tokens"))

    assert spent.next_commands()["continue"].endswith("--max-total-tokens 600 --resume")
    assert ended.next_commands()["allow more"].endswith("--max-rollout-tokens 2000 --resume")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["eval", "run", "--resume"], "gym eval run --resume"),
        (["eval", "run", "--overwrite", "-o", "a b"], "gym eval run -o 'a b' --resume"),
        (["eval", "run", "--model-api-key", "sk-1", "-m", "x"], "gym eval run --model-api-key '****' -m x --resume"),
        (["eval", "run", "--model-api-key=sk-1"], "gym eval run '--model-api-key=****' --resume"),
        (["eval", "run", "+policy_api_key=sk-1"], "gym eval run '+policy_api_key=****' --resume"),
        (["eval", "run", "++a.b.openai_api_key=sk"], "gym eval run '++a.b.openai_api_key=****' --resume"),
        (["eval", "run", "--max-output-tokens=5"], "gym eval run --max-output-tokens=5 --resume"),
    ],
)
def test_the_command_to_continue_shows_no_secret(words: list[str], expected: str) -> None:
    """It is copied into chats and tickets."""
    assert resumed(words) == expected


def test_a_command_that_would_do_nothing_is_not_suggested(tmp_path: Path) -> None:
    """Rollouts that were tried as often as allowed need another attempt; what cannot be mended needs no command."""
    target = tmp_path / "x.jsonl"
    worn_out = report(target, failed=1, max_attempts=1).next_commands()
    hopeless = report(target)
    hopeless.progress(Failed(job(7), Failure("model_refused", "model", "401", "policy_model", retryable=False)))
    given_up = report(target, plan=Planned(total=3, given_up=1, to_run=2)).next_commands()

    assert worn_out["try once more"] == "gym eval run --config 'my file.yaml' --max-attempts 2 --resume"
    assert hopeless.next_commands() == {}
    assert "--max-attempts 4" in given_up["try once more"]


def test_the_limit_that_stopped_a_run_is_not_set_again() -> None:
    """The command to continue must get further than the last one."""
    words = ["eval", "run", "--max-total-tokens", "300", "-m", "x"]

    assert resumed(words, without="--max-total-tokens") == "gym eval run -m x --resume"
    assert resumed(["eval", "run", "--max-total-tokens=300"], without="--max-total-tokens") == "gym eval run --resume"
    assert resumed(["eval", "--max-attempts", "1"], "--max-attempts", "2", without="--max-attempts") == (
        "gym eval --max-attempts 2 --resume"
    )


def test_an_interval_is_shown_only_for_the_number_it_belongs_to() -> None:
    """A server may call something else `accuracy`."""
    other = {**ENTRY, "key_metrics": {"mean/reward": 0.6, "mean/unknown": 0.5}}

    assert intervals(other) == {}
    assert intervals({**ENTRY, "scores": {}}) == {}


def test_no_metrics_file_means_no_metrics(tmp_path: Path) -> None:
    """Aggregation may be switched off."""
    assert read_entries(tmp_path / "x.jsonl") == []


def test_the_time_of_a_rollout_is_told_in_one_line() -> None:
    """Whether to look at the model, a tool or the verifier; what took no time is no news."""
    means = {"whole": 4.1, "queue": 0.0001, "model": 3.2, "tools": 0.71, "verify": 0.052, "agent": 0.1}

    assert time_line(means) == "per rollout  4.1 s: model 3.2 s, tools 0.71 s, agent 0.1 s, verify 52 ms"
    assert time_line({}) == ""
