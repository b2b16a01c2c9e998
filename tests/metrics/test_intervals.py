"""A score without its uncertainty invites people to read noise."""

import math
import random
import statistics
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.intervals import ClusteredMean, MeanWithInterval, format_figure, t95, wilson_interval

VALUES = st.lists(st.tuples(st.integers(0, 5), st.floats(-10, 10)), min_size=1, max_size=40)


def clustered_mean(pairs: Iterable[tuple[object, float]]) -> MeanWithInterval | None:
    return ClusteredMean(pairs).mean()


def test_nothing_has_no_mean() -> None:
    """Zero scored rollouts is a fact to print, not a number."""
    assert clustered_mean([]) is None


def test_one_task_has_a_mean_but_no_interval() -> None:
    """Repeats of one task say nothing about other tasks."""
    result = clustered_mean([("a", 1.0), ("a", 0.0)])

    assert result is not None
    assert (result.value, result.low, result.count, result.tasks) == (0.5, None, 2, 1)
    assert (result.standard_error, result.low, result.high) == (None, None, None)
    assert str(result) == "0.5 (n = 2)"


def test_one_rollout_per_task_gives_the_textbook_interval() -> None:
    """Without repeats it is Student's interval of a mean."""
    values = [0.5, 1.0, 1.0, 0.0, 0.75]

    result = clustered_mean(enumerate(values))

    assert result is not None
    half_width = 2.776445 * statistics.stdev(values) / math.sqrt(5)
    assert result.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(5))
    assert (result.low, result.high) == (
        pytest.approx(result.value - half_width),
        pytest.approx(result.value + half_width),
    )


@pytest.mark.parametrize(("freedom", "point"), [(1, 12.7062), (10, 2.2281), (21, 2.0796), (60, 2.0003), (1000, 1.9623)])
def test_the_points_of_students_t_are_those_of_the_tables(freedom: int, point: float) -> None:
    """With few tasks two standard errors are not enough."""
    assert t95(freedom) == pytest.approx(point, abs=1e-4)


def test_repeats_do_not_make_us_surer() -> None:
    """Running every task ten times with the same result is not ten times the evidence."""
    once = clustered_mean([(t, float(t % 2)) for t in range(10)])
    tenfold = clustered_mean([(t, float(t % 2)) for t in range(10) for _ in range(10)])

    assert once is not None and tenfold is not None
    assert (tenfold.low, tenfold.high) == (pytest.approx(once.low), pytest.approx(once.high))


def test_a_perfect_score_on_few_tasks_is_not_certainty() -> None:
    """Ten of ten may well be a model that fails one task in five."""
    result = clustered_mean([(t, 1.0) for t in range(10) for _ in range(4)])

    assert result is not None and result.low is not None
    assert result.value == result.high == 1.0
    assert 0.6 < result.low < 0.8


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4), min_size=2, max_size=10))
def test_the_interval_of_a_share_lies_between_nothing_and_all(tasks: list[list[float]]) -> None:
    """An interval that reaches beyond 100 % is an admission that the method does not fit."""
    result = clustered_mean((t, value) for t, values in enumerate(tasks) for value in values)

    assert result is not None and result.low is not None and result.high is not None
    assert 0.0 <= result.low <= result.value + 1e-12
    assert result.value - 1e-12 <= result.high <= 1.0
    assert result.high > result.low


def test_wilsons_interval_is_that_of_the_literature() -> None:
    """Newcombe 1998: 81 of 263 gives 0.2553 to 0.3662."""
    low, high = wilson_interval(81 / 263, 263, 1.959964)

    assert (low, high) == (pytest.approx(0.2553, abs=1e-4), pytest.approx(0.3662, abs=1e-4))


@pytest.mark.parametrize("pass_or_fail", [True, False])
@pytest.mark.parametrize(("tasks", "repeats"), [(10, 1), (10, 4), (40, 4)])
def test_intervals_cover_the_truth_as_often_as_they_say(pass_or_fail: bool, tasks: int, repeats: int) -> None:
    """The one promise of a 95 % interval, kept although repeats of a task resemble each other."""
    draw = random.Random(tasks * 10 + repeats)
    covered, runs = 0, 600
    for _ in range(runs):
        clusters = ClusteredMean()
        for _ in range(tasks):
            chance = draw.betavariate(2, 1)
            noise = [draw.random() < chance if pass_or_fail else chance + draw.gauss(0, 0.2) for _ in range(repeats)]
            clusters.add_tasks([float(value) for value in noise])
        mean = clusters.mean()
        assert mean is not None and mean.low is not None and mean.high is not None
        covered += mean.low <= 2 / 3 <= mean.high

    assert covered / runs >= 0.92


@given(VALUES, st.randoms())
@settings(max_examples=60, deadline=None)
def test_order_does_not_matter(pairs: list[tuple[int, float]], shuffle: random.Random) -> None:
    """Rollouts finish in any order; the score must not."""
    other = list(pairs)
    shuffle.shuffle(other)

    first, second = clustered_mean(pairs), clustered_mean(other)

    assert first is not None and second is not None
    assert second.value == pytest.approx(first.value)
    assert (second.low is None) == (first.low is None)
    if first.low is not None:
        assert (second.low, second.high) == (pytest.approx(first.low, abs=1e-9), pytest.approx(first.high, abs=1e-9))


def test_an_asymmetric_interval_is_printed_with_both_bounds() -> None:
    """`0.95 ± 0.08` would claim an upper bound above 1, which the interval does not have."""
    result = clustered_mean([(task, float(task > 0)) for task in range(20)])

    assert str(result) == "0.95 [0.7392, 0.9922] (95 %, n = 20 over 20 tasks)"


def test_a_constant_has_no_interval_unless_it_is_a_share() -> None:
    """`44 [44, 44]` is noise, but ten passes of ten are not certain."""
    constant, share = clustered_mean([(task, 0.1) for task in range(7)]), clustered_mean([(1, 1.0), (2, 1.0)])
    count = ClusteredMean([(task, 1.0) for task in range(7)], may_be_share=False).mean()

    assert constant is not None and constant.low is None
    assert count is not None and count.low is None
    assert share is not None and share.low is not None and share.low < 1


@pytest.mark.parametrize(
    ("value", "text"), [(0.95, "0.95"), (44, "44"), (412345.4, "412,345"), (1234.5, "1,234"), (1e300, "1e+300")]
)
def test_large_numbers_stay_readable(value: float, text: str) -> None:
    """A mean of 400,000 tokens must not be printed as 4e+05."""
    assert format_figure(value) == text


def test_tasks_may_be_added_whole_or_value_by_value() -> None:
    """Adding many equal tasks at once is only quicker."""
    apart, together = ClusteredMean(), ClusteredMean()
    for task, value in enumerate((0.25, 0.25, 1.0)):
        apart.add(task, value)
    together.add_tasks([0.25], tasks=2)
    together.add_tasks([1.0])

    assert apart.mean() == together.mean()
