"""Statistics are exact: the same for the whole and for the sum of any parts."""

import math
import pickle
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.data.numbers import AVERAGE, COUNT, DEVIATION, HIGHEST, LOWEST, Distinct, Lengths, Numbers

FINITE = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()


def numbers_of(values) -> Numbers:
    numbers = Numbers()
    for value in values:
        numbers.add(value)
    return numbers


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(FINITE, max_size=8), max_size=6), st.randoms())
def test_parts_in_any_order_make_the_whole(parts, random):
    """Files are measured in chunks by several processes; nobody should be able to tell."""
    whole = numbers_of([value for part in parts for value in part]).statistics()
    random.shuffle(parts)

    merged = Numbers()
    for part in parts:
        merged.merge(numbers_of(part))

    assert merged.statistics() == whole


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6), min_size=2, max_size=30))
def test_the_figures_are_those_of_the_textbook(values):
    """Sample deviation, not that of the population."""
    found = numbers_of(values).statistics()

    assert found[COUNT] == len(values)
    assert found[AVERAGE] == pytest.approx(statistics.fmean(values), abs=6e-3)
    assert found[DEVIATION] == pytest.approx(statistics.stdev(values), abs=6e-3)
    assert (found[LOWEST], found[HIGHEST]) == pytest.approx((min(values), max(values)), abs=6e-3)


def test_rounding_and_emptiness_are_those_of_the_contract():
    """Metrics files of others are compared with ours."""
    assert numbers_of([]).statistics() == {COUNT: 0, AVERAGE: 0.0, LOWEST: 0.0, HIGHEST: 0.0, DEVIATION: 0.0}
    assert numbers_of([0.12345]).statistics()[AVERAGE] == 0.123
    assert numbers_of([11.23456]).statistics()[AVERAGE] == 11.23
    assert numbers_of([7]).statistics()[DEVIATION] == 0.0


def test_numbers_too_large_to_square_still_have_a_deviation():
    """One absurd value in a field must not end the run."""
    assert numbers_of([1e200, -1e200]).statistics()[DEVIATION] == pytest.approx(math.sqrt(2) * 1e200)


def test_a_value_counted_many_times_is_the_value_many_times():
    """Repeats of a dataset are not measured one by one."""
    repeated = Numbers()
    repeated.add(0.1, times=1000)
    repeated.add(3, times=10)

    assert repeated.statistics() == numbers_of([0.1] * 1000 + [3] * 10).statistics()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 50)))
def test_lengths_merge_and_keep_their_histogram(first, second):
    """The plot is drawn from what the statistics are made of."""
    merged, other, whole = Lengths(), Lengths(), Lengths()
    for value in first:
        merged.add(value)
    for value in second:
        other.add(value)
    for value in first + second:
        whole.add(value)

    merged.merge(other)

    assert merged.seen == whole.seen
    assert merged.statistics() == numbers_of(first + second).statistics()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.text(max_size=2), max_size=40), max_size=5))
def test_distinct_counts_what_a_set_would(parts):
    """Also when most of it has been packed away."""

    class Small(Distinct):
        MOST_RECENT = 3
        BUCKETS = 4

    merged = Small()
    for part in parts:
        piece = Small()
        for text in part:
            piece.add(text)
        merged.merge(pickle.loads(pickle.dumps(piece)) if type(piece) is Distinct else piece)

    assert len(merged) == len({text for part in parts for text in part})


def test_many_distinct_values_take_little_memory():
    """A million answers must not take a hundred megabytes."""
    found = Distinct()
    for number in range(200_000):
        found.add(f"answer {number}")

    assert len(found) == 200_000
    assert len(pickle.dumps(found)) < 200_000 * 10


def test_hashes_of_another_process_are_not_mixed_with_ours():
    """They would count equal texts twice."""
    ours, theirs = Distinct(), Distinct()
    ours.add("a")
    theirs.add("a")
    theirs._seed = 1

    with pytest.raises(ValueError, match="different seeds"):
        ours.merge(theirs)
