"""The page of a run says how good it was, and how sure that is."""

from collections.abc import Callable

import pytest

from nemo_gym.view.index import RunIndex
from nemo_gym.view.summary import compare, summary
from tests.view.records import failure, record, timed

Make = Callable[..., RunIndex]


def test_failures_are_counted_and_never_averaged(index: RunIndex) -> None:
    found = summary(index)

    assert {(entry["outcome"], entry["kind"]): entry["count"] for entry in found["outcomes"]} == {
        ("scored", ""): 5,
        ("failed", "timeout"): 1,
    }
    assert found["reward"]["mean"] == pytest.approx(3 / 5)
    assert (found["reward"]["n"], found["reward"]["tasks"]) == (5, 3)
    assert sum(found["histogram"]["counts"]) == 5


def test_where_the_time_went_is_said_per_phase(index_of: Make) -> None:
    """Ten rollouts, each a second longer than the one before; the model takes three quarters of it."""
    slow = [timed(task, task + 1.0, model=0.75 * (task + 1), verify=0.25 * (task + 1)) for task in range(10)]
    index = index_of(*slow, record(10))

    found = {entry["phase"]: entry for entry in summary(index)["latency"]}

    assert found["all"] == {"phase": "all", "mean": 5.5, "p50": 6.0, "p95": 10.0, "max": 10.0, "share": None}
    assert (found["model"]["share"], found["verify"]["share"]) == pytest.approx((0.75, 0.25))
    assert found["queue"]["max"] == 0.0
    assert index.page(where="seconds_model > 6").total == 2


def test_a_run_nobody_timed_has_no_latency(index: RunIndex) -> None:
    assert summary(index)["latency"] == []


def test_pass_at_k_is_the_chance_that_one_of_k_is_solved(index_of: Make) -> None:
    index = index_of(*[record(0, repeat, float(repeat == 0)) for repeat in range(4)])

    chances = [point["chance"] for point in summary(index)["pass_at_k"]]

    assert chances == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_repeats_of_one_task_do_not_make_it_surer(index_of: Make) -> None:
    """Ten times the same task is one task."""
    once = index_of(*[record(task, 0, float(task % 2)) for task in range(10)], name="once")
    often = index_of(
        *[record(task, repeat, float(task % 2)) for task in range(10) for repeat in range(10)], name="often"
    )

    assert summary(often)["reward"]["half_width_95"] == pytest.approx(summary(once)["reward"]["half_width_95"])


def test_a_run_with_nothing_in_it_can_be_looked_at(index_of: Make) -> None:
    found = summary(index_of(failures=(failure(),)))

    assert found["reward"]["mean"] is None
    assert found["pass_at_k"] == []


def test_two_runs_are_compared_task_by_task(index_of: Make) -> None:
    first = index_of(*[record(task, 0, 0.0) for task in range(3)], record(9, 0, 1.0), name="first")
    second = index_of(record(0, 0, 0.0), record(1, 0, 1.0), record(2, 0, 0.5), name="second")

    found = compare(first, second)

    assert (found["tasks"], found["better"], found["worse"]) == (3, 2, 0)
    assert [row["task"] for row in found["rows"]] == [1, 2]
    assert found["mean_difference"] == pytest.approx(0.5)
