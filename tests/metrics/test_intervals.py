"""A score without its uncertainty invites people to read noise."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.intervals import Z95, clustered_mean

VALUES = st.lists(st.tuples(st.integers(0, 5), st.floats(-10, 10)), min_size=1, max_size=40)


def test_nothing_has_no_mean() -> None:
    """Zero scored rollouts is a fact to print, not a number."""
    assert clustered_mean([]) is None


def test_one_task_has_a_mean_but_no_interval() -> None:
    """Repeats of one task say nothing about other tasks."""
    result = clustered_mean([("a", 1.0), ("a", 0.0)])

    assert result is not None
    assert (result.value, result.half_width, result.count, result.tasks) == (0.5, None, 2, 1)


def test_one_rollout_per_task_gives_the_textbook_interval() -> None:
    """Without repeats it is the ordinary standard error of a mean."""
    values = [0.0, 1.0, 1.0, 0.0, 1.0]

    result = clustered_mean(enumerate(values))

    assert result is not None
    assert result.half_width == pytest.approx(Z95 * statistics.stdev(values) / math.sqrt(5))


def test_repeats_do_not_make_us_surer() -> None:
    """Running every task ten times with the same result is not ten times the evidence."""
    once = clustered_mean([(t, float(t % 2)) for t in range(10)])
    tenfold = clustered_mean([(t, float(t % 2)) for t in range(10) for _ in range(10)])

    assert once is not None and tenfold is not None
    assert tenfold.half_width == pytest.approx(once.half_width)


@given(VALUES, st.randoms())
@settings(max_examples=60, deadline=None)
def test_order_does_not_matter(pairs: list[tuple[int, float]], shuffle: random.Random) -> None:
    """Rollouts finish in any order; the score must not."""
    other = list(pairs)
    shuffle.shuffle(other)

    first, second = clustered_mean(pairs), clustered_mean(other)

    assert first is not None and second is not None
    assert second.value == pytest.approx(first.value)
    assert (second.half_width is None) == (first.half_width is None)
    if first.half_width is not None:
        assert second.half_width == pytest.approx(first.half_width, abs=1e-9)
