"""Compare two or more runs: difference by task with interval and p value, flips, subsets, cost and speed, in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nemo_gym.analysis.comparability import RunDifference, run_differences
from nemo_gym.analysis.paired_tests import PairedDifference, holm, paired_difference
from nemo_gym.metrics.column_statistics import is_failure
from nemo_gym.metrics.intervals import ROUNDING
from nemo_gym.wire.stored_rollout import StoredRollout

LEVEL = 0.05
MAX_POINTS = 400
MAX_NAMED = 4
"""Subsets that the sentence names."""
GRID = 20
BETTER, WORSE, UNCLEAR = "better", "worse", "no clear change"


@dataclass(frozen=True)
class RunScores:
    """The mean reward of each task of a run, and facts for the comparison; a fact that is unknown is left out."""

    name: str
    means: Mapping[int, float]
    counts: Mapping[int, int] = field(default_factory=dict)
    """Scored repeats by task."""
    subsets: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Name of a grouping (`agent`, `difficulty`) -> group of each task."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Means and shares by the names of COST_FACTS."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Content of the identity file."""
    scale: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def from_records(cls, name: str, records: Iterable[Mapping[str, Any]], **facts: Any) -> "RunScores":
        """Build the scores from stored records; failed and masked ones are left out."""
        totals: dict[int, list[float]] = {}
        for record in records:
            stored = StoredRollout(record)
            if stored.reward is not None and not is_failure(record):
                totals.setdefault(stored.key.task, []).append(stored.reward)
        means = {task: sum(rewards) / len(rewards) for task, rewards in totals.items()}
        return cls(name, means, {task: len(rewards) for task, rewards in totals.items()}, **facts)


COST_FACTS = (
    ("dollars", "Cost", "dollars"),
    ("tokens_in", "Tokens in", "count"),
    ("tokens_out", "Tokens out", "count"),
    ("cached", "Tokens in, cached", "share"),
    ("turns", "Turns", "number"),
    ("seconds_p50", "Median time", "seconds"),
    ("seconds_p95", "p95 time", "seconds"),
    ("cut_off", "Cut off", "share"),
    ("limit", "Ended at a limit", "share"),
    ("failed", "Failed", "share"),
)
"""Name, title and unit of the facts of a run per rollout."""


def compare_two(first: RunScores, second: RunScores) -> dict[str, Any]:
    """Compare the second run with the first, over the tasks that both scored, as JSON data."""
    tasks = sorted(first.means.keys() & second.means.keys())
    changes = [_change(first.means[task], second.means[task]) for task in tasks]
    paired = _within_scale(paired_difference(changes), first, second)
    differences = run_differences(first.identity, second.identity)
    flips = find_flips(first, second, tasks)
    is_points = _is_share(first, second)
    result: dict[str, Any] = {
        "tasks": len(tasks),
        "only_first": len(first.means) - len(tasks),
        "only_second": len(second.means) - len(tasks),
        "means": [_mean([run.means[task] for task in tasks]) for run in (first, second)],
        "better": sum(change > 0 for change in changes),
        "worse": sum(change < 0 for change in changes),
        "mean_difference": None if paired is None else paired.mean,
        "interval_95": _interval(paired),
        "p": None if paired is None else paired.p,
        "test": None if paired is None else paired.test,
        "verdict": verdict_of(paired),
        "points": is_points,
        "comparable": not any(one.is_breaking for one in differences) and bool(tasks),
        "differences": [{"kind": one.kind, "text": one.text, "breaking": one.is_breaking} for one in differences],
        "flips": {"up": len(flips["up"]), "down": len(flips["down"]), "threshold": _threshold(first, second)},
        "scatter": scatter_points(first, second, tasks),
        "subsets": compare_subsets(first, second, tasks),
        "costs": compare_costs(first, second),
    }
    if not result["comparable"]:  # a difference of rewards that measure different things is no improvement
        result["verdict"] = UNCLEAR
        result["subsets"] = [{**row, "verdict": UNCLEAR} for row in result["subsets"]]
    result["sentence"] = describe(result, paired, differences, names=("A", "B"))
    result["details"] = describe_details(result)
    return result


def compare_many(runs: Sequence[RunScores]) -> dict[str, Any]:
    """Compare each run with the first one; the p values are corrected for the number of comparisons (Holm)."""
    baseline, others = runs[0], runs[1:]
    comparisons = [compare_two(baseline, run) for run in others]
    corrected = holm([comparison["p"] for comparison in comparisons])
    rows: list[dict[str, Any]] = [
        {"name": baseline.name, "mean": _mean(list(baseline.means.values())), **_costs(baseline)}
    ]
    for run, comparison, p in zip(others, comparisons, corrected, strict=True):
        is_clear = p is not None and p < LEVEL and comparison["comparable"]
        difference = comparison["mean_difference"]
        verdict = UNCLEAR if not is_clear or not difference else BETTER if difference > 0 else WORSE
        names = ("tasks", "means", "mean_difference", "interval_95", "p", "flips", "comparable", "differences", "test")
        facts = {name: comparison[name] for name in names}
        mean = _mean(list(run.means.values()))
        rows.append({"name": run.name, "mean": mean, **facts, "p_corrected": p, "verdict": verdict, **_costs(run)})
    return {"runs": rows, "sentence": _describe_many(rows, _is_share(*runs)), "correction": "Holm"}


