"""Summarize a run for its page: what it was made with, its scores, findings, subsets, and agents × metrics."""

import time
from collections.abc import Sequence
from typing import Any

from nemo_gym.view.database import RunDatabase
from nemo_gym.view.health import find_problems, quote
from nemo_gym.view.run_facts import (
    data_facts,
    identity_strip,
    planned_count,
    read_side_file,
    run_content_of,
    run_cost,
    run_state,
    run_titles,
    start_and_end,
)
from nemo_gym.view.statistics import compute_statistics

MATRIX_COLUMNS = (
    ("tasks", "Tasks", "count"),
    ("rollouts", "Rollouts", "count"),
    ("mean", "Mean", "reward"),
    ("cut_off", "Cut off", "share"),
    ("no_answer", "No answer", "share"),
    ("limit", "Limit", "share"),
    ("failed", "Failed", "share"),
    ("turns", "Turns", "number"),
    ("tool_calls", "Tool calls", "number"),
    ("tokens_out", "Tokens out", "count"),
    ("seconds", "Seconds", "seconds"),
    ("dollars", "Cost", "dollars"),
)
MAX_RECORDED_METRICS = 30
STATISTICS = "statistics-2"
"""Name of the stored statistics. The number changes with their contents, because indexes outlive a version."""
SLOW_SECONDS, PAUSE_FACTOR = 0.5, 20.0
"""Statistics that take longer than this are computed again after this many times their duration at the earliest."""


def run_entry(run: RunDatabase, number: int = 0) -> dict[str, Any]:
    """Return the entry of a run in the list of runs."""
    return _entry(run, number, statistics_of(run))


def rollout_context(run: RunDatabase, number: int = 0) -> dict[str, Any]:
    """Return the entry of a run with the facts that a page of a rollout needs: its limits and the resume command."""
    strip = identity_strip(run.run, run_content_of(run.run))
    resume = {"resume_command": strip["resume_command"]} if "resume_command" in strip else {}
    return {**run_entry(run, number), "limits": strip.get("limits", {}), **resume}


def summarize(run: RunDatabase, number: int = 0) -> dict[str, Any]:
    """Return the summary of a run. The statistics, which scan all rollouts, are cached until the files grow."""
    statistics = statistics_of(run)
    content, metrics = run_content_of(run.run), read_side_file(run.run.metrics)
    entry = _entry(run, number, statistics)
    public = {name: value for name, value in statistics.items() if name not in _INTERNAL}
    return {
        **entry,
        **public,
        "histogram": _with_bins(statistics["histogram"]),
        "subsets": [{**one, "where": f"{one['name']} == {quote(one['value'])}"} for one in statistics["subsets"]],
        "latency": [_with_slow_filter(phase) for phase in statistics["latency"]],
        "outcomes_by_kind": _outcomes_by_kind(statistics),
        "identity_strip": {
            **identity_strip(run.run, content),
            "models": [model for model in statistics["tokens_by_model"] if model] or [entry["model"]],
            "work": _work(statistics),
            "tokens": _token_sums(statistics),
            **({"cost": entry["cost"]} if "cost" in entry else {}),
        },
        "health": find_problems(statistics, entry),
        "matrix": _matrix(run, statistics),
        "recorded_metrics": _recorded_metrics(metrics),
        "metrics": metrics,
        "identity": content or None,
    }


def statistics_of(run: RunDatabase) -> dict[str, Any]:
    """Return the statistics of a run, computed once for each state of its files.

    If they are slow to compute and the files grow, they may be a little old, so that they take a small share of time.
    A page asks for them in several requests at once: the others wait for the first one.
    """
    with run.statistics_lock:
        return _current_statistics(run)


def _current_statistics(run: RunDatabase) -> dict[str, Any]:
    done = run.version()
    stored: dict[str, Any] | None = run.cached_value(STATISTICS)
    if stored is not None:
        age, slow = time.time() - stored["at"], stored["computed_in"] > SLOW_SECONDS
        if stored["done"] == done or (slow and 0 <= age < stored["computed_in"] * PAUSE_FACTOR):
            return stored
    begin = time.monotonic()
    statistics = compute_statistics(run)
    statistics |= {"done": done, "at": time.time(), "computed_in": time.monotonic() - begin}
    run.cache_value(STATISTICS, statistics)
    return statistics


