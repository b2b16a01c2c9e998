"""The report of a finished run, its exit status, and what trackers get."""

import asyncio
import json
import threading
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from nemo_gym.cli.eval.run import _print_report
from nemo_gym.cli.shared import report as report_module
from nemo_gym.cli.shared.report import (
    Report,
    Trackers,
    metric_intervals,
    metrics_for_trackers,
    phase_line,
    print_report,
    read_entries,
    report_as_dict,
    resume_command,
)
from nemo_gym.cli.terminal.progress import Progress
from nemo_gym.errors import GymError, ServerUnreachable
from nemo_gym.rollouts.outcome import FailedRollout, Failure, Job, LimitedRollout, ScoredRollout
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.rollouts.refusals import EndpointRefused
from nemo_gym.wire.stored_rollout import RolloutKey

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


def make_report(
    target: Path, *, scored: int = 2, failed: int = 0, plan: PlanSummary | None = None, **more: Any
) -> Report:
    progress = Progress()
    progress.on_plan(plan or PlanSummary(total=scored + failed, to_run=scored + failed))
    for task in range(scored):
        progress(ScoredRollout(job(task), {"reward": task % 2}))
    for task in range(failed):
        progress(FailedRollout(job(task), Failure("timeout", "model", "not done\nwithin 3 s", "policy_model")))
    words = ["eval", "run", "--config", "my file.yaml"]
    return Report(target=target, progress=progress, words=words, seconds=2.0, **more)


def test_the_exit_status_reports_the_result(tmp_path: Path) -> None:
    """0 all scored, 1 something failed, 130 interrupted."""
    target = tmp_path / "x.jsonl"

    assert make_report(target).status == 0
    assert make_report(target, failed=1).status == 1
    assert make_report(target, failed=1, interrupted=True).status == 130
    assert make_report(target, plan=PlanSummary(total=5, finished=3, to_run=2)).status == 0
    assert make_report(target, plan=PlanSummary(total=5, finished=2, given_up=1, to_run=2)).status == 1
    assert make_report(target, plan=PlanSummary(total=9, to_run=9), stopped="tokens are spent").status == 1


def test_the_text_has_tally_scores_files_and_the_next_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a run is where people decide what to do."""
    target = tmp_path / "x.jsonl"
    target.touch()
    (tmp_path / "x_failures.jsonl").write_text("{}\n")

    print_report(make_report(target, failed=1, entries=[ENTRY]))

    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "timeout: policy_model: not done within 3 s"
    assert lines[2].startswith("2 scored · 1 failed (timeout 1) · 2.0 s (1.5/s)")
    assert lines[3].startswith("mean reward  0.5 [0.00")
    assert "  mean/reward      0.5  [0.25, 0.75]" in lines
    assert "  pass@1/accuracy  50   [25, 75]" in lines
    assert "  pass@1/other     20" in lines
    assert f"failures  {tmp_path / 'x_failures.jsonl'}" in lines
    assert "retry the failed  gym eval run --config 'my file.yaml' --resume" in lines
    assert lines[-2].startswith("profile           gym eval profile --inputs")
    assert lines[-1] == f"view              gym view {target}"


def test_json_has_the_same_facts_as_the_text(tmp_path: Path) -> None:
    """Programs need what people read."""
    target = tmp_path / "x.jsonl"
    target.touch()

    facts = json.loads(
        json.dumps(report_as_dict(make_report(target, failed=1, entries=[ENTRY], pages={"mlflow": "http://x"})))
    )

    assert (facts["exit_status"], facts["scored"], facts["failed"], facts["missing"]) == (1, 2, {"timeout": 1}, 1)
    assert facts["intervals_95"] == {"math_agent": {"mean/reward": [0.25, 0.75], "pass@1/accuracy": [25.0, 75.0]}}
    assert facts["next"]["retry the failed"].endswith("--resume")
    assert facts["files"] == {"rollouts": str(target)}
    assert facts["pages"] == {"mlflow": "http://x"}


def test_nothing_scored_is_not_a_mean_of_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An outage must never look like a bad model."""
    ended = make_report(tmp_path / "x.jsonl", scored=0, failed=3)

    print_report(ended)

    assert "mean reward  none: nothing was scored" in capsys.readouterr().out
    assert report_as_dict(ended)["mean_reward"] is None


