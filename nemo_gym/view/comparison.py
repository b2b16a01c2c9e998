"""Compare stored runs through their indexes."""

import math
from typing import Any

from nemo_gym.metrics.column_statistics import sample_std
from nemo_gym.metrics.intervals import t95
from nemo_gym.view.database import RunDatabase


def compare_runs(first: RunDatabase, second: RunDatabase, count: int = 200) -> dict[str, Any]:
    """Compare the mean rewards of tasks that both runs scored; list `count` tasks, the largest difference first."""
    with first.connection() as database:
        database.execute("ATTACH DATABASE ? AS other", (str(second.path),))
        means = (
            "SELECT task, avg(reward) AS mean, count(*) AS n FROM {} WHERE current AND reward IS NOT NULL GROUP BY task"
        )
        query = (
            f"SELECT a.task, a.mean, b.mean, a.n, b.n FROM ({means.format('main.rollouts')}) a"
            f" JOIN ({means.format('other.rollouts')}) b USING (task)"
        )
        pairs = database.execute(query).fetchall()
    differences = [second_mean - first_mean for _, first_mean, second_mean, *_ in pairs]
    differing = sorted((pair for pair in pairs if pair[1] != pair[2]), key=lambda pair: -abs(pair[2] - pair[1]))
    names = ("task", "first", "second", "first_n", "second_n")
    return {
        "tasks": len(pairs),
        "better": sum(difference > 0 for difference in differences),
        "worse": sum(difference < 0 for difference in differences),
        "mean_difference": sum(differences) / len(differences) if differences else None,
        "interval_95": _paired_interval(differences),
        "rows": [dict(zip(names, pair, strict=True)) for pair in differing[:count]],
    }


def _paired_interval(differences: list[float]) -> list[float] | None:
    """Return the 95 % interval of the mean difference; None for fewer than two differences."""
    deviation, n = sample_std(differences), len(differences)
    if deviation is None:
        return None
    centre, half = sum(differences) / n, t95(n - 1) * deviation / math.sqrt(n)
    return [centre - half, centre + half]