_INTERNAL = frozenset(
    {"agents", "tokens_by_agent", "tokens_by_model", "problems", "columns", "repeats", "done", "at", "computed_in"}
)
"""Statistics that other fields of the summary are made of."""


def _entry(run: RunDatabase, number: int, statistics: dict[str, Any]) -> dict[str, Any]:
    content = run_content_of(run.run)
    done, size = run.progress()
    counts = dict.fromkeys(("scored", "limit", "failed", "cancelled"), 0)
    for outcome in statistics["outcomes"]:
        counts[outcome["outcome"]] = counts.get(outcome["outcome"], 0) + outcome["count"]
    planned, ended = planned_count(content), sum(counts.values())
    state = run_state(run.run, planned, ended)
    cost = run_cost(run.run, statistics["tokens_by_model"], ended)
    reward = statistics["reward"]
    titles = run_titles(run.run, content)
    models = [model for model in statistics["tokens_by_model"] if model]
    unscored = ended - counts["scored"]
    return {
        "number": number,
        "name": run.run.name,
        "path": str(run.run.output),
        **titles,
        "model": ", ".join(models[:3]) or titles["model"],
        **start_and_end(run.run, content),
        **data_facts(content),
        "state": state,
        "planned": planned,
        "rollouts": ended,
        "tasks": statistics["tasks"],
        "outcome_counts": counts,
        "reward": reward,
        "scale": reward_scale(statistics),
        **({"cost": cost} if cost is not None else {}),
        "indexed": done,
        "size": size,
        **({"reading": {"done": done, "size": size}} if done < size else {}),
        "note": f"{unscored:,} not scored" if unscored else "",
    }


def reward_scale(statistics: dict[str, Any]) -> list[float]:
    """Return the range of rewards that the colours cover: 0 to 1, or the range of the run if it is wider."""
    reward = statistics["reward"]
    return [min(0.0, reward.get("min", 0.0)), max(1.0, reward.get("max", 1.0))]


def _work(statistics: dict[str, Any]) -> dict[str, Any]:
    return {
        "tasks": statistics["tasks"],
        "rollouts": statistics["rollouts"],
        "repeats": statistics["repeats"],
        "agents": [row["agent"] for row in statistics["agents"] if row["agent"]],
    }


