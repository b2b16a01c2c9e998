"""How far a mean may be off: intervals that know repeats of one task are not independent."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Mean:
    """A mean with half the width of its 95 % interval; None where there are too few tasks to say."""

    value: float
    half_width: float | None
    count: int
    tasks: int

    def __str__(self) -> str:
        if self.half_width is None:
            return f"{self.value:.4f} (n = {self.count})"
        return f"{self.value:.4f} ± {self.half_width:.4f} (95 %, n = {self.count} over {self.tasks} tasks)"


class ClusteredMean:
    """A running mean over rollouts, clustered by task; memory grows with tasks, not with rollouts."""

    def __init__(self) -> None:
        self._sums: dict[object, tuple[int, float]] = {}

    def add(self, task: object, value: float) -> None:
        count, total = self._sums.get(task, (0, 0.0))
        self._sums[task] = (count + 1, total + value)

    def mean(self) -> Mean | None:
        """The mean so far; None before the first value."""
        if not self._sums:
            return None
        count = sum(n for n, _ in self._sums.values())
        value = math.fsum(total for _, total in self._sums.values()) / count
        tasks = len(self._sums)
        if tasks < 2:
            return Mean(value, None, count, tasks)
        # The sandwich estimator: residuals are summed within a task before they are squared.
        squares = math.fsum((total - n * value) ** 2 for n, total in self._sums.values())
        error = math.sqrt(squares * tasks / (tasks - 1)) / count
        return Mean(value, Z95 * error, count, tasks)


def clustered_mean(pairs: Iterable[tuple[object, float]]) -> Mean | None:
    """The mean of (task, value) pairs with its clustered interval."""
    running = ClusteredMean()
    for task, value in pairs:
        running.add(task, value)
    return running.mean()
