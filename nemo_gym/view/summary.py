"""Summarize a run for its page: scores, outcomes, latency and tokens."""

import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.metrics.column_statistics import sample_std
from nemo_gym.metrics.intervals import ClusteredMean, t95
from nemo_gym.metrics.pass_at_k import pass_at_k
from nemo_gym.metrics.scores import reported_k
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.table_row import PHASES
from nemo_gym.wire.stored_rollout import finite_float

BINS = 20
MAX_SIDE_FILE_BYTES = 4_000_000
"""Side files (metrics, identity) that are larger are not shown on the page."""

Group = tuple[int, int, float, int]
"""Tasks with equal results: rollouts per task, solved rollouts, sum of rewards, number of such tasks."""


def summarize(run: RunDatabase) -> dict[str, Any]:
    """Return the summary of a run. The statistics, which scan all rollouts, are cached until the files grow."""
    done, size = run.progress()
    statistics = run.cached_value(f"summary {done}")
    if statistics is None:
        statistics = _compute_statistics(run)
        run.cache_value(f"summary {done}", statistics)
    return {
        "name": run.run.name,
        "path": str(run.run.output),
        "indexed": done,
        "size": size,
        **statistics,
        "metrics": _read_side_file(run.run.metrics),
        "identity": _read_side_file(run.run.identity),
    }


def _compute_statistics(run: RunDatabase) -> dict[str, Any]:
    """Compute the statistics over all current rollouts of a run."""
    with run.connection() as database:
        groups = database.execute(
            "SELECT n, solved, total, count(*) FROM (SELECT count(*) AS n, sum(reward = 1) AS solved,"
            " sum(reward) AS total FROM rollouts WHERE current AND reward IS NOT NULL GROUP BY task) GROUP BY 1, 2, 3"
        ).fetchall()
        others = "SELECT NOT EXISTS (SELECT 1 FROM rollouts WHERE current AND reward NOT IN (0, 1))"
        is_pass_or_fail = bool(database.execute(others).fetchone()[0])
        return {
            "outcomes": _outcomes(database),
            "reward": _reward(groups, is_pass_or_fail=is_pass_or_fail),
            "histogram": _histogram(database),
            "pass_at_k": _pass_at_k(groups) if is_pass_or_fail else [],
            "tokens": _totals(database),
            "latency": _latency(database),
        }


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


def _outcomes(database: sqlite3.Connection) -> list[dict[str, Any]]:
    query = "SELECT outcome, kind, count(*) FROM rollouts WHERE current GROUP BY 1, 2 ORDER BY 3 DESC"
    return [{"outcome": outcome, "kind": kind, "count": n} for outcome, kind, n in database.execute(query)]


def _reward(groups: Sequence[Group], *, is_pass_or_fail: bool) -> dict[str, Any]:
    """Return the mean reward with the interval that `gym eval run` reports."""
    clustered = ClusteredMean(may_be_share=is_pass_or_fail)
    for count, _, total, tasks in groups:
        clustered.add_sums(count, total, tasks)
    mean = clustered.mean()
    if mean is None:
        return {"n": 0, "tasks": 0, "mean": None, "interval_95": None}
    interval = None if mean.low is None else [mean.low, mean.high]
    return {"n": mean.count, "tasks": mean.tasks, "mean": finite_float(mean.value), "interval_95": interval}


def _histogram(database: sqlite3.Connection) -> dict[str, Any]:
    """Count the rewards in `BINS` bins, which cover at least 0 to 1."""
    low, high = database.execute("SELECT min(reward), max(reward) FROM rollouts WHERE current").fetchone()
    if low is None:
        return {"low": 0.0, "high": 1.0, "counts": []}
    low, high = min(low, 0.0), max(high, 1.0)
    query = (
        "SELECT min(cast((reward - ?) / ? * ? AS INTEGER), ?), count(*) FROM rollouts"
        " WHERE current AND reward IS NOT NULL GROUP BY 1"
    )
    counts = [0] * BINS
    for position, count in database.execute(query, (low, high - low, BINS, BINS - 1)):
        counts[position] += count
    return {"low": low, "high": high, "counts": counts}


def _pass_at_k(groups: Sequence[Group]) -> list[dict[str, float]]:
    """Return for each reported k the mean chance, over tasks with k rollouts, that one of k is solved (reward 1)."""
    points = []
    for k in reported_k(max((n for n, *_ in groups), default=0)):
        usable = [(n, solved, weight) for n, solved, _, weight in groups if n >= k]
        tasks = sum(weight for _, _, weight in usable)
        chance = sum(weight * pass_at_k(n, solved, k) for n, solved, weight in usable)
        points.append({"k": k, "chance": chance / tasks, "tasks": tasks})
    return points


def _totals(database: sqlite3.Connection) -> dict[str, Any]:
    """Return sum, mean and maximum of tokens, turns and tool calls."""
    names = ("tokens_in", "tokens_out", "turns", "tool_calls")
    columns = ", ".join(f"sum({name}), avg({name}), max({name})" for name in names)
    values = database.execute(f"SELECT {columns} FROM rollouts WHERE current").fetchone()
    keys = ("sum", "mean", "max")
    return {name: dict(zip(keys, values[3 * i : 3 * i + 3], strict=True)) for i, name in enumerate(names)}


def _latency(database: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return mean, quantiles and maximum of the seconds of the whole rollout (`all`) and of each measured phase.

    `share` is the fraction of the time of all phases.
    """
    columns = [("all", "seconds"), *((phase, f"seconds_{phase}") for phase in PHASES)]
    aggregates = ", ".join(f"count({column}), sum({column}), max({column})" for _, column in columns)
    values = database.execute(f"SELECT {aggregates} FROM rollouts WHERE current").fetchone()
    measured = {name: values[position * 3 : position * 3 + 3] for position, (name, _) in enumerate(columns)}
    phase_total = sum(measured[phase][1] or 0.0 for phase in PHASES)
    rows = []
    for name, column in columns:
        count, total, longest = measured[name]
        if count:
            p50, p95 = (_quantile(database, column, count, q) for q in (0.5, 0.95))
            fraction = total / phase_total if phase_total and name != "all" else None
            rows.append(
                {"phase": name, "mean": total / count, "p50": p50, "p95": p95, "max": longest, "share": fraction}
            )
    return rows


def _quantile(database: sqlite3.Connection, column: str, count: int, q: float) -> float:
    query = f"SELECT {column} FROM rollouts WHERE current AND {column} IS NOT NULL ORDER BY 1 LIMIT 1 OFFSET ?"
    quantile: float = database.execute(query, (min(int(q * count), count - 1),)).fetchone()[0]
    return quantile


def _paired_interval(differences: list[float]) -> list[float] | None:
    """Return the 95 % interval of the mean difference; None for fewer than two differences."""
    deviation, n = sample_std(differences), len(differences)
    if deviation is None:
        return None
    centre, half = sum(differences) / n, t95(n - 1) * deviation / math.sqrt(n)
    return [centre - half, centre + half]


def _read_side_file(path: Path) -> Any:
    """Return the content of a JSON file; None if it is missing, too large or not JSON."""
    try:
        return orjson.loads(path.read_bytes()) if path.stat().st_size <= MAX_SIDE_FILE_BYTES else None
    except (OSError, orjson.JSONDecodeError):
        return None
