"""Statistics over all rollouts of a run, from its index: scores, outcomes, latency, tokens, agents and subsets."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson

from nemo_gym.metrics.intervals import ClusteredMean, clamp
from nemo_gym.metrics.pass_at_k import pass_at_k
from nemo_gym.metrics.scores import reported_k
from nemo_gym.view.columns import describe_columns
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.index import MEASURED, NUMBER_COLUMNS
from nemo_gym.view.table_row import MODEL_LABEL, PHASES
from nemo_gym.wire.stored_rollout import finite_float

BINS = 20
MAX_SUBSETS = 24
MAX_AGENTS = 50
MAX_FINDINGS = 12
TOKEN_KINDS = ("input", "cached", "output", "reasoning")
NAME_COLUMNS = ("outcome", "kind", "whom", "message", "agent")
RANGE_COLUMNS = tuple(name for name in NUMBER_COLUMNS if name not in NAME_COLUMNS)

Group = tuple[int, int, float, int, int]
"""Tasks with equal results: rollouts per task, solved and partly solved rollouts, sum of rewards, number of tasks."""

SAVED_FILTERS = (
    ("Failed", 'outcome == "failed"'),
    ("Limits", 'outcome == "limit"'),
    ("No answer", "no_answer == 1"),
    ("Verifier wrong?", "has_expected == 1 and reward <= 0"),
    ("Partial", "reward > 0 and reward < 1"),
    ("Long, unsolved", "reward < 1 and turns > 5"),
)
"""Filters that the table offers, if they match."""

_SUMS = "count(*) AS n, sum(reward = 1) AS solved, sum(reward) AS total, sum(reward NOT IN (0, 1)) AS partial"
_SCORED = f"FROM rollouts WHERE {MEASURED}"


def compute_statistics(run: RunDatabase) -> dict[str, Any]:
    """Compute the statistics over all current rollouts of a run."""
    names = run.label_names()
    with run.connection() as database:
        query = (
            f"SELECT n, solved, total, partial, count(*) FROM (SELECT {_SUMS} {_SCORED} GROUP BY task)"
            " GROUP BY 1, 2, 3, 4"
        )
        groups = database.execute(query).fetchall()
        reward = {**_reward(groups), **_reward_range(database)}
        has_passes = _has_passes(groups, reward.get("max"))
        by_agent = _tokens_by_agent(database)
        ranges = _ranges(database)
        counts = "SELECT count(*), count(DISTINCT task), max(rollout) + 1 FROM rollouts WHERE current"
        rollouts, tasks, repeats = database.execute(counts).fetchone()
        statistics = {
            "outcomes": _outcomes(database),
            "reward": reward,
            "histogram": _histogram(database),
            "pass_at_k": _pass_at_k(groups) if has_passes else [],
            "tokens": _totals(database),
            "latency": _latency(database),
            "agents": _agents(database, has_passes=has_passes),
            "subsets": _subsets(database, names),
            "tokens_by_agent": by_agent,
            "tokens_by_model": _tokens_by_model(by_agent),
            "problems": _problems(database),
            "rollouts": rollouts,
            "tasks": tasks,
            "repeats": repeats or 0,
        }
    saved = ({"title": title, "where": where, "count": run.count(filter_text=where)} for title, where in SAVED_FILTERS)
    return {
        **statistics,
        "columns": describe_columns(run, ranges, rollouts),
        "saved_filters": [one for one in saved if one["count"]],
        "task_groups": run.task_groups(),
    }


def _outcomes(database: sqlite3.Connection) -> list[dict[str, Any]]:
    query = "SELECT outcome, kind, count(*) FROM rollouts WHERE current GROUP BY 1, 2 ORDER BY 3 DESC"
    return [{"outcome": outcome, "kind": kind, "count": n} for outcome, kind, n in database.execute(query)]


def _reward(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the mean reward with the interval that `gym eval run` reports for these tasks."""
    clustered = ClusteredMean(may_be_share=not any(partial for _, _, _, partial, _ in groups))
    for count, _, total, _, tasks in groups:
        clustered.add_sums(count, _finite_sum(total), tasks)
    return interval_facts(clustered)


def _has_passes(groups: Sequence[Group], highest: float | None) -> bool:
    """Return whether a reward of 1 means solved: rewards are 0 and 1, or 1 is the highest of them."""
    return highest == 1 or not any(partial for _, _, _, partial, _ in groups)


def _finite_sum(total: float | None) -> float:
    """Return the sum of the rewards of a task as a finite number; SQLite has infinity or no value for extreme ones."""
    return 0.0 if total is None else clamp(total)