def _token_sums(statistics: dict[str, Any]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for counts in statistics["tokens_by_model"].values():
        for kind, count in counts.items():
            sums[kind] = sums.get(kind, 0) + count
    return {kind: count for kind, count in sums.items() if count}


def _with_bins(histogram: dict[str, Any]) -> dict[str, Any]:
    """Add to each bin its bounds and the filter of its rollouts."""
    low, high, counts = histogram["low"], histogram["high"], histogram["counts"]
    width = (high - low) / max(len(counts), 1)
    bins = []
    for number, count in enumerate(counts):
        is_last = number == len(counts) - 1
        start, end = round(low + number * width, 12), high if is_last else round(low + (number + 1) * width, 12)
        condition = f"reward >= {start!r} and reward {'<=' if is_last else '<'} {end!r}"
        bins.append({"from": start, "to": end, "count": count, "where": condition})
    return {**histogram, "bins": bins}


def _with_slow_filter(phase: dict[str, Any]) -> dict[str, Any]:
    column = "seconds" if phase["phase"] == "all" else f"seconds_{phase['phase']}"
    return {**phase, "where": f"{column} > {phase['p95']!r}"}


def _outcomes_by_kind(statistics: dict[str, Any]) -> list[dict[str, Any]]:
    total = max(statistics["rollouts"], 1)
    return [
        {
            **entry,
            "share": entry["count"] / total,
            "where": f"outcome == {quote(entry['outcome'])}"
            + (f" and kind == {quote(entry['kind'])}" if entry["kind"] else ""),
        }
        for entry in statistics["outcomes"]
    ]


def _matrix(run: RunDatabase, statistics: dict[str, Any]) -> dict[str, Any]:
    """Return the table of agents × metrics; a column without a value in any row is left out.

    Runs of several agents have a row of all rollouts, whose agent is None.
    """
    agents = statistics["agents"]
    k_values = sorted({point["k"] for agent in agents for point in agent["pass_at_k"]})
    selected_k = sorted({*k_values[:1], *k_values[-1:], *(k for k in k_values if k == 4)}) if len(k_values) > 1 else []
    passes = [(f"pass_{k}", f"pass@{k}", "reward") for k in selected_k]
    columns = [*MATRIX_COLUMNS[:3], *passes, *MATRIX_COLUMNS[3:]]
    rows = []
    for agent in agents:
        cost = run_cost(run.run, statistics["tokens_by_agent"].get(agent["agent"] or "", {}), agent["rollouts"])
        rows.append(_matrix_row(agent, cost, selected_k, f"agent == {quote(agent['agent'] or '')}"))
    if len(agents) > 1:
        cost = run_cost(run.run, statistics["tokens_by_model"], statistics["rollouts"])
        rows.append(_matrix_row(_all_agents(statistics), cost, selected_k, ""))
    used = [column for column in columns if any(row["values"].get(column[0]) for row in rows)]
    names = ("name", "title", "kind")
    return {"columns": [dict(zip(names, column, strict=True)) for column in used], "rows": rows}


def _matrix_row(
    agent: dict[str, Any], cost: dict[str, Any] | None, selected_k: Sequence[int], where: str
) -> dict[str, Any]:
    reward = agent["reward"]
    low, high = reward["interval_95"] or (None, None)
    values = {name: agent[name] for name, *_ in MATRIX_COLUMNS if name in agent}
    values |= {"tasks": reward["tasks"], "mean": reward["mean"], "low": low, "high": high}
    values |= {f"pass_{point['k']}": point["chance"] for point in agent["pass_at_k"] if point["k"] in selected_k}
    if cost is not None:
        values["dollars"] = cost["dollars"]
    conditions = {"failed": 'outcome == "failed"', "limit": 'outcome == "limit"'}
    conditions |= {"cut_off": "cut_off == 1", "no_answer": "no_answer == 1"}
    links = {
        f"{name}_where": f"{where} and {condition}" if where else condition for name, condition in conditions.items()
    }
    return {"agent": agent["agent"], "where": where, "values": {**_present(values), **links}}


def _all_agents(statistics: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of all rollouts in the form of an agent's facts; each rollout has the same weight in means."""
    agents, total = statistics["agents"], max(sum(agent["rollouts"] for agent in statistics["agents"]), 1)
    facts = {"agent": None, "rollouts": statistics["rollouts"]}
    for name in ("cut_off", "no_answer", "limit", "failed", "turns", "tool_calls", "tokens_out", "seconds"):
        present = [agent for agent in agents if agent.get(name) is not None]
        if present:
            facts[name] = sum(agent[name] * agent["rollouts"] for agent in present) / (
                total if len(present) == len(agents) else sum(agent["rollouts"] for agent in present)
            )
    return {**facts, "reward": statistics["reward"], "pass_at_k": statistics["pass_at_k"]}


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _recorded_metrics(metrics: Any) -> dict[str, Any]:
    """Return the key metrics of each agent that the verifiers computed, as one table."""
    rows = []
    for entry in metrics if isinstance(metrics, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("key_metrics"), dict):
            agent = entry.get("agent_ref")
            numbers = {name: value for name, value in entry["key_metrics"].items() if isinstance(value, int | float)}
            rows.append({"agent": agent.get("name", "") if isinstance(agent, dict) else "", "values": numbers})
    columns = list(dict.fromkeys(name for row in rows for name in row["values"]))[:MAX_RECORDED_METRICS]
    return {"columns": columns, "rows": rows}