def test_the_mean_of_a_resumed_run_includes_earlier_scores(tmp_path: Path) -> None:
    """The score is that of the run, not of its last hour."""
    target = tmp_path / "x.jsonl"
    records = [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0} for task in range(8)]
    records += [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 0.0} for task in (8, 9)]
    target.write_text("".join(json.dumps(record) + "\n" for record in records))

    mean = make_report(target, plan=PlanSummary(total=10, finished=8, to_run=2, resumed=True)).mean()

    assert mean is not None
    assert (mean.value, mean.count) == (0.8, 10)


def test_no_command_is_suggested_for_a_file_that_does_not_exist(tmp_path: Path) -> None:
    """A suggestion that fails is worse than none."""
    target = tmp_path / "x.jsonl"
    report = make_report(target)
    assert report.next_commands() == {}

    target.touch()

    assert set(report.next_commands()) == {"profile", "view"}


def test_a_run_that_was_stopped_can_be_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit or Ctrl-C must not cost the finished rollouts."""
    plan = PlanSummary(total=9, to_run=9)
    stopped = make_report(tmp_path / "x.jsonl", plan=plan, stopped="100 tokens are spent (max_total_tokens 100)")

    print_report(stopped)

    text = capsys.readouterr().out
    assert "2 scored · 7 not run" in text
    assert "stopped early: 100 tokens are spent" in text
    assert stopped.next_commands()["continue"].endswith("--resume")


def test_the_command_after_a_limit_allows_more(tmp_path: Path) -> None:
    """With the same limit the run would end at the same rollout."""
    limits = {"steps": 50, "tokens": 1000, "total": 300}
    spent = make_report(tmp_path / "x.jsonl", stopped="300 tokens are spent (max_total_tokens 300)", limits=limits)
    ended = make_report(tmp_path / "x.jsonl", limits=limits)
    ended.progress(LimitedRollout(job(5), "tokens"))

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
    assert resume_command(words) == expected


def test_a_command_without_effect_is_not_suggested(tmp_path: Path) -> None:
    """Rollouts without attempts left need one more attempt; failures that agents declare permanent need no command."""
    target = tmp_path / "x.jsonl"
    worn_out = make_report(target, failed=1, max_attempts=1).next_commands()
    hopeless = make_report(target)
    hopeless.progress(FailedRollout(job(7), Failure("bad_task", "agent", "no", "math_agent", retryable=False)))
    refused = make_report(target)
    refused.progress(FailedRollout(job(7), Failure("model_refused", "model", "400", "policy_model", retryable=False)))
    final = make_report(target, plan=PlanSummary(total=3, given_up=1, final=1, to_run=2))
    given_up = make_report(target, plan=PlanSummary(total=3, given_up=1, to_run=2)).next_commands()

    assert worn_out["try once more"] == "gym eval run --config 'my file.yaml' --max-attempts 2 --resume"
    assert hopeless.next_commands() == final.next_commands() == {}
    assert "--max-attempts 4" in refused.next_commands()["try once more"]
    assert "--max-attempts 4" in given_up["try once more"]


def test_the_limit_that_stopped_a_run_is_not_set_again() -> None:
    """The command to continue must get further than the one before."""
    words = ["eval", "run", "--max-total-tokens", "300", "-m", "x"]

    assert resume_command(words, without="--max-total-tokens") == "gym eval run -m x --resume"
    assert (
        resume_command(["eval", "run", "--max-total-tokens=300"], without="--max-total-tokens")
        == "gym eval run --resume"
    )
    assert resume_command(["eval", "--max-attempts", "1"], "--max-attempts", "2", without="--max-attempts") == (
        "gym eval --max-attempts 2 --resume"
    )


def test_an_interval_is_shown_only_for_the_number_it_belongs_to() -> None:
    """A server may call something else `accuracy`."""
    other = {**ENTRY, "key_metrics": {"mean/reward": 0.6, "mean/unknown": 0.5}}

    assert metric_intervals(other) == {}
    assert metric_intervals({**ENTRY, "scores": {}}) == {}


def test_no_metrics_file_means_no_metrics(tmp_path: Path) -> None:
    """Aggregation may be switched off."""
    assert read_entries(tmp_path / "x.jsonl") == []


def test_the_phases_of_a_rollout_fit_one_line() -> None:
    """It shows whether the model, a tool or the verifier is slow."""
    means = {"whole": 4.1, "queue": 0.0001, "model": 3.2, "tools": 0.71, "verify": 0.052, "agent": 0.1}

    assert phase_line(means) == "per rollout  4.1 s: model 3.2 s, tools 0.71 s, agent 0.1 s, verify 52 ms"
    assert phase_line({}) == ""
    assert phase_line({"whole": 0.0996}) == "per rollout  0.1 s"  # not 1e+02 ms


def test_metrics_carry_the_name_of_their_agent() -> None:
    """Two agents in one run must not overwrite each other."""
    entries = [
        {
            "agent_ref": {"name": "a"},
            "agent_metrics": {"mean/reward": 0.5, "x": 1},
            "key_metrics": {"mean/reward": 0.5},
        },
        {"agent_ref": {"name": "b"}, "agent_metrics": {"mean/reward": 0.7}, "key_metrics": {}},
    ]

    assert dict(metrics_for_trackers(entries)) == {
        "a/mean/reward": 0.5,
        "a/x": 1,
        "key_metrics/a/mean/reward": 0.5,
        "b/mean/reward": 0.7,
    }


async def test_a_run_without_trackers_exports_nothing(tmp_path: Path) -> None:
    """Most runs use no tracker."""
    trackers = Trackers(DictConfig({"policy_api_key": "x"}))

    assert await trackers.export(tmp_path / "x.jsonl", [], upload=True) == {}
    await trackers.close()


async def test_closing_does_not_wait_for_a_tracker_that_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C must end the command although a tracker does not answer."""
    release = threading.Event()
    monkeypatch.setattr(report_module, "OPEN_SECONDS", 0.05)
    monkeypatch.setattr(report_module, "setup_exporters", lambda _: release.wait(60))

    trackers = Trackers(DictConfig({}))
    await asyncio.wait_for(trackers.close(), 30)
    release.set()


