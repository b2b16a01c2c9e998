"""Records of other tools, of hostile models and of broken writers: each page of the viewer still works."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from nemo_gym.view.database import RunDatabase
from nemo_gym.view.server import view_app
from nemo_gym.view.statistics import compute_statistics
from tests.view.records import record

HUGE_USAGE = {
    "input_tokens": 2**61,
    "output_tokens": 2**61,
    "input_tokens_details": {"cached_tokens": 2**62},
    "output_tokens_details": {"reasoning_tokens": 2**62},
}
STRANGE_ITEMS = [1, None, "x", {"type": ["l"], "role": {"a": 1}, "content": {"x": 1}, "call_id": [1], "name": 5}]
STRANGE_TOKENS = {
    "role": "assistant",
    "type": "message",
    "generation_token_ids": ["x", None, 1.5],
    "prompt_token_ids": {"a": 1},
    "generation_log_probs": ["a", None],
}
CASES: dict[str, list[Any]] = {
    "huge token counts": [record(task, response={"output": [], "usage": HUGE_USAGE}) for task in range(9)],
    "extreme rewards": [record(task, repeat, sign * 1e308) for task, sign in ((0, 1), (1, -1)) for repeat in range(4)],
    "items": [record(0, response={"output": STRANGE_ITEMS, "usage": [1]}), record(1, response={"output": {"a": 1}})],
    "tokens": [record(0, response={"output": [STRANGE_TOKENS]})],
    "types": [
        record(0, agent_ref="x", response="str", responses_create_params=[1]),
        record(1, _ng_turns=[[1, 2**70, None], [True]], _ng_turn_seconds=[[1, "x"], 3], _ng_phases={"model": "x"}),
        record(2, extracted_answer={"a": [1]}, expected_answer=[1], reward_components="x", reward_weights=[1]),
        record(3, _ng_failure_class=["x"], _ng_failure={"kind": [1], "whom": {}, "message": [1], "status": "x"}),
    ],
    "no rollouts": [{"_ng_task_index": "x", "_ng_rollout_index": -1}, [1, 2], "str", 5, None, {}],
    "control characters": [record(0, difficulty="a\0b", agent_ref={"name": "\0\n\"'"}, extracted_answer="\0")],
}


@pytest.mark.parametrize("records", CASES.values(), ids=CASES)
def test_strange_records_break_no_page(index_of: Callable[..., RunDatabase], records: list[Any]) -> None:
    """One strange line among a million must not make the run, or the list of all runs, unreadable."""
    run = index_of(*records)
    client = TestClient(view_app([run]), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
    paths = ["runs", *(f"runs/0{path}" for path in ("", "/columns", "/rollouts", "/rollouts.csv", "/tasks", "/live"))]
    rows = run.page(count=100).rows
    assert len(rows) == len(records)
    for row in rows:
        rollout = f"runs/0/rollouts/{row['task']}/{row['rollout']}"
        paths += [rollout, *(f"{rollout}/{part}" for part in ("tools", "sequence", "row", "raw", "text/0", "tokens/1"))]

    answers = {path: client.get(f"/api/{path}") for path in [*paths, "compare/0/0"]}

    assert {path: answer.text[:200] for path, answer in answers.items() if answer.status_code != 200} == {}


def test_masked_rewards_enter_no_mean(index_of: Callable[..., RunDatabase]) -> None:
    """The environment said that their rewards measure nothing; the metrics of `gym eval run` leave them out as well."""
    run = index_of(
        record(0, 0, 1.0), record(0, 1, 0.0, mask_sample=True), record(1, 0, 1.0), record(2, mask_sample=True)
    )
    client = TestClient(view_app([run]), base_url="http://127.0.0.1:8000")

    statistics = compute_statistics(run)
    tasks = {row["task"]: row for row in run.tasks().rows}

    assert (statistics["reward"]["n"], statistics["reward"]["mean"], statistics["reward"]["min"]) == (2, 1.0, 1.0)
    assert sum(statistics["histogram"]["counts"]) == 2
    assert (tasks[0]["mean"], tasks[0]["scored"], tasks[2]["scored"]) == (1.0, 1, 0)
    assert statistics["task_groups"]["unscored"] == 1
    assert client.get("/api/runs/0/live").json()["reward_so_far"][-1]["done"] == 2
    assert client.get("/api/runs/0/rollouts/0/1").json()["verdict"]["mean_of_task"] == 1.0
    assert client.get("/api/compare/0/0").json()["tasks"] == 2
    finding = next(one for one in client.get("/api/runs/0").json()["health"] if "masked" in one["title"])
    assert finding["share"] == 0.5


def test_right_answers_without_a_reward_are_a_finding(index_of: Callable[..., RunDatabase]) -> None:
    """Whether the verifier is wrong is the first question about a low score; the link leads to the answers to read."""
    run = index_of(
        record(41, 0, 0.0, answer="It is 42.", extracted_answer=""),
        record(41, 1, 0.0, answer="It is 43."),
        record(41, 2, 1.0, answer="It is 42."),
        {"_ng_task_index": 9, "_ng_failure_class": "limit", "_ng_failure": {"kind": "limit", "which": "tokens"}},
    )
    client = TestClient(view_app([run]), base_url="http://127.0.0.1:8000")

    summary = client.get("/api/runs/0").json()

    finding = next(one for one in summary["health"] if "contain the expected answer" in one["title"])
    rows = client.get("/api/runs/0/rollouts", params={"where": finding["where"]}).json()["rows"]
    assert [(row["task"], row["rollout"]) for row in rows] == [(41, 0)]
    assert finding["title"].startswith("1 rollout with reward 0 or less")
    assert "1 rollout stopped at the token limit" in [one["title"] for one in summary["health"]]
    assert ("Verifier wrong?", 1) in [(one["title"], one["count"]) for one in summary["saved_filters"]]


def test_quantiles_are_those_of_the_sorted_values(index_of: Callable[..., RunDatabase]) -> None:
    """A share of one sort each: the middle and the tail, also of one value."""
    many = index_of(*(record(task, _ng_seconds=float((task * 7) % 40)) for task in range(40)))
    one = index_of(record(0, _ng_seconds=3.0), name="one")

    (whole,), (single,) = (compute_statistics(run)["latency"] for run in (many, one))

    assert (whole["p50"], whole["p95"], whole["max"]) == (20.0, 38.0, 39.0)
    assert (single["p50"], single["p95"]) == (3.0, 3.0)


def test_a_shell_does_not_run_the_name_of_a_folder(index_of: Callable[..., RunDatabase]) -> None:
    """The page offers the command that prints annotations to be copied."""
    run = index_of(record(), name="a b; $(touch x)")
    client = TestClient(view_app([run]), base_url="http://127.0.0.1:8000")

    command = client.get("/api/runs/0/annotations").json()["command"]

    assert command == f"gym runs annotations '{run.run.output}'"
