"""The page of a run says how good it was, and how sure that is."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from nemo_gym.metrics.intervals import ClusteredMean
from nemo_gym.view import summary as summary_module
from nemo_gym.view.comparison import compare_runs
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.summary import statistics_of, summarize
from tests.view.records import failure, record, timed_record

Make = Callable[..., RunDatabase]


def test_failures_are_counted_and_never_averaged(index: RunDatabase) -> None:
    """A failure has no reward."""
    summary = summarize(index)

    assert {(entry["outcome"], entry["kind"]): entry["count"] for entry in summary["outcomes"]} == {
        ("scored", ""): 5,
        ("failed", "timeout"): 1,
    }
    assert summary["reward"]["mean"] == pytest.approx(3 / 5)
    assert (summary["reward"]["n"], summary["reward"]["tasks"]) == (5, 3)
    assert sum(summary["histogram"]["counts"]) == 5


def test_where_the_time_went_is_said_per_phase(index_of: Make) -> None:
    """Ten rollouts, each a second longer than the one before; the model takes three quarters of it."""
    slow = [timed_record(task, task + 1.0, model=0.75 * (task + 1), verify=0.25 * (task + 1)) for task in range(10)]
    index = index_of(*slow, record(10))

    summary = {entry["phase"]: entry for entry in summarize(index)["latency"]}

    seconds = {"mean": 5.5, "p50": 6.0, "p95": 10.0, "max": 10.0}
    assert summary["all"] == {"phase": "all", **seconds, "share": None, "where": "seconds > 10.0"}
    assert (summary["model"]["share"], summary["verify"]["share"]) == pytest.approx((0.75, 0.25))
    assert summary["queue"]["max"] == 0.0
    assert index.page(filter_text="seconds_model > 6").total == 2


def test_a_run_without_timings_has_no_latency(index: RunDatabase) -> None:
    """Zeros would look like an instant model."""
    assert summarize(index)["latency"] == []


def test_pass_at_k_is_the_chance_that_one_of_k_is_solved(index_of: Make) -> None:
    """The page must agree with the report."""
    index = index_of(*[record(0, repeat, float(repeat == 0)) for repeat in range(4)])

    chances = [point["chance"] for point in summarize(index)["pass_at_k"]]

    assert chances == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_repeats_of_one_task_do_not_make_it_surer(index_of: Make) -> None:
    """Ten times the same task is one task."""
    once = index_of(*[record(task, 0, float(task % 2)) for task in range(10)], name="once")
    often = index_of(
        *[record(task, repeat, float(task % 2)) for task in range(10) for repeat in range(10)], name="often"
    )

    assert summarize(often)["reward"]["interval_95"] == pytest.approx(summarize(once)["reward"]["interval_95"])


def test_the_viewer_reports_the_interval_of_the_evaluation(index_of: Make) -> None:
    """One file must not have two intervals, depending on the command that shows it."""
    rewards = [(task, float(task > 0)) for task in range(20)]
    mean = ClusteredMean(rewards).mean()

    shown = summarize(index_of(*[record(task, 0, reward) for task, reward in rewards]))["reward"]

    assert mean is not None and shown["interval_95"] == pytest.approx([mean.low, mean.high])


def test_partial_rewards_have_no_pass_at_k(index_of: Make) -> None:
    """A reward of 0.5 is neither a pass nor a fail: pass@1 = 0 beside a mean of 0.5 would be wrong."""
    summary = summarize(index_of(*[record(task, 0, 0.5) for task in range(3)]))

    assert (summary["pass_at_k"], summary["reward"]["interval_95"]) == ([], None)


def test_partial_credit_beside_full_rewards_keeps_pass_at_k(index_of: Make) -> None:
    """Most verifiers give some partial credit; their researchers still ask how often one of k is solved."""
    rewards = (1.0, 0.35, 0.35, 0.0)

    summary = summarize(index_of(*[record(0, repeat, reward) for repeat, reward in enumerate(rewards)]))

    assert [point["chance"] for point in summary["pass_at_k"]] == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_rewards_above_one_have_no_pass_at_k(index_of: Make) -> None:
    """On another scale a reward of 1 does not mean solved."""
    assert summarize(index_of(record(0, 0, 1.0), record(1, 0, 5.0)))["pass_at_k"] == []


def test_tasks_with_partial_credit_only_are_never_solved(index_of: Make) -> None:
    """The headline, the group and the column "0 of 2" speak about the same tasks; pass@k agrees with them."""
    rewards = enumerate((1.0, 0.35, 0.0))
    index = index_of(*[record(task, repeat, reward) for task, reward in rewards for repeat in (0, 1)])

    groups = summarize(index)["task_groups"]

    assert groups == {"all": 3, "mixed": 0, "solved": 1, "unsolved": 2, "unscored": 0}


def test_the_interval_of_an_agent_is_that_of_its_own_rewards(index_of: Make) -> None:
    """Partial rewards of another agent must not give a share an interval below 0, unlike that of the report."""
    shares = [record(task, 0, float(task < 2)) for task in range(5)]
    partial = [record(task, 0, 0.35, agent_ref={"name": "other"}) for task in range(5, 9)]
    mean = ClusteredMean((task, float(task < 2)) for task in range(5)).mean()

    matrix = summarize(index_of(*shares, *partial))["matrix"]

    (values,) = [row["values"] for row in matrix["rows"] if row["agent"] not in ("other", None)]
    assert mean is not None and (values["low"], values["high"]) == pytest.approx((mean.low, mean.high))


def test_the_matrix_of_several_agents_ends_with_a_row_of_all_rollouts(index_of: Make) -> None:
    """The sum below the columns is what the headline says."""
    records = [record(task, 0, 1.0, agent_ref={"name": f"agent_{task % 2}"}) for task in range(6)]

    rows = summarize(index_of(*records))["matrix"]["rows"]

    assert {row["agent"] for row in rows[:-1]} == {"agent_0", "agent_1"}
    everything = rows[-1]
    assert (everything["agent"], everything["where"], everything["values"]["rollouts"]) == (None, "", 6)
    assert (everything["values"]["tasks"], everything["values"]["mean"]) == (6, 1.0)


def test_a_run_without_scores_can_be_viewed(index_of: Make) -> None:
    """Its failures are what the user wants to see."""
    summary = summarize(index_of(failures=(failure(),)))

    assert summary["reward"]["mean"] is None
    assert summary["pass_at_k"] == []


def test_two_runs_are_compared_task_by_task(index_of: Make) -> None:
    """Differences of means hide which tasks changed."""
    first = index_of(*[record(task, 0, 0.0) for task in range(3)], record(9, 0, 1.0), name="first")
    second = index_of(record(0, 0, 0.0), record(1, 0, 1.0), record(2, 0, 0.5), name="second")

    summary = compare_runs(first, second)

    assert (summary["tasks"], summary["better"], summary["worse"]) == (3, 2, 0)
    assert [row["task"] for row in summary["rows"]] == [1, 2]
    assert summary["mean_difference"] == pytest.approx(0.5)


def test_a_task_of_several_models_is_one_task_of_its_subset(index_of: Make) -> None:
    """Counted twice, it would make the interval of the subset too narrow."""
    records = [
        record(task, repeat, float(task % 2), difficulty="hard" if task < 4 else "easy")
        for task in range(8)
        for repeat in (0, 1)
    ]
    for stored in records:
        stored["response"]["model"] = f"model-{stored['_ng_rollout_index']}"

    subsets = {one["value"]: one for one in summarize(index_of(*records))["subsets"]}

    assert (subsets["hard"]["tasks"], subsets["hard"]["n"]) == (4, 8)
    alone = index_of(*(stored for stored in records if stored["_ng_task_index"] < 4), name="hard")
    assert subsets["hard"]["interval_95"] == summarize(alone)["reward"]["interval_95"]


def test_requests_at_the_same_time_compute_the_statistics_once(
    index: RunDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page asks three times at once; with a million rollouts, each computation takes seconds."""
    compute, begin = summary_module.compute_statistics, Barrier(3)
    computed: list[RunDatabase] = []

    def count_and_compute(run: RunDatabase) -> dict[str, Any]:
        computed.append(run)
        return compute(run)

    def ask(_: int) -> dict[str, Any]:
        begin.wait(10)
        return statistics_of(index)

    monkeypatch.setattr(summary_module, "compute_statistics", count_and_compute)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, range(3)))

    assert len(computed) == 1
    assert answers[0]["rollouts"] == answers[2]["rollouts"]