def test_answers_whose_verification_failed_are_scored_again_without_the_model(tmp_path: Path) -> None:
    """A bug in verify() must not cost the tokens of a run: `--resume` alone would generate every answer anew."""
    target = tmp_path / "x.jsonl"
    report = make_report(target)
    words = ["eval", "run", "--environment", "mine", "-n", "3", "--model-type=m", "+mine.resources_servers.x.level=1"]
    report = replace(report, words=[*words, "+policy_api_key=k", "--output", str(target)])
    assert "score again" not in report.next_commands()

    report.progress(FailedRollout(job(7), Failure("verifier_error", "verify", "ZeroDivisionError", "mine")))

    assert report.next_commands()["score again"] == (
        "gym eval reverify --environment mine --model-type=m +mine.resources_servers.x.level=1 "
        f"--failed --rollouts {target} --output {tmp_path / 'x_reverified.jsonl'}"
    )


def test_the_command_after_the_maximum_cost_allows_more(tmp_path: Path) -> None:
    """With the same maximum the resumed run would start nothing."""
    spent = make_report(tmp_path / "x.jsonl", stopped="$0.12 are spent (max_total_cost 0.1)", limits={"cost": 0.1})

    assert spent.next_commands()["continue"].endswith("--max-cost 0.2 --resume")


def test_a_refusal_by_the_endpoint_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error at the end of the command says it with the fix; the same text above it is noise."""
    failure = Failure("model_refused", "model", "the endpoint answered 401", "policy_model", refusal_status=401)
    refused = make_report(tmp_path / "x.jsonl", problem=EndpointRefused("refuses the key (401)"))
    refused.progress(FailedRollout(job(7), failure))
    print_report(refused)
    print_report(replace(refused, problem=None))

    assert capsys.readouterr().out.count("the endpoint answered 401") == 1


@pytest.mark.parametrize(
    ("problem", "times"), [(None, 1), (ServerUnreachable("ended"), 1), (EndpointRefused("refuses the key (401)"), 0)]
)
def test_scripts_read_a_refusal_unless_the_error_of_the_run_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], problem: GymError | None, times: int
) -> None:
    """With --json no report names the cause, and the first failure was left for the end of the run."""
    failure = Failure("model_refused", "model", "the endpoint answered 401", "policy_model", refusal_status=401)
    refused = make_report(tmp_path / "x.jsonl", scored=0, problem=problem)
    refused.progress(FailedRollout(job(7), failure))

    _print_report(Namespace(json=True), refused)

    assert capsys.readouterr().err.count("the endpoint answered 401") == times
