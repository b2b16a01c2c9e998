"""Columns of numbers are described as the standard library would."""

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.columns import Columns, finite_number, mean, numbers_of, sample_std

numbers = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)


@settings(max_examples=80, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=12))
def test_the_five_figures_agree_with_the_statistics_module(values):
    """Nobody should have to ask which variance or which median this is."""
    columns = Columns()
    for value in values:
        columns.add({"reward": value})

    described = columns.describe()

    assert described["mean/reward"] == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert described["median/reward"] == statistics.median(map(float, values))
    assert (described["max/reward"], described["min/reward"]) == (max(values), min(values))
    assert described["std/reward"] == pytest.approx(statistics.stdev(map(float, values)), rel=1e-9, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_mean_does_not_depend_on_the_order(values, random):
    """Two runs with the same rollouts must print the same digits."""
    assert mean(values) == mean(random.sample(values, len(values)))


def test_keys_come_in_blocks_in_the_order_of_the_fields():
    """Readers of the metrics file find all means first."""
    columns = Columns()
    columns.add({"b": 1, "a": 2})
    columns.add({"b": 3, "a": 2})

    assert list(columns.describe()) == [f"{kind}/{f}" for kind in ("mean", "max", "min", "median", "std") for f in "ba"]


def test_deviations_of_single_values_are_zero_only_when_no_column_has_more():
    """'No spread was seen' and 'spread cannot be known here' are told apart."""
    lone, mixed = Columns(), Columns()
    lone.add({"reward": 1.0, "steps": 4})
    mixed.add({"reward": 1.0, "steps": 4})
    mixed.add({"reward": 0.0})

    assert {k: v for k, v in lone.describe().items() if k.startswith("std/")} == {"std/reward": 0.0, "std/steps": 0.0}
    assert [k for k in mixed.describe() if k.startswith("std/")] == ["std/reward"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None, "1", [1], 10**400])
def test_what_is_not_a_finite_number_does_not_count(value):
    """One bad value must not turn a column into NaN or end the run."""
    assert finite_number(value) is None


def test_numbers_too_large_to_add_up_still_have_a_mean():
    """A runaway reward is a strange number, not a crash."""
    assert mean([1.5e308, 1.5e308]) == pytest.approx(1.5e308)
    assert sample_std([1.0e308, 1.2e308]) == pytest.approx(statistics.stdev([1.0, 1.2]) * 1e308)
    extremes = Columns()
    extremes.add({"reward": 1.7e308})
    extremes.add({"reward": -1.7e308})
    assert all(math.isfinite(figure) for figure in extremes.describe().values())


def test_the_numbers_of_a_row_are_its_own_and_its_token_usage():
    """Indices say who a rollout is; averaging them would be noise."""
    row = {
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "reward": 0.5,
        "right": True,
        "answer": "7",
        "_ng_attempt_index": 1,
        "response": {"usage": {"input_tokens": 10, "total_tokens": 12, "input_tokens_details": {"cached_tokens": 1}}},
    }

    found = numbers_of(row)

    assert found == {"reward": 0.5, "right": 1, "_ng_attempt_index": 1, "input_tokens": 10, "total_tokens": 12}
    assert type(found["right"]) is int
    assert numbers_of({"reward": 1.0, "response": None}) == {"reward": 1.0}
