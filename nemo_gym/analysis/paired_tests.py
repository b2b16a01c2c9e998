"""The paired difference of two runs: mean over tasks, interval, p value, and Holm's correction for several tests.

The unit is the task: the repeats of a task are averaged first, because they are not independent. Each task weighs the
same. Up to MAX_EXACT_TASKS tasks the p value is exact: the share of all ways to swap the two runs within tasks whose
mean difference is at least as far from 0. For more tasks it is that of Student's t test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from nemo_gym.metrics.column_statistics import sample_std
from nemo_gym.metrics.intervals import t95

MAX_EXACT_TASKS = 16
"""Up to this number of tasks all 2^n swaps are counted."""
EXACT, STUDENT = "exact permutation", "paired t"
_TOLERANCE = 1e-9
_MAX_STEPS = 300


@dataclass(frozen=True)
class PairedDifference:
    """The mean of the differences of tasks, second run minus first, with its 95 % interval and two-sided p value.

    The interval needs two tasks that differ in their differences; the p value needs one task. Else they are None.
    """

    mean: float
    tasks: int
    low: float | None = None
    high: float | None = None
    p: float | None = None
    test: str = STUDENT

    def is_clear(self, level: float = 0.05) -> bool:
        """Return whether the difference is larger than chance explains."""
        return self.p is not None and self.p < level


def paired_difference(differences: Sequence[float]) -> PairedDifference | None:
    """Return the mean difference over tasks with its interval and p value; None without a task."""
    n = len(differences)
    if not n:
        return None
    mean = math.fsum(differences) / n
    deviation = sample_std(list(differences))
    if not deviation:
        p = 1.0 if mean == 0 else 2.0 ** (1 - n)  # only two of the 2^n ways to swap are as far from 0
        return PairedDifference(mean, n, p=p, test=EXACT)
    error = deviation / math.sqrt(n)
    half = t95(n - 1) * error
    if n <= MAX_EXACT_TASKS:
        return PairedDifference(mean, n, mean - half, mean + half, exact_p(differences), EXACT)
    return PairedDifference(mean, n, mean - half, mean + half, student_p(mean / error, n - 1), STUDENT)


def exact_p(differences: Sequence[float]) -> float:
    """Return the two-sided p value of the sign-flip permutation test, from all 2^n ways to sign the differences."""
    observed = abs(math.fsum(differences))
    sizes = [abs(value) for value in differences if value]
    scale = max(sizes, default=0.0)
    if not scale:
        return 1.0
    sums = [0.0]
    for size in sizes:
        sums = [total + sign * size for total in sums for sign in (1.0, -1.0)]
    bound = observed - _TOLERANCE * scale * len(sizes)
    return sum(abs(total) >= bound for total in sums) / len(sums)


def student_p(t: float, freedom: int) -> float:
    """Return the two-sided p value of Student's t with `freedom` degrees of freedom."""
    if math.isnan(t) or freedom < 1:
        return 1.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p values corrected for being several tests (Holm); None stays None and counts as no test.

    A corrected value below 0.05 keeps the chance of any false finding among all tests below 5 %.
    """
    numbered = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    scaled = (min(1.0, p * (len(numbered) - rank)) for rank, (p, _) in enumerate(numbered))
    corrected: list[float | None] = [None] * len(p_values)
    for (_, index), value in zip(numbered, accumulate(scaled, max), strict=True):
        corrected[index] = value
    return corrected


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by its continued fraction (Lentz's method)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, use the symmetry of the function
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, _MAX_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + numerator * d, tiny)
            c = _away_from_zero(1.0 + numerator / c, tiny)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return min(1.0, math.exp(log_front) * fraction / a)


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