def interval_facts(clustered: ClusteredMean) -> dict[str, Any]:
    """Return count, tasks, mean and 95 % interval of a mean as JSON data."""
    mean = clustered.mean()
    if mean is None:
        return {"n": 0, "tasks": 0, "mean": None, "interval_95": None}
    interval = None if mean.low is None else [mean.low, mean.high]
    return {"n": mean.count, "tasks": mean.tasks, "mean": finite_float(mean.value), "interval_95": interval}


def _reward_range(database: sqlite3.Connection) -> dict[str, Any]:
    low, high = database.execute(f"SELECT min(reward), max(reward) {_SCORED}").fetchone()
    return {} if low is None else {"min": low, "max": high}


def _histogram(database: sqlite3.Connection) -> dict[str, Any]:
    """Count the rewards in `BINS` bins, which cover at least 0 to 1."""
    low, high = database.execute(f"SELECT min(reward), max(reward) {_SCORED}").fetchone()
    if low is None:
        return {"low": 0.0, "high": 1.0, "counts": []}
    low, high = min(low, 0.0), max(high, 1.0)
    query = f"SELECT min(cast((reward - ?) / ? * ? AS INTEGER), ?), count(*) {_SCORED} GROUP BY 1"
    counts = [0] * BINS
    for position, count in database.execute(query, (low, clamp(high - low), BINS, BINS - 1)):
        counts[position] += count
    return {"low": low, "high": high, "counts": counts}


