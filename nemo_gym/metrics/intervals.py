"""The 95 % confidence interval of a mean, clustered by task: repeats of one task are not independent."""

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PASS_OR_FAIL = frozenset({0, 1})
Z95 = 1.959963984540054
"""Two-sided 95 % point of the normal distribution."""
T95 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip
"""Two-sided 95 % points of Student's t for 1, 2, … 20 degrees of freedom."""

ROUNDING = 1e-12
"""A relative error below this comes from rounding."""

LARGE_VALUE = 2.0**400
"""A value above this could make a sum of squares overflow."""
SMALL_SCALE = 2.0**-600
"""Factor that makes sums and squares of all floats finite."""


def t95(freedom: int) -> float:
    """Return the two-sided 95 % point of Student's t for `freedom` degrees of freedom."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = Z95  # Cornish and Fisher's expansion: from here on exact to five digits
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third


@dataclass(frozen=True)
class MeanWithInterval:
    """A mean with its standard error and 95 % confidence interval (`low`, `high`).

    Both need two tasks, and a constant that is not a share has no interval; else they are None.
    """

    value: float
    count: int
    tasks: int
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{format_figure(self.value)} (n = {self.count})"
        interval = format_interval(self.low, self.high)
        return f"{format_figure(self.value)} {interval} (95 %, n = {self.count} over {self.tasks} tasks)"


def format_figure(value: float) -> str:
    """Format as `0.9512`, `44`, `12.5`, `412,345`: four digits, and whole numbers from 1,000 on."""
    return f"{value:.4g}" if abs(value) < 1000 or abs(value) >= 1e15 else f"{value:,.0f}"


def format_interval(low: float, high: float) -> str:
    """Format as `[0.8277, 0.9869]`."""
    return f"[{format_figure(low)}, {format_figure(high)}]"


class ClusteredMean:
    """Computes the mean of many values and its confidence interval, clustered by task; keeps count and sum per task."""

    def __init__(self, pairs: Iterable[tuple[object, float]] = (), *, may_be_share: bool = True) -> None:
        """Start with `pairs` of a task and a value; `may_be_share` says that values of 0 and 1 mean fail and pass."""
        self.is_pass_or_fail = may_be_share
        """True if the values are verdicts: every value so far is 0 or 1, and these mean fail and pass."""
        self._scale = 1.0
        """Factor of `_sums`: 1, or `SMALL_SCALE` after a value above `LARGE_VALUE`."""
        self._counts = array("q")
        self._sums = array("d")
        self._lost_digits = array("d")
        """What rounding took from each sum (Neumaier), because large values may cancel each other."""
        self._positions: dict[object, int] = {}
        for task, value in pairs:
            self.add(task, value)

    def add(self, task: object, value: float) -> None:
        """Add a value of a task; `task` is any hashable key."""
        position = self._positions.setdefault(task, len(self._counts))
        if position == len(self._counts):
            self._counts.append(0)
            self._sums.append(0.0)
            self._lost_digits.append(0.0)
        if abs(value) > LARGE_VALUE:
            self._shrink_for(value)
        self._counts[position] += 1
        before, added = self._sums[position], value * self._scale
        after = self._sums[position] = before + added
        large, small = (before, added) if abs(before) >= abs(added) else (added, before)
        self._lost_digits[position] += (large - after) + small
        if value not in PASS_OR_FAIL:
            self.is_pass_or_fail = False

    def add_tasks(self, values: Sequence[float], tasks: int = 1) -> None:
        """Add as many new tasks as `tasks` says, each with these values."""
        self._shrink_for(max(map(abs, values), default=0.0))
        scaled = values if self._scale == 1.0 else [value * self._scale for value in values]
        self._counts.extend([len(values)] * tasks)
        self._sums.extend([math.fsum(scaled)] * tasks)
        self._lost_digits.extend([0.0] * tasks)
        if self.is_pass_or_fail and not PASS_OR_FAIL.issuperset(values):
            self.is_pass_or_fail = False

    def add_sums(self, count: int, total: float, tasks: int = 1) -> None:
        """Add as many new tasks as `tasks` says, each with `count` values whose sum is `total`."""
        self._shrink_for(total)
        self._counts.extend([count] * tasks)
        self._sums.extend([total * self._scale] * tasks)
        self._lost_digits.extend([0.0] * tasks)

    def _shrink_for(self, value: float) -> None:
        """Switch to scaled sums if the value is very large. Only digits far below its own are lost by scaling."""
        if abs(value) > LARGE_VALUE and self._scale == 1.0:
            self._scale = SMALL_SCALE
            self._sums = array("d", (total * SMALL_SCALE for total in self._sums))
            self._lost_digits = array("d", (digits * SMALL_SCALE for digits in self._lost_digits))

    def mean(self) -> MeanWithInterval | None:
        """Return the mean so far with its confidence interval; None before the first value."""
        count, tasks = sum(self._counts), len(self._counts)
        if not count:
            return None
        value = math.fsum((*self._sums, *self._lost_digits)) / count
        if tasks < 2:
            return MeanWithInterval(value / self._scale, count, tasks)
        # The sandwich estimator: residuals are summed within a task before they are squared.
        sums = zip(self._counts, self._sums, self._lost_digits, strict=True)
        residuals = (total - n * value + digits for n, total, digits in sums)
        squares = math.fsum(residual * residual for residual in residuals)
        error = math.sqrt(squares * tasks / (tasks - 1)) / count
        if error <= ROUNDING * abs(value) and not self.is_pass_or_fail:  # a constant: [44, 44] would tell nothing
            return MeanWithInterval(value / self._scale, count, tasks, error)
        low, high = (clamp(bound / self._scale) for bound in self._interval(value, error, tasks))
        return MeanWithInterval(value / self._scale, count, tasks, clamp(error / self._scale), low, high)

    def _interval(self, value: float, error: float, tasks: int) -> tuple[float, float]:
        """Return Student's confidence interval or, for a share, Wilson's."""
        if not self.is_pass_or_fail:
            return value - t95(tasks - 1) * error, value + t95(tasks - 1) * error
        # The value is a proportion: find the number of independent trials for which it would have this error. If all
        # values are equal, the error is unknown; then each task counts as one trial.
        trials = value * (1 - value) / error**2 if error > 0 and 0 < value < 1 else tasks
        return wilson_interval(value, trials, t95(tasks - 1))


def clamp(value: float) -> float:
    """Return the finite float that is nearest to `value`."""
    return max(-sys.float_info.max, min(sys.float_info.max, value))


def wilson_interval(proportion: float, trials: float, z: float) -> tuple[float, float]:
    """Return Wilson's confidence interval of a proportion for the critical value `z`; within 0 to 1, never empty."""
    weight = 1 + z**2 / trials
    centre = (proportion + z**2 / (2 * trials)) / weight
    half = z / weight * math.sqrt(proportion * (1 - proportion) / trials + (z / (2 * trials)) ** 2)
    return max(0.0, min(proportion, centre - half)), min(1.0, max(proportion, centre + half))
