"""What the page of a run shows: scores, how rollouts ended, where the time and the tokens went."""

import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.metrics.intervals import t95
from nemo_gym.view.facts import PHASES
from nemo_gym.view.index import RunIndex

BINS = 20
MOST_K = 64
MOST_BYTES = 4_000_000
"""Larger side files are not read for the page."""

Group = tuple[int, int, float, int]
"""Tasks that went alike: rollouts, solved ones, sum of rewards, and how many such tasks there are."""


def summary(index: RunIndex) -> dict[str, Any]:
    """Everything about a run that fits on one page. What takes a scan of all rollouts is kept until there are more."""
    done, size = index.progress()
    counted = index.kept(f"summary {done}")
    if counted is None:
        counted = _counted(index)
        index.keep(f"summary {done}", counted)
    return {
        "name": index.run.name,
        "path": str(index.run.output),
        "indexed": done,
        "size": size,
        **counted,
        "metrics": _read(index.run.metrics),
        "identity": _read(index.run.identity),
    }


def _counted(index: RunIndex) -> dict[str, Any]:
    with index.connection() as database:
        groups = database.execute(
            "SELECT n, solved, total, count(*) FROM (SELECT count(*) AS n, sum(reward >= 1) AS solved,"
            " sum(reward) AS total FROM rollouts WHERE current AND reward IS NOT NULL GROUP BY task) GROUP BY 1, 2, 3"
        ).fetchall()
        return {
            "outcomes": _outcomes(database),
            "reward": _reward(groups),
            "histogram": _histogram(database),
            "pass_at_k": _pass_at_k(groups),
            "tokens": _totals(database),
            "latency": _latency(database),
        }


def compare(first: RunIndex, second: RunIndex, count: int = 200) -> dict[str, Any]:
    """The tasks whose mean reward differs between two runs, the largest difference first."""
    with first.connection() as database:
        database.execute("ATTACH DATABASE ? AS other", (str(second.path),))
        means = (
            "SELECT task, avg(reward) AS mean, count(*) AS n FROM {} WHERE current AND reward IS NOT NULL GROUP BY task"
        )
        joined = (
            f"SELECT a.task, a.mean, b.mean, a.n, b.n FROM ({means.format('main.rollouts')}) a"
            f" JOIN ({means.format('other.rollouts')}) b USING (task)"
        )
        pairs = database.execute(joined).fetchall()
    differing = sorted((pair for pair in pairs if pair[1] != pair[2]), key=lambda pair: -abs(pair[2] - pair[1]))
    return {
        "tasks": len(pairs),
        "better": sum(pair[2] > pair[1] for pair in pairs),
        "worse": sum(pair[2] < pair[1] for pair in pairs),
        "mean_difference": sum(pair[2] - pair[1] for pair in pairs) / len(pairs) if pairs else None,
        "half_width_95": _paired_half_width([pair[2] - pair[1] for pair in pairs]),
        "rows": [
            {"task": task, "first": one, "second": two, "first_n": n, "second_n": m}
            for task, one, two, n, m in differing[:count]
        ],
    }


def _outcomes(database: sqlite3.Connection) -> list[dict[str, Any]]:
    asked = "SELECT outcome, kind, count(*) FROM rollouts WHERE current GROUP BY 1, 2 ORDER BY 3 DESC"
    return [{"outcome": outcome, "kind": kind, "count": n} for outcome, kind, n in database.execute(asked)]


def _reward(groups: Sequence[Group]) -> dict[str, Any]:
    """The mean, with its interval clustered by task: repeats of one task are not independent."""
    tasks = sum(weight for _, _, _, weight in groups)
    n = sum(count * weight for count, _, _, weight in groups)
    if not n:
        return {"n": 0, "tasks": 0, "mean": None, "half_width_95": None}
    mean = sum(total * weight for _, _, total, weight in groups) / n
    spread = None
    if tasks > 1:
        residuals = sum(weight * (total - count * mean) ** 2 for count, _, total, weight in groups)
        spread = t95(tasks - 1) * math.sqrt(residuals * tasks / (tasks - 1)) / n
    return {"n": n, "tasks": tasks, "mean": mean, "half_width_95": spread}