def _pass_at_k(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return pass@k for each reported k: the chance that one of k rollouts has reward 1, averaged over tasks."""
    points = []
    counts: Counter[tuple[int, int]] = Counter()
    for n, solved, _, _, tasks in groups:
        counts[n, solved] += tasks
    for k in reported_k(max((n for n, *_ in groups), default=0)):
        clustered = ClusteredMean()
        for (n, solved), tasks in counts.items():
            if n >= k:
                clustered.add_tasks([pass_at_k(n, solved, k)], tasks)
        facts = interval_facts(clustered)
        points.append({"k": k, "chance": facts["mean"], "tasks": facts["tasks"], "interval_95": facts["interval_95"]})
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
            p50, p95 = _quantiles(database, column, count)
            fraction = total / phase_total if phase_total and name != "all" else None
            rows.append(
                {"phase": name, "mean": total / count, "p50": p50, "p95": p95, "max": longest, "share": fraction}
            )
    return rows


def _quantiles(database: sqlite3.Connection, column: str, count: int) -> tuple[float, float]:
    """Return the median and the 95th percentile of `count` values, which are sorted once: sorting is the slow part."""
    values = database.execute(f"SELECT {column} FROM rollouts WHERE current AND {column} IS NOT NULL ORDER BY 1")
    middle, tail = (min(int(q * count), count - 1) for q in (0.5, 0.95))
    (p50,) = next(islice(values, middle, None))
    (p95,) = (p50,) if tail == middle else next(islice(values, tail - middle - 1, None))
    return p50, p95


def _ranges(database: sqlite3.Connection) -> dict[str, list[Any]]:
    """Return count, smallest and largest value of each column with numbers that has a value other than 0."""
    columns = ", ".join(f"count({name}), min({name}), max({name})" for name in RANGE_COLUMNS)
    values = database.execute(f"SELECT {columns} FROM rollouts WHERE current").fetchone()
    facts = {name: list(values[3 * index : 3 * index + 3]) for index, name in enumerate(RANGE_COLUMNS)}
    always = ("task", "rollout", "reward")
    return {name: one for name, one in facts.items() if one[0] and (name in always or any(one[1:]))}


def _agents(database: sqlite3.Connection, *, has_passes: bool) -> list[dict[str, Any]]:
    """Return scores, outcomes and means of each agent, the one with the most rollouts first."""
    query = (
        "SELECT agent, n, solved, total, partial, count(*) FROM"
        f" (SELECT agent, task, {_SUMS} {_SCORED} GROUP BY agent, task) GROUP BY 1, 2, 3, 4, 5"
    )
    groups: dict[str, list[Group]] = defaultdict(list)
    for agent, n, solved, total, partial, tasks in database.execute(query):
        groups[agent].append((n, solved, total, partial, tasks))
    query = (
        "SELECT agent, count(*), sum(outcome = 'failed'), sum(outcome = 'limit'), avg(cut_off), sum(cut_off),"
        " avg(no_answer), avg(turns), avg(tool_calls), avg(tokens_in), avg(tokens_out), avg(seconds), count(seconds)"
        " FROM rollouts WHERE current GROUP BY agent ORDER BY 2 DESC LIMIT ?"
    )
    rows = []
    for agent, n, failed, limited, cut_off, cut_count, no_answer, *means in database.execute(query, (MAX_AGENTS,)):
        names = ("turns", "tool_calls", "tokens_in", "tokens_out", "seconds")
        facts = {"agent": agent, "rollouts": n, "failed": failed / n, "limit": limited / n, "cut_off": cut_off}
        facts |= {"failed_count": failed, "cut_off_count": cut_count, "no_answer": no_answer}
        facts |= {name: value for name, value in zip(names, means, strict=False) if value is not None}
        facts |= {"reward": _reward(groups[agent])}
        facts["pass_at_k"] = _pass_at_k(groups[agent]) if has_passes else []
        rows.append(facts)
    return rows


def _subsets(database: sqlite3.Connection, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the mean reward of each value of each label that has 2 to MAX_SUBSETS values."""
    labels = database.execute("SELECT id, text FROM label_sets")
    decoded = {number: _decode(text) for number, text in labels}
    selected = [
        name for name in names if 2 <= len({one[name] for one in decoded.values() if name in one}) <= MAX_SUBSETS
    ]
    if not selected:
        return []
    first_alike, group = _first_alike(decoded, selected), "labels"
    if any(number != first for number, first in first_alike.items()):
        database.create_function("first_alike", 1, first_alike.get, deterministic=True)
        group = "first_alike(labels)"
    query = (
        "SELECT labels, n, solved, total, partial, count(*) FROM"
        f" (SELECT {group} AS labels, task, {_SUMS} {_SCORED} GROUP BY 1, 2) GROUP BY 1, 2, 3, 4, 5"
    )
    groups: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for number, n, solved, total, partial, tasks in database.execute(query):
        for name in selected:
            value = decoded.get(number, {}).get(name)
            if value is not None:
                groups[name, value].append((n, solved, total, partial, tasks))
    ordered = sorted(groups.items(), key=lambda item: (selected.index(item[0][0]), item[0][1]))
    return [{"name": name, "value": value, **_reward(group)} for (name, value), group in ordered]


def _first_alike(sets: Mapping[int, Mapping[str, str]], names: Sequence[str]) -> dict[int, int]:
    """Return for each set of labels the number of the first one with the same values of `names`.

    Sets that differ only in the model put a task into the same subsets, where it counts as one task.
    """
    first: dict[tuple[str | None, ...], int] = {}
    return {number: first.setdefault(tuple(map(one.get, names)), number) for number, one in sets.items()}


def _tokens_by_agent(database: sqlite3.Connection) -> dict[str, dict[str, dict[str, int]]]:
    """Return the tokens of all attempts by agent, model and kind."""
    query = (
        f"SELECT r.agent, json_extract(l.text, '$.{MODEL_LABEL}'), sum(r.tokens_in), sum(r.tokens_cached),"
        " sum(r.tokens_out), sum(r.tokens_reasoning) FROM rollouts r LEFT JOIN label_sets l ON l.id = r.labels"
        " GROUP BY 1, 2"
    )
    agents: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for agent, model, *counts in database.execute(query):
        if any(counts):
            agents[agent or ""][model or ""] = dict(zip(TOKEN_KINDS, counts, strict=True))
    return dict(agents)


def _tokens_by_model(by_agent: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the tokens of all attempts by model and kind."""
    totals: dict[str, dict[str, int]] = {}
    for models in by_agent.values():
        for model, counts in models.items():
            total = totals.setdefault(model, dict.fromkeys(TOKEN_KINDS, 0))
            for kind, count in counts.items():
                total[kind] += count or 0
    return totals


def _problems(database: sqlite3.Connection) -> dict[str, Any]:
    """Count what the page reports as findings: failures by kind and server, and answers with a problem."""
    query = (
        "SELECT outcome, kind, whom, n, (SELECT message FROM cells WHERE cells.id = last) FROM ("
        "SELECT outcome, kind, whom, count(*) AS n, max(id) AS last FROM rollouts WHERE current"
        " AND outcome IN ('failed', 'limit') GROUP BY 1, 2, 3 ORDER BY 4 DESC LIMIT ?)"
    )
    names = ("outcome", "kind", "whom", "count", "message")
    failures = [dict(zip(names, row, strict=True)) for row in database.execute(query, (MAX_FINDINGS,))]
    query = (
        "SELECT sum(cut_off), sum(refused), sum(no_answer), sum(has_expected AND reward <= 0), sum(tool_errors > 0),"
        " sum(masked), sum(tool_calls > 0 AND tool_errors = tool_calls)"
        " FROM rollouts WHERE current AND outcome = 'scored'"
    )
    kinds = ("cut_off", "refused", "no_answer", "unrewarded", "tool_errors", "masked", "only_tool_errors")
    counts = database.execute(query).fetchone()
    return {"failures": failures, **{name: value or 0 for name, value in zip(kinds, counts, strict=True)}}


def _decode(text: str) -> dict[str, str]:
    decoded = orjson.loads(text)
    return decoded if isinstance(decoded, dict) else {}
