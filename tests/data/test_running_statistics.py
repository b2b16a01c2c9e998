"""Statistics are exact: merged parts give the result of the whole."""

import math
import pickle
import statistics
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.data.running_statistics import (
    AVERAGE,
    COUNT,
    DEVIATION,
    HIGHEST,
    LOWEST,
    DistinctCounter,
    NumberStats,
    length_statistics,
)

FINITE = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()


class SmallDistinctCounter(DistinctCounter):
    """Packs its hashes after three texts."""

    MAX_RECENT = 3
    BUCKETS = 4


def numbers_of(values) -> NumberStats:
    numbers = NumberStats()
    for value in values:
        numbers.add(value)
    return numbers


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(FINITE, max_size=8), max_size=6), st.randoms())
def test_parts_in_any_order_make_the_whole(parts, random):
    """The number of chunks and processes must not show in the metrics."""
    whole = numbers_of([value for part in parts for value in part]).statistics()
    random.shuffle(parts)

    merged = NumberStats()
    for part in parts:
        merged.merge(numbers_of(part))

    assert merged.statistics() == whole


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6), min_size=2, max_size=30))
def test_the_figures_equal_those_of_the_statistics_module(values):
    """The contract asks for the sample deviation, not that of the population."""
    result = numbers_of(values).statistics()

    assert result[COUNT] == len(values)
    assert result[AVERAGE] == pytest.approx(statistics.fmean(values), abs=6e-3)
    assert result[DEVIATION] == pytest.approx(statistics.stdev(values), abs=6e-3)
    assert (result[LOWEST], result[HIGHEST]) == pytest.approx((min(values), max(values)), abs=6e-3)


def test_rounding_and_emptiness_are_those_of_the_contract():
    """Metrics files of other tools are compared with ours."""
    assert numbers_of([]).statistics() == {COUNT: 0, AVERAGE: 0.0, LOWEST: 0.0, HIGHEST: 0.0, DEVIATION: 0.0}
    assert numbers_of([0.12345]).statistics()[AVERAGE] == 0.123
    assert numbers_of([11.23456]).statistics()[AVERAGE] == 11.23
    assert numbers_of([7]).statistics()[DEVIATION] == 0.0


def test_numbers_too_large_to_square_still_have_a_deviation():
    """One absurd value in a field must not crash the run."""
    assert numbers_of([1e200, -1e200]).statistics()[DEVIATION] == pytest.approx(math.sqrt(2) * 1e200)


def test_a_value_added_n_times_counts_n_times():
    """Repeated rows are measured once, which must not change the result."""
    repeated = NumberStats()
    repeated.add(0.1, times=1000)
    repeated.add(3, times=10)

    assert repeated.statistics() == numbers_of([0.1] * 1000 + [3] * 10).statistics()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50)))
def test_lengths_have_the_statistics_of_their_numbers(lengths):
    """Plot and statistics must describe the same lengths."""
    assert length_statistics(Counter(lengths)) == numbers_of(lengths).statistics()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.text(max_size=2), max_size=40), max_size=5))
def test_distinct_counts_like_a_set(parts):
    """Packed, pickled and merged counts must stay exact: workers return them through a pipe."""
    merged = SmallDistinctCounter()
    for part in parts:
        counter = SmallDistinctCounter()
        for text in part:
            counter.add(text)
        merged.merge(pickle.loads(pickle.dumps(counter)))

    assert len(merged) == len({text for part in parts for text in part})


def test_many_distinct_values_take_little_memory():
    """A million answers must not take a hundred megabytes."""
    result = DistinctCounter()
    for number in range(200_000):
        result.add(f"answer {number}")

    assert len(result) == 200_000
    assert len(pickle.dumps(result)) < 200_000 * 10
