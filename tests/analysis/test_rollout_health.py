"""Run health: each check finds its fault, a lack of evidence is no health, and nothing is concluded from rewards."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.health_checks import CHECK_IDS, ROW_CHECKS
from nemo_gym.analysis.rollout_health import (
    HealthCheckResult,
    format_health_report,
    health_check_run_dir,
    normalize_ignored_checks,
    run_health_checks,
)
from nemo_gym.rollouts.merged_outputs import find_outputs
from nemo_gym.rollouts.run_files import find_runs

Json = dict[str, Any]


def text_answer(text: str = "4") -> Json:
    return {"id": "r", "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}


def model_call(call_id: str, *, response: Json | None = None, tokens: Any = (3, 2), **metadata: Any) -> Json:
    prompt, completion = tokens
    return {
        "model_call_id": call_id,
        "completed_at": float(call_id.removeprefix("m")),
        "response": text_answer() if response is None else response,
        "token_stats": {"prompt_tokens": prompt, "completion_tokens": completion},
        "response_metadata": {"dialect": "responses", "status_code": 200, "response_id": call_id, **metadata},
    }


def agent_turn(number: int, *call_ids: str, answer: str | None = "4") -> Json:
    references = [{"model_call_id": call_id} for call_id in call_ids]
    return {"invocation_id": "root", "turn_no": number, "answer": answer, "model_calls": references}


def rollout(task: int = 0, repeat: int = 0, *, usage: Any = (3, 2), **trajectory: Any) -> Json:
    """Return a healthy row with one turn and one call, except for the given fields of its trajectory."""
    calls = trajectory.pop("model_calls", [model_call("m1")])
    references = [{"model_call_id": call["model_call_id"]} for call in calls]
    fields = {
        "task_id": str(task),
        "rollout_id": f"{task}-{repeat}",
        "invocations": [{"invocation_id": "root", "status": "completed", "model_calls": references}],
        "turns": [agent_turn(1, *(call["model_call_id"] for call in calls))],
        "model_calls": calls,
    }
    response = {} if usage is None else {"usage": {"input_tokens": usage[0], "output_tokens": usage[1]}}
    indices = {"_ng_task_index": task, "_ng_rollout_index": repeat}
    return {**indices, "reward": 0.0, "response": response, "ng_trajectory": {**fields, **trajectory}}


def check(folder: Path, *rows: Json | str, **options: Any) -> HealthCheckResult:
    path = folder / "rollouts.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return run_health_checks([path], **options)


def checks_of(verdict: Json) -> list[str]:
    return [finding["check"] for finding in verdict["findings"]]


def test_a_complete_rollout_is_healthy_whatever_its_reward(tmp_path: Path) -> None:
    """A wrong answer is a result, not a fault."""
    result = check(tmp_path, rollout())

    (verdict,) = result.rollouts
    assert (verdict["verdict"], verdict["findings"], verdict["unobserved"]) == ("healthy", [], [])
    run = result.summary["run"]
    assert (run["verdicts"], run["issues"]) == ({"healthy": 1, "unhealthy": 0, "unobserved": 0}, {})
    assert run["artifacts"]["records"] == run["artifacts"]["captures"] == 1
    assert set(run["artifacts"]["coverage"]) == set(CHECK_IDS)
    assert run["stats"]["tokens"] == {"prompt": 3, "completion": 2, "capture_prompt": 3, "capture_completion": 2}
    assert result.summary["tasks"] == {"0": {"repeats": 1, "healthy": 1, "unhealthy": 0, "unobserved": 0, "flags": []}}


OF_TURNS = {"rollout_missing_agent_turns", "agent_turn_hollow"}
CALL_ONLY = {"id": "r", "output": [{"type": "function_call", "name": "f", "call_id": "c"}]}
SEARCH_ONLY = {"id": "r", "output": [{"type": "web_search_call", "id": "w", "status": "completed"}]}
OWNER: Json = {"invocation_id": "root", "model_calls": [{"model_call_id": "m1"}]}
EMPTY: Json = {"id": "r", "output": []}
SILENT = agent_turn(1, "m1", answer=None)
CUT = model_call("m1", response=EMPTY, finish_reason="length")


@pytest.mark.parametrize(
    ("row", "findings"),
    [
        (rollout(turns=[]), ["rollout_missing_agent_turns"]),
        (rollout(turns=[SILENT], model_calls=[model_call("m1", response=CALL_ONLY)]), []),
        (rollout(turns=[SILENT], model_calls=[model_call("m1", response=EMPTY)]), ["agent_turn_hollow"]),
        (rollout(model_calls=[model_call("m1", tokens=(3, 0))], usage=(3, 0)), ["model_call_zero_completion_tokens"]),
        (rollout(model_calls=[model_call("m1", tokens=(3, None))]), ["model_call_missing_token_counts"]),
        (rollout(usage=(9, 2)), ["rollout_token_count_mismatch"]),
        (rollout(model_calls=[CUT]), ["model_call_runaway_generation"]),
        (rollout(model_calls=[model_call("m1", finish_reason="length")]), []),
        (
            rollout(model_calls=[model_call("m1"), model_call("m2", status_code=500)], usage=(6, 4)),
            ["rollout_ended_on_failed_model_call", "model_call_failed"],
        ),
        (
            rollout(model_calls=[model_call("m2"), model_call("m1", error_category="timeout")], usage=(6, 4)),
            ["model_call_failed"],
        ),
        (
            rollout(model_calls=[model_call("m1", response_status="failed")]),
            ["rollout_ended_on_failed_model_call", "model_call_failed"],
        ),
        (
            rollout(invocations=[{"invocation_id": "root", "model_calls": [{"model_call_id": "lost"}]}]),
            ["trajectory_capture_mismatch"],
        ),
        (rollout(gaps=[{"code": "model_call_reference_conflict"}]), ["trajectory_capture_mismatch"]),
        (rollout(invocations=[{"invocation_id": "root", "model_calls": [{"model_call_id": "m1"}] * 2}]), []),
        (rollout(invocations=[OWNER, OWNER | {"invocation_id": "sub"}]), ["trajectory_capture_mismatch"]),
        (rollout(turns=[SILENT], model_calls=[model_call("m1", response=SEARCH_ONLY)]), []),
        ({**rollout(), "ng_trajectory": {"surprise": 1}}, ["record_unreadable"]),
        ("not JSON", ["record_unreadable"]),
    ],
)  # fmt: skip
def test_each_check_finds_its_fault(tmp_path: Path, row: Json | str, findings: list[str]) -> None:
    """A rollout of these kinds has a reward like any other and would be trained on."""
    (verdict,) = check(tmp_path, row).rollouts

    assert checks_of(verdict) == findings
    assert verdict["verdict"] == ("unhealthy" if findings else "healthy")


@pytest.mark.parametrize(
    ("row", "is_unobserved"),
    [
        ({"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0}, set(ROW_CHECKS)),
        (rollout(usage=None), {"rollout_token_count_mismatch"}),
        (rollout(turns=[agent_turn(1)]), {"rollout_token_count_mismatch"}),
        (rollout(gaps=[{"code": "turns_unavailable"}]), {*OF_TURNS, "rollout_token_count_mismatch"}),
        (
            rollout(gaps=[{"code": "capture_incomplete"}]),
            set(ROW_CHECKS) - OF_TURNS,
        ),
    ],
)  # fmt: skip
def test_missing_evidence_is_not_health(tmp_path: Path, row: Json, is_unobserved: set[str]) -> None:
    """A run without captures has no findings, which must not read as a clean run."""
    result = check(tmp_path, row)

    (verdict,) = result.rollouts
    assert (verdict["verdict"], set(verdict["unobserved"]), verdict["findings"]) == ("unobserved", is_unobserved, [])
    coverage = result.summary["run"]["artifacts"]["coverage"]
    assert {name for name, counts in coverage.items() if counts["unobserved"]} == is_unobserved


def test_findings_before_the_evidence_ends_are_kept(tmp_path: Path) -> None:
    """A check that cannot be completed has found what it has found: the rollout is not merely unobserved."""
    row = rollout(gaps=[{"code": "model_call_reference_conflict"}, {"code": "capture_incomplete"}])

    (verdict,) = check(tmp_path, row).rollouts

    assert (verdict["verdict"], checks_of(verdict)) == ("unhealthy", ["trajectory_capture_mismatch"])
    assert "trajectory_capture_mismatch" in verdict["unobserved"]


def test_of_an_unreadable_repeat_no_failed_calls_are_concluded(tmp_path: Path) -> None:
    """Its calls may have succeeded."""
    broken = rollout(0, 0, model_calls=[model_call("m1", status_code=500)])

    result = check(tmp_path, broken, {**rollout(0, 1), "ng_trajectory": {"surprise": 1}})

    assert result.summary["tasks"]["0"]["flags"] == ["task_consistently_unhealthy"]


def test_the_verdicts_are_no_rollouts(tmp_path: Path) -> None:
    """They are written beside the results; the viewer and a merge of outputs would read them as a second run."""
    check(tmp_path, rollout())

    assert [run.output.name for run in find_runs([tmp_path])] == ["rollouts.jsonl"]
    assert find_outputs(f"{tmp_path}/*.jsonl") == [tmp_path / "rollouts.jsonl"]


def test_tasks_are_flagged_if_all_repeats_fail(tmp_path: Path) -> None:
    """One bad repeat is chance; all of them are the task or its environment."""
    broken = {"model_calls": [model_call("m1", status_code=500)]}
    rows = [rollout(0, 0, **broken), rollout(0, 1, **broken), rollout(1, 0, **broken), rollout(1, 1)]

    result = check(tmp_path, *rows)

    flags = {task: counts["flags"] for task, counts in result.summary["tasks"].items()}
    assert flags == {"0": ["task_consistently_unhealthy", "task_no_successful_model_calls"], "1": []}
    assert result.summary["run"]["stats"]["model_call_errors"] == {
        "total": 3, "by_status": {"500": 3}, "rollouts_affected": 3, "ended_on_error": 3,
    }  # fmt: skip


def test_rollouts_that_occur_twice_are_found_across_files(tmp_path: Path) -> None:
    """A file merged with itself counts every rollout twice; stages of one rollout are different rows."""
    first = tmp_path / "a.jsonl"
    first.write_text(json.dumps(rollout()) + "\n" + json.dumps({**rollout(), "stage_index": 1}) + "\n")
    second = tmp_path / "b.jsonl"
    second.write_text(json.dumps(rollout()) + "\n")

    result = run_health_checks([first, second], output_dir=tmp_path / "out")

    assert [checks_of(verdict) for verdict in result.rollouts] == [
        ["rollout_duplicate_identity"], [], ["rollout_duplicate_identity"],
    ]  # fmt: skip
    assert result.summary_path == tmp_path / "out" / "quality_summary.json"
    assert json.loads(result.summary_path.read_text()) == result.summary
    assert [json.loads(line) for line in result.verdicts_path.read_text().splitlines()] == result.rollouts


def test_checks_can_be_ignored_and_the_report_says_what_was_found(tmp_path: Path) -> None:
    """A benchmark that cuts answers on purpose must not look broken; a misspelled name must not ignore nothing."""
    row = rollout(model_calls=[CUT])
    assert "model_call_runaway_generation: 1" in format_health_report(check(tmp_path, row))

    result = health_check_run_dir(tmp_path, ignored_checks="model_call_runaway_generation, agent_turn_hollow")

    assert result.rollouts[0]["verdict"] == "healthy"
    assert result.summary["run"]["ignored_checks"] == ["agent_turn_hollow", "model_call_runaway_generation"]
    assert result.summary["run"]["artifacts"]["coverage"]["agent_turn_hollow"]["ignored"] == 1
    assert "1 healthy" in format_health_report(result)
    assert normalize_ignored_checks(None) == ()
    with pytest.raises(ValueError, match="unknown health check: runaway"):
        normalize_ignored_checks(["runaway"])
    with pytest.raises(ValueError, match="no results file"):
        run_health_checks([])


def test_a_check_that_raises_is_a_finding_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of one check must neither stop the report nor hide what the others find."""

    def fail(_: Any) -> Any:
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(ROW_CHECKS, "agent_turn_hollow", fail)

    (verdict,) = check(tmp_path, rollout(usage=(9, 2))).rollouts

    assert checks_of(verdict) == ["check_execution_error", "rollout_token_count_mismatch"]
    assert verdict["findings"][0]["detail"] == {"failed_check": "agent_turn_hollow", "error": "ZeroDivisionError('oh')"}


@pytest.mark.parametrize(
    "row",
    [
        {"_ng_task_index": {"a": 1}, "response": [], "ng_trajectory": []},
        {"_ng_task_index": [1], "_ng_rollout_index": "x", "response": {"usage": 3}},
        rollout(model_calls=[{"model_call_id": "m1", "completed_at": "yesterday", "response": "text"}], usage=None),
    ],
)
def test_odd_rows_of_other_tools_do_not_stop_the_report(tmp_path: Path, row: Json) -> None:
    """A results file may come from anywhere."""
    result = check(tmp_path, row, rollout(5))

    assert [verdict["verdict"] for verdict in result.rollouts][1] == "healthy"