def find_flips(first: RunScores, second: RunScores, tasks: Sequence[int]) -> dict[str, list[int]]:
    """Return the tasks whose mean moved across the middle of the scale, the largest change first."""
    threshold = _threshold(first, second)
    flips: dict[str, list[int]] = {"up": [], "down": []}
    for task in tasks:
        was_solved, is_solved = first.means[task] >= threshold, second.means[task] >= threshold
        if was_solved != is_solved:
            flips["up" if is_solved else "down"].append(task)
    for direction in flips.values():
        direction.sort(key=lambda task: (-abs(second.means[task] - first.means[task]), task))
    return flips


def compare_subsets(first: RunScores, second: RunScores, tasks: Sequence[int]) -> list[dict[str, Any]]:
    """Compare the runs within each subset of tasks; the p values are corrected for the number of subsets."""
    rows: list[dict[str, Any]] = []
    for name in first.subsets:
        groups: dict[str, list[int]] = {}
        for task in tasks:
            value = first.subsets[name].get(task)
            if value:
                groups.setdefault(value, []).append(task)
        for value in sorted(groups) if len(groups) > 1 else ():
            changes = [_change(first.means[task], second.means[task]) for task in groups[value]]
            paired = _within_scale(paired_difference(changes), first, second)
            assert paired is not None  # a group has a task
            means = [_mean([run.means[task] for task in groups[value]]) for run in (first, second)]
            facts = {"mean_difference": paired.mean, "interval_95": _interval(paired), "p": paired.p}
            rows.append({"name": name, "value": value, "tasks": len(groups[value]), "means": means, **facts})
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_corrected"] = p
        is_clear = p is not None and p < LEVEL
        row["verdict"] = UNCLEAR if not is_clear else BETTER if row["mean_difference"] > 0 else WORSE
    return rows


def compare_costs(first: RunScores, second: RunScores) -> list[dict[str, Any]]:
    """Return the facts per rollout that both runs have, with the change: relative, of shares in points."""
    rows = []
    for name, title, unit in COST_FACTS:
        one, two = first.facts.get(name), second.facts.get(name)
        if one is None or two is None or (not one and not two):
            continue
        change = two - one if unit == "share" else (two / one - 1 if one else None)
        rows.append({"name": name, "title": title, "unit": unit, "values": [one, two], "change": change})
    return rows


def scatter_points(first: RunScores, second: RunScores, tasks: Sequence[int]) -> list[dict[str, Any]]:
    """Return the means of tasks in both runs, each with the number of its tasks and the lowest of them.

    Many different pairs are put on a grid.
    """
    pairs = _tasks_by_pair((round(first.means[task], 6), round(second.means[task], 6), 1, task) for task in tasks)
    if len(pairs) > MAX_POINTS:
        low, high = _scale(first, second)
        width = (high - low) / GRID or 1.0

        def on_grid(value: float) -> float:
            return low + round((value - low) / width) * width

        pairs = _tasks_by_pair((on_grid(a), on_grid(b), count, task) for (a, b), (count, task) in pairs.items())
    return [{"a": a, "b": b, "count": count, "task": task} for (a, b), (count, task) in sorted(pairs.items())]


def _tasks_by_pair(entries: Iterable[tuple[float, float, int, int]]) -> dict[tuple[float, float], tuple[int, int]]:
    """Return the number of tasks and the lowest task of each pair of means."""
    pairs: dict[tuple[float, float], tuple[int, int]] = {}
    for a, b, count, task in entries:
        counted, lowest = pairs.get((a, b), (0, task))
        pairs[a, b] = counted + count, min(lowest, task)
    return pairs


def verdict_of(paired: PairedDifference | None) -> str:
    """Return the verdict in a word."""
    if paired is None or not paired.is_clear(LEVEL):
        return UNCLEAR
    return BETTER if paired.mean > 0 else WORSE


