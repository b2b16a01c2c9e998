"""Compare stored runs through their indexes: the statistics are those of `nemo_gym.analysis`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.analysis.compare import RunScores, compare_many, compare_two, find_flips
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.index import MEASURED
from nemo_gym.view.run_facts import run_content_of
from nemo_gym.view.summary import run_entry, statistics_of

MAX_FLIPS = 500
MAX_LABEL_VALUES = 24
_FACTS_OF_RUN = ("number", "name", "title", "model", "environment", "started_at", "rollouts", "state", "cost", "data")


def run_scores(run: RunDatabase) -> RunScores:
    """Return the rewards by task of a run, and the facts that a comparison needs."""
    statistics, entry = statistics_of(run), run_entry(run)
    query = f"SELECT task, avg(reward), count(*) FROM rollouts WHERE {MEASURED} GROUP BY task"
    with run.connection() as database:
        rows = database.execute(query).fetchall()
    low, high = entry["scale"]
    return RunScores(
        name=entry["title"],
        means={task: mean for task, mean, _ in rows},
        counts={task: count for task, _, count in rows},
        subsets=_subsets(run),
        facts=_facts(statistics, entry),
        identity=run_content_of(run.run),
        scale=(low, high),
    )


def compare_runs(first: RunDatabase, second: RunDatabase, count: int = 200) -> dict[str, Any]:
    """Compare the second run with the first; list `count` tasks, the largest difference first, and as many flips."""
    scores = run_scores(first), run_scores(second)
    result = compare_two(*scores)
    tasks = scores[0].means.keys() & scores[1].means.keys()
    changed = [task for task in tasks if scores[0].means[task] != scores[1].means[task]]
    changed.sort(key=lambda task: (-abs(scores[1].means[task] - scores[0].means[task]), task))
    flips = find_flips(*scores, sorted(tasks))
    flips_in_order = sorted([*flips["up"], *flips["down"]], key=_size_of_change(scores))
    return {
        **result,
        "runs": [_facts_of_run(run) for run in (first, second)],
        "repeats": [max(one.counts.values(), default=0) for one in scores],
        "rows": [_task_row(scores, task) for task in changed[:count]],
        "flip_rows": _with_questions(second, [_task_row(scores, task) for task in flips_in_order[:count]]),
    }


def compare_several(runs: Sequence[RunDatabase], numbers: Sequence[int]) -> dict[str, Any]:
    """Compare each run with the first one."""
    result = compare_many([run_scores(run) for run in runs])
    for row, run, number in zip(result["runs"], runs, numbers, strict=True):
        entry = run_entry(run, number)
        row |= {name: entry[name] for name in ("number", "title", "model", "reward", "started_at") if name in entry}
    return result


def _facts_of_run(run: RunDatabase) -> dict[str, Any]:
    return {name: value for name, value in run_entry(run).items() if name in _FACTS_OF_RUN}


def _size_of_change(scores: tuple[RunScores, RunScores]) -> Any:
    return lambda task: (-abs(scores[1].means[task] - scores[0].means[task]), task)


def _task_row(scores: tuple[RunScores, RunScores], task: int) -> dict[str, Any]:
    first, second = scores
    means = {"first": first.means[task], "second": second.means[task]}
    return {"task": task, **means, "first_n": first.counts[task], "second_n": second.counts[task]}


def _with_questions(run: RunDatabase, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the question and the agent of each task."""
    query = "SELECT question, agent FROM rollouts r JOIN cells c USING (id) WHERE r.task = ? AND r.current LIMIT 1"
    with run.connection() as database:
        for row in rows[:MAX_FLIPS]:
            question, agent = database.execute(query, (row["task"],)).fetchone() or ("", "")
            row |= {"question": question, "agent": agent}
    return rows


def _subsets(run: RunDatabase) -> dict[str, Mapping[int, str]]:
    """Return the group of each task by agent and by each label that has few values; none if there is one group."""
    with run.connection() as database:
        agents = dict(database.execute("SELECT task, min(agent) FROM rollouts WHERE current GROUP BY task"))
        sets = {number: json.loads(text) for number, text in database.execute("SELECT id, text FROM label_sets")}
        labels = dict(database.execute("SELECT task, min(labels) FROM rollouts WHERE current GROUP BY task"))
    subsets: dict[str, Mapping[int, str]] = {"agent": agents} if len(set(agents.values())) > 1 else {}
    for name in run.label_names():
        values = {one[name] for one in sets.values() if name in one}
        if 1 < len(values) <= MAX_LABEL_VALUES:
            subsets[name] = {task: sets.get(number, {}).get(name, "") for task, number in labels.items()}
    return subsets


def _facts(statistics: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, float]:
    """Return means per rollout and shares of a run by the names of `analysis.compare.COST_FACTS`."""
    total = statistics["rollouts"]
    if not total:
        return {}
    counts, tokens = entry["outcome_counts"], statistics["tokens"]
    facts = {"failed": counts["failed"] / total, "limit": counts["limit"] / total}
    facts["cut_off"] = statistics["problems"]["cut_off"] / total
    facts |= {name: tokens[name]["mean"] for name in ("tokens_in", "tokens_out", "turns") if tokens[name]["sum"]}
    kinds = statistics["tokens_by_model"].values()
    read, cached = sum(one["input"] for one in kinds), sum(one["cached"] for one in kinds)
    if read and cached:
        facts["cached"] = cached / read
    whole = next((phase for phase in statistics["latency"] if phase["phase"] == "all"), None)
    if whole is not None:
        facts |= {"seconds_p50": whole["p50"], "seconds_p95": whole["p95"]}
    if "cost" in entry:
        facts["dollars"] = entry["cost"]["per_rollout"]
    return facts
