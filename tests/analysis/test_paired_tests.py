"""The paired difference agrees with scipy, and its p values mean what they say."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.analysis.paired_tests import EXACT, STUDENT, exact_p, holm, paired_difference, student_p

# Computed with scipy 1.17.1: 2 * stats.t.sf(abs(t), freedom).
STUDENT_VALUES = [
    (2.0, 10, 0.07338803477074037),
    (0.5, 3, 0.651447964848151),
    (1.5, 1, 0.3743340836219977),
    (3.2, 99, 0.0018470654744259627),
    (2.8, 1023, 0.005206448690188241),
    (-1.96, 40, 0.05698822403200634),
    (12.0, 5, 7.089492517161522e-05),
]
DIFFERENCES = st.lists(st.floats(-1, 1, allow_nan=False), min_size=1, max_size=12)


@pytest.mark.parametrize(("t", "freedom", "expected"), STUDENT_VALUES)
def test_the_p_value_of_students_t_is_that_of_scipy(t: float, freedom: int, expected: float) -> None:
    """A wrong tail would call chance a discovery."""
    assert student_p(t, freedom) == pytest.approx(expected, rel=1e-10)


def test_few_tasks_have_the_exact_p_value_of_all_swaps() -> None:
    """With seven tasks a t test would claim 0.034, and the exact p value of the same data is 0.0625.

    Computed with scipy 1.17.1: permutation_test((d,), np.sum, permutation_type="samples", n_resamples=np.inf), and
    ttest_rel(...).confidence_interval() for the interval.
    """
    first = [0.12, 0.5, 0.33, 0.75, 1.0, 0.0, 0.25]
    second = [0.5, 0.62, 0.25, 1.0, 1.0, 0.38, 0.5]
    paired = paired_difference([b - a for a, b in zip(first, second, strict=True)])

    assert paired is not None and (paired.tasks, paired.test) == (7, EXACT)
    assert paired.p == 0.0625
    assert (paired.low, paired.high) == pytest.approx((0.019768921369668097, 0.3516596500589033), rel=1e-5)


def test_ten_tasks_agree_with_scipy_too() -> None:
    """A zero among the differences doubles both the extreme swaps and all swaps."""
    differences = [0.1, -0.2, 0.3, 0.05, 0.4, -0.1, 0.25, 0.15, 0.0, 0.35]

    assert exact_p(differences) == pytest.approx(0.08203125)


def test_many_tasks_use_students_t() -> None:
    """Computed with scipy 1.17.1: stats.ttest_1samp(x, 0), and its confidence interval."""
    paired = paired_difference([((number * 37) % 11 - 4) / 10 for number in range(40)])

    assert paired is not None and paired.test == STUDENT
    assert paired.p == pytest.approx(0.10332355193789829, rel=1e-9)
    assert (paired.low, paired.high) == pytest.approx((-0.01807381422309222, 0.18807381422309222), rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(DIFFERENCES)
def test_swapping_the_runs_turns_the_difference_around(differences: list[float]) -> None:
    """The order in which the user names two runs must not decide which one is better."""
    one, two = paired_difference(differences), paired_difference([-value for value in differences])

    assert one is not None and two is not None
    assert two.mean == pytest.approx(-one.mean)
    assert two.p == pytest.approx(one.p)
    assert one.p is not None and 0 < one.p <= 1
    if one.low is not None and one.high is not None:
        assert (two.low, two.high) == pytest.approx((-one.high, -one.low))


def test_equal_runs_have_no_clear_difference() -> None:
    """A run compared with itself is the first thing a user tries."""
    paired = paired_difference([0.0] * 30)

    assert paired is not None and (paired.mean, paired.p, paired.is_clear()) == (0.0, 1.0, False)
    assert paired_difference([]) is None


def test_the_interval_covers_the_true_difference_as_often_as_it_says() -> None:
    """95 % that is 85 % finds a difference in every seventh comparison of equal runs."""
    chance, covered, false_findings, runs = random.Random(5), 0, 0, 400
    for _ in range(runs):
        # 40 tasks of different difficulty, 4 repeats each; both runs have the same chance, so the difference is 0.
        differences = []
        for _ in range(40):
            difficulty = chance.random()
            first, second = (sum(chance.random() < difficulty for _ in range(4)) / 4 for _ in range(2))
            differences.append(second - first)
        paired = paired_difference(differences)
        assert paired is not None and paired.low is not None and paired.high is not None
        covered += paired.low <= 0 <= paired.high
        false_findings += paired.is_clear()

    assert 0.92 <= covered / runs <= 0.98
    assert false_findings / runs <= 0.08


def test_the_exact_test_rarely_finds_what_is_not_there() -> None:
    """Of small comparisons of equal runs at most one in twenty may look clear."""
    chance = random.Random(11)
    findings = sum(exact_p([chance.choice((-1, 1)) * chance.random() for _ in range(9)]) < 0.05 for _ in range(400))

    assert findings / 400 <= 0.07


def test_holm_corrects_as_the_textbook_does() -> None:
    """Holm 1979: the smallest p times the number of tests, the next times one less, never decreasing."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, None, 0.9]) == pytest.approx([1.0, None, 1.0], nan_ok=True)
    assert holm([]) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=10))
def test_a_correction_never_makes_a_finding_clearer(p_values: list[float]) -> None:
    """More tests need more evidence, and the order of findings stays."""
    corrected = holm(p_values)

    assert all(new is not None and old <= new <= 1 for old, new in zip(p_values, corrected, strict=True))
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    ranked = [corrected[place] or 0.0 for place in order]
    assert ranked == sorted(ranked)