def describe(
    result: Mapping[str, Any],
    paired: PairedDifference | None,
    differences: Sequence[RunDifference],
    names: tuple[str, str],
) -> str:
    """Return the verdict as a sentence."""
    if paired is None:
        return "Not comparable: no task is scored in both runs."
    first, second = names
    breaking = [one.text for one in differences if one.is_breaking]
    if breaking:
        more = f" (and {len(breaking) - 1} more)" if len(breaking) > 1 else ""
        return f"Not comparable: {breaking[0]}{more}."
    is_points, flips = result["points"], result["flips"]
    flipped = ""
    if flips["up"] or flips["down"]:
        flipped = f"; {flips['up']} task{'' if flips['up'] == 1 else 's'} flipped up, {flips['down']} down"
    interval = _interval_text(paired, is_points)
    if result["verdict"] == UNCLEAR:
        sign = "+" if paired.mean > 0 else ""
        difference = f"{second} − {first} is {sign}{_amount(paired.mean, is_points)}"
        return f"No clear difference: {difference}{interval}{flipped}."
    return f"{second} is {result['verdict']} by {_amount(abs(paired.mean), is_points)}{interval}{flipped}."


def subset_title(row: Mapping[str, Any]) -> str:
    """Return the name of a subset: an agent is known by its own, a value by that of its grouping as well."""
    value = str(row["value"])
    return value if row["name"] == "agent" else f"{row['name']} {value}"


def describe_details(result: Mapping[str, Any]) -> str:
    """Return means, test and cost as a second sentence."""
    if result["mean_difference"] is None:
        return ""
    one, two = result["means"]
    p = "" if result["p"] is None else f", {format_p(result['p'])} ({result['test']} test)"
    tasks = f"{result['tasks']:,} task{'' if result['tasks'] == 1 else 's'}"
    parts = [f"Mean reward {one:.3f} → {two:.3f} over {tasks}, paired by task{p}."]
    clear = [row for row in result["subsets"] if row["verdict"] != UNCLEAR]
    for verdict in (BETTER, WORSE):
        names = [subset_title(row) for row in clear if row["verdict"] == verdict]
        if names:
            rest = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            parts.append(f"Clearly {verdict} in {', '.join(names[:MAX_NAMED])}{rest}.")
    cost = next((row for row in result["costs"] if row["name"] == "dollars"), None)
    if cost is not None and cost["change"] is not None and abs(cost["change"]) >= 0.005:
        parts.append(f"B costs {abs(cost['change']):.0%} {'more' if cost['change'] > 0 else 'less'}.")
    return " ".join(parts)


def format_p(p: float) -> str:
    """Return a p value as `p = 0.005` or `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _describe_many(rows: Sequence[Mapping[str, Any]], is_points: bool) -> str:
    letters = "ABCDEFGH"
    compared = [(letters[index] if index < 8 else row["name"], row) for index, row in enumerate(rows)][1:]
    parts = []
    for letter, row in compared:
        if not row["comparable"]:
            parts.append(f"{letter} is not comparable")
        elif row["verdict"] == UNCLEAR:
            parts.append(f"{letter} shows no clear change")
        else:
            parts.append(f"{letter} is {row['verdict']} by {_amount(abs(row['mean_difference']), is_points)}")
    return f"Against A: {'; '.join(parts)}." if parts else ""


def _interval_text(paired: PairedDifference, is_points: bool) -> str:
    if paired.low is None or paired.high is None:
        return ""
    bounds = (
        (paired.low, paired.high) if paired.mean >= 0 or not paired.is_clear(LEVEL) else (-paired.high, -paired.low)
    )
    low, high = (f"{100 * one:.1f}" if is_points else f"{one:.3g}" for one in bounds)
    return f", 95 % CI {low.replace('-', '−')} – {high.replace('-', '−')}"


def _amount(value: float, is_points: bool) -> str:
    text = f"{100 * value:.1f} points" if is_points else f"{value:.3g}"
    return text.replace("-", "−")


def _interval(paired: PairedDifference | None) -> list[float] | None:
    return None if paired is None or paired.low is None or paired.high is None else [paired.low, paired.high]


def _change(before: float, after: float) -> float:
    """Return the change of a mean; 0 for what comes from rounding, because repeats may be summed in another order."""
    change = after - before
    return 0.0 if abs(change) <= ROUNDING * max(abs(before), abs(after)) else change


def _within_scale(paired: PairedDifference | None, *runs: RunScores) -> PairedDifference | None:
    """Return the difference with its interval cut at the largest difference that the scale of the rewards allows."""
    if paired is None or paired.low is None or paired.high is None:
        return paired
    low, high = _scale(*runs)
    return replace(paired, low=max(low - high, paired.low), high=min(high - low, paired.high))


def _scale(*runs: RunScores) -> tuple[float, float]:
    return min(run.scale[0] for run in runs), max(run.scale[1] for run in runs)


def _threshold(*runs: RunScores) -> float:
    low, high = _scale(*runs)
    return (low + high) / 2


def _is_share(*runs: RunScores) -> bool:
    return _scale(*runs) == (0.0, 1.0)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _costs(run: RunScores) -> dict[str, Any]:
    return {"dollars": run.facts["dollars"]} if "dollars" in run.facts else {}