def _histogram(database: sqlite3.Connection) -> dict[str, Any]:
    low, high = database.execute("SELECT min(reward), max(reward) FROM rollouts WHERE current").fetchone()
    if low is None:
        return {"low": 0.0, "high": 1.0, "counts": []}
    low, high = min(low, 0.0), max(high, 1.0)
    asked = (
        "SELECT min(cast((reward - ?) / ? * ? AS INTEGER), ?), count(*) FROM rollouts"
        " WHERE current AND reward IS NOT NULL GROUP BY 1"
    )
    counts = [0] * BINS
    for place, count in database.execute(asked, (low, high - low, BINS, BINS - 1)):
        counts[place] += count
    return {"low": low, "high": high, "counts": counts}


def _pass_at_k(groups: Sequence[Group]) -> list[dict[str, float]]:
    """The chance that at least one of k rollouts of a task is solved (reward 1 or more), averaged over tasks."""
    found = []
    for k in range(1, min(max((n for n, *_ in groups), default=0), MOST_K) + 1):
        usable = [(n, solved, weight) for n, solved, _, weight in groups if n >= k]
        tasks = sum(weight for _, _, weight in usable)
        chance = sum(weight * (1 - math.comb(n - solved, k) / math.comb(n, k)) for n, solved, weight in usable)
        found.append({"k": k, "chance": chance / tasks, "tasks": tasks})
    return found


def _totals(database: sqlite3.Connection) -> dict[str, Any]:
    names = ("tokens_in", "tokens_out", "turns", "tool_calls")
    asked = ", ".join(f"sum({name}), avg({name}), max({name})" for name in names)
    values = database.execute(f"SELECT {asked} FROM rollouts WHERE current").fetchone()
    return {
        name: {"sum": values[place * 3], "mean": values[place * 3 + 1], "max": values[place * 3 + 2]}
        for place, name in enumerate(names)
    }


def _latency(database: sqlite3.Connection) -> list[dict[str, Any]]:
    """How long rollouts waited for each phase: mean, quantiles, and the share of all the time that was measured."""
    columns = [("all", "seconds"), *((phase, f"seconds_{phase}") for phase in PHASES)]
    asked = ", ".join(f"count({column}), sum({column}), max({column})" for _, column in columns)
    values = database.execute(f"SELECT {asked} FROM rollouts WHERE current").fetchone()
    measured = {name: values[place * 3 : place * 3 + 3] for place, (name, _) in enumerate(columns)}
    whole = sum(measured[phase][1] or 0.0 for phase in PHASES)
    found = []
    for name, column in columns:
        count, total, most = measured[name]
        if count:
            middle, late = (_quantile(database, column, count, share) for share in (0.5, 0.95))
            share = total / whole if whole and name != "all" else None
            found.append(
                {"phase": name, "mean": total / count, "p50": middle, "p95": late, "max": most, "share": share}
            )
    return found


def _quantile(database: sqlite3.Connection, column: str, count: int, share: float) -> float:
    asked = f"SELECT {column} FROM rollouts WHERE current AND {column} IS NOT NULL ORDER BY 1 LIMIT 1 OFFSET ?"
    found: float = database.execute(asked, (min(int(share * count), count - 1),)).fetchone()[0]
    return found


def _paired_half_width(differences: list[float]) -> float | None:
    n = len(differences)
    if n < 2:
        return None
    mean = sum(differences) / n
    return t95(n - 1) * math.sqrt(sum((value - mean) ** 2 for value in differences) / (n - 1) / n)


def _read(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes()) if path.stat().st_size <= MOST_BYTES else None
    except (OSError, orjson.JSONDecodeError):
        return None
