"""Columns of numbers are described as the standard library would."""

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.column_statistics import (
    column,
    describe,
    describe_columns,
    finite_number,
    finite_numbers,
    mean,
    rollout_numbers,
    sample_std,
)

numbers = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)


@settings(max_examples=80, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=12))
def test_the_five_statistics_agree_with_the_statistics_module(values):
    """Readers must not have to ask which variance or which median this is."""
    statistics_of = describe_columns([("reward", values)])

    assert statistics_of["mean/reward"] == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert statistics_of["median/reward"] == statistics.median(map(float, values))
    assert (statistics_of["max/reward"], statistics_of["min/reward"]) == (max(values), min(values))
    assert statistics_of["std/reward"] == pytest.approx(statistics.stdev(map(float, values)), rel=1e-9, abs=1e-9)
    assert all(type(statistic) is float for statistic in statistics_of.values())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_mean_does_not_depend_on_the_order(values, random):
    """Two runs with the same rollouts must print the same digits."""
    assert mean(values) == mean(random.sample(values, len(values)))


def test_keys_come_in_blocks_in_the_order_of_the_fields():
    """Readers of the metrics file find all means first."""
    statistics_of = describe_columns([("b", [1, 3]), ("a", [2, 2])])

    assert list(statistics_of) == [f"{kind}/{f}" for kind in ("mean", "max", "min", "median", "std") for f in "ba"]


def test_deviations_of_single_values_are_zero_only_when_no_column_has_more():
    """'No spread was seen' and 'spread cannot be known here' differ."""
    single = describe_columns([("reward", [1.0]), ("steps", [4])])
    mixed = describe_columns([("reward", [1.0, 0.0]), ("steps", [4])])

    assert {k: v for k, v in single.items() if k.startswith("std/")} == {"std/reward": 0.0, "std/steps": 0.0}
    assert [k for k in mixed if k.startswith("std/")] == ["std/reward"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None, "1", [1], 10**400])
def test_what_is_not_a_finite_number_does_not_count(value):
    """One bad value must not turn a column into NaN or end the run."""
    assert finite_number(value) is None


def test_numbers_too_large_to_add_up_still_have_a_mean():
    """A runaway reward is a strange number, not a crash."""
    assert mean([1.5e308, 1.5e308]) == pytest.approx(1.5e308)
    assert sample_std([1.0e308, 1.2e308]) == pytest.approx(statistics.stdev([1.0, 1.2]) * 1e308)
    assert all(math.isfinite(statistic) for statistic in describe_columns([("reward", [1.7e308, -1.7e308])]).values())


def test_tiny_numbers_keep_their_deviation():
    """Squares of very small numbers vanish; the deviation does not."""
    assert sample_std([1.0e-200, 3.0e-200]) == pytest.approx(math.sqrt(2) * 1e-200)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["reward", "right", "text", "_ng_task_index", "_ng_rollout_index", "nested", "none"]),
        st.floats() | st.integers() | st.booleans() | st.text(max_size=3) | st.none() | st.lists(st.integers()),
    )
)
def test_exactly_the_finite_numbers_of_a_row_are_taken(row):
    """However quick the reading is: the same as asking for every field whether it is a number that counts."""
    taken = finite_numbers(row)

    indices = {"_ng_task_index", "_ng_rollout_index"}
    expected = {n: finite_number(v) for n, v in row.items() if n not in indices and finite_number(v) is not None}
    assert taken == expected
    assert list(map(type, taken.values())) == list(map(type, expected.values()))


ROW = {
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
    "reward": 0.5,
    "right": True,
    "answer": "7",
    "_ng_attempt_index": 1,
    "_ng_seconds": 2.5,
    "_ng_phases": {"model": 2.0},
    "response": {"usage": {"input_tokens": 10, "total_tokens": 12, "input_tokens_details": {"cached_tokens": 1}}},
}


def test_the_numbers_of_a_row_are_its_own_and_its_token_usage():
    """Indices say who a rollout is and seconds how long it took; neither is a score."""
    records = rollout_numbers(ROW)

    assert records == {"reward": 0.5, "right": 1, "_ng_attempt_index": 1, "input_tokens": 10, "total_tokens": 12}
    assert type(records["right"]) is int
    assert rollout_numbers({"reward": 1.0, "response": None}) == {"reward": 1.0}
    assert rollout_numbers({"reward": 1.0, "response": {"usage": None}}) == {"reward": 1.0}


def test_a_field_of_the_servers_own_stands_for_a_token_count_of_the_same_name():
    """The server knows better what it counted."""
    row = {"total_tokens": 99, "reward": 1.0, "response": {"usage": {"input_tokens": 3, "total_tokens": 5}}}

    assert rollout_numbers(row) == {"total_tokens": 99, "reward": 1.0, "input_tokens": 3}


FIELDS = st.dictionaries(st.sampled_from("abcde"), st.floats(-10, 10) | st.integers(-5, 5), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(FIELDS, max_size=8))
def test_columns_hold_what_the_rows_held_in_their_order(rows):
    """Whatever fields come and go from row to row."""
    rollouts = [rollout_numbers(row) for row in rows]
    names = {name for row in rows for name in row}

    assert {n: column(rollouts, n) for n in names} == {n: [row[n] for row in rows if n in row] for n in names}
    assert set(describe(rollouts, [*names, "missing"])) >= {f"mean/{name}" for name in names}
