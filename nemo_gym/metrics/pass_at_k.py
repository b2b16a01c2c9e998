"""pass@k, the average over k rollouts and majority@k, each averaged over tasks, in percent.

A task is the list of its rollouts, in order of their rollout index. Failed rollouts and scores that are missing, NaN or
infinite are left out of all counts.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from nemo_gym.metrics.column_statistics import finite_number, is_failure, mean, sample_std

Rollout = dict[str, Any]
Scores = dict[str, float]
ScoreFn = Callable[[Rollout], Mapping[str, Any]]

NO_ANSWER = "no_answer"
PER_SAMPLE_AGGREGATE = "per_sample_aggregate"
STD_DEV_ACROSS_RUNS = "std_dev_across_runs"
STD_ERR_ACROSS_RUNS = "std_err_across_runs"
AVG_SAMPLE_STD_DEV = "avg_sample_std_dev"
STAT_SUFFIXES = tuple(f"/{name}" for name in (STD_DEV_ACROSS_RUNS, STD_ERR_ACROSS_RUNS, AVG_SAMPLE_STD_DEV))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the probability that at least one of `k` rollouts, drawn from `n` with `correct` right ones, is right."""
    _check_counts("pass@k", n, correct, k)
    wrong = n - correct
    return 1.0 if wrong < k else 1.0 - math.comb(wrong, k) / math.comb(n, k)


def pass_hat_k(n: int, correct: int, k: int) -> float:
    """Return the probability that all of `k` rollouts, drawn from `n` with `correct` right ones, are right (pass^k)."""
    _check_counts("pass^k", n, correct, k)
    return math.comb(correct, k) / math.comb(n, k)


def _check_counts(name: str, n: int, correct: int, k: int) -> None:
    if not (0 <= correct <= n and 1 <= k <= n):
        raise ValueError(f"{name} needs 0 <= correct <= n and 1 <= k <= n, got n={n}, correct={correct}, k={k}")


def compute_pass_majority_metrics(
    tasks: Sequence[Sequence[Rollout]], score_fn: ScoreFn | None = None, answer_key: str | None = None
) -> tuple[dict[str, Any], list[list[Scores]], list[str], int]:
    """Score every rollout and average over tasks, for every k up to the largest number of rollouts of a task.

    `score_fn` returns the scores of one rollout by name (default: `accuracy`, the reward). `answer_key` names the field
    with the extracted answer; it adds the score `no_answer` and the `majority@k` metrics. A task with fewer than k
    scores is left out of `pass@k`; the averages use the scores that the task has.

    Returns:
        The metrics, the scores of each task's rollouts, the names of the scores, and the largest k.
    """
    scored_tasks = [[rollout for rollout in task if not is_failure(rollout)] for task in tasks]
    all_scores = [[_scores_of(rollout, score_fn, answer_key) for rollout in task] for task in scored_tasks]
    score_names = list(dict.fromkeys(name for task in all_scores for scores in task for name in scores))
    max_k = max((len(task) for task in all_scores), default=0)
    columns_of = {name: [column for task in all_scores if (column := _column(task, name))] for name in score_names}
    metrics: dict[str, Any] = {}
    for k in range(1, max_k + 1):
        for name, columns in columns_of.items():
            _put_mean(metrics, f"pass@{k}/{name}", (_pass_chance(column, k) for column in columns if len(column) >= k))
            _put_mean(metrics, f"pass@1[avg-of-{k}]/{name}", (mean(column[:k]) for column in columns))
            if answer_key is not None:
                majority_scores = (
                    _majority_score(task[:k], scores[:k], answer_key, name)
                    for task, scores in zip(scored_tasks, all_scores, strict=True)
                    if task
                )
                _put_mean(metrics, f"majority@{k}/{name}", majority_scores)
    if max_k:
        _add_spread_across_runs(metrics, all_scores, score_names, max_k)
    return metrics, all_scores, score_names, max_k


def add_avg_sample_std_dev(
    metrics: dict[str, Any],
    all_score_dicts: Sequence[Sequence[Mapping[str, Any]]],
    score_names: Iterable[str],
    max_k: int,
) -> None:
    """Add the standard deviation of a task's first k scores, averaged over tasks and in percent, for k >= 2."""
    for name in score_names:
        columns = [_column(task, name) for task in all_score_dicts]
        for k in range(2, max_k + 1):
            deviations = (sample_std(column[:k]) for column in columns)
            key = f"pass@1[avg-of-{k}]/{name}/{AVG_SAMPLE_STD_DEV}"
            _put_mean(metrics, key, (deviation for deviation in deviations if deviation is not None))


def add_pass_hat_k(
    metrics: dict[str, Any],
    all_score_dicts: Sequence[Sequence[Mapping[str, Any]]],
    score_names: Iterable[str],
    max_k: int,
) -> None:
    """Add `pass^{k}/{score}` to `metrics`: the probability that k rollouts of a task all pass, averaged over tasks.

    In percent. Only for scores whose values are all 0 or 1; tasks with fewer than k values are left out.
    """
    for name in score_names:
        columns = [_column(task, name) for task in all_score_dicts]
        if any(value not in (0, 1) for column in columns for value in column):
            continue
        counts = [(len(column), sum(value == 1 for value in column)) for column in columns]
        for k in range(1, max_k + 1):
            _put_mean(metrics, f"pass^{k}/{name}", (pass_hat_k(n, correct, k) for n, correct in counts if n >= k))


def compute_subset_metrics(
    tasks: Sequence[Sequence[Rollout]], subset_key: str, score_fn: ScoreFn | None = None, answer_key: str | None = None
) -> dict[str, Any]:
    """Compute the metrics of `compute_pass_majority_metrics` for each subset of the tasks, as `<subset>/<metric>`.

    The subset of a task is the value of the field `subset_key` in its first rollout; a task without one is left out.
    """
    subsets: dict[Any, list[Sequence[Rollout]]] = {}
    for task in tasks:
        subset = task[0].get(subset_key) if task else None
        if subset:
            subsets.setdefault(subset if isinstance(subset, Hashable) else repr(subset), []).append(task)
    return {
        f"{subset}/{name}": value
        for subset, members in subsets.items()
        for name, value in compute_pass_majority_metrics(members, score_fn, answer_key)[0].items()
        if name != PER_SAMPLE_AGGREGATE
    }


def highest_k_metrics(
    agent_metrics: Mapping[str, Any],
    pattern: str,
    score_names: Iterable[str] | None = None,
    exclude_names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Return the entries `<pattern>/<score>` with the largest k; a pattern is e.g. `pass@{k}` or `pass@1[avg-of-{k}]`.

    Standard deviations and errors are left out. `score_names` restricts the scores, `exclude_names` removes some.
    """
    prefix, placeholder, suffix = pattern.partition("{k}")
    if not placeholder:
        raise ValueError(f"the pattern {pattern!r} has no '{{k}}'; write for example 'pass@{{k}}'")
    key_pattern = re.compile(rf"{re.escape(prefix)}(\d+){re.escape(suffix)}/(.+)", re.DOTALL)
    included = None if score_names is None else set(score_names)
    excluded = set(exclude_names or ())
    entries: list[tuple[int, str]] = []
    for key in agent_metrics:
        match = key_pattern.fullmatch(key)
        if match is None or match[2].endswith(STAT_SUFFIXES):
            continue
        k, score_name = int(match[1]), match[2]
        if score_name not in excluded and (included is None or score_name in included):
            entries.append((k, key))
    highest = max((k for k, _ in entries), default=0)
    return {key: agent_metrics[key] for k, key in entries if k == highest}


def headline_metrics(
    agent_metrics: Mapping[str, Any], *names: str, patterns: Iterable[str] = ("pass@{k}",)
) -> dict[str, Any]:
    """Return the mean reward, the metrics called `names`, and for each pattern the entries with the largest k.

    Metrics that `agent_metrics` does not contain are left out.
    """
    headline = {name: agent_metrics[name] for name in ("mean/reward", *names) if name in agent_metrics}
    for pattern in patterns:
        headline |= highest_k_metrics(agent_metrics, pattern)
    return headline


def _scores_of(rollout: Rollout, score_fn: ScoreFn | None, answer_key: str | None) -> Scores:
    """Return the finite scores of a rollout by name. If `answer_key` is given, add the score `no_answer`."""
    values = {"accuracy": rollout.get("reward")} if score_fn is None else score_fn(rollout)
    scores: Scores = {}
    for name, value in values.items():
        if (number := finite_number(value)) is not None:
            scores[name] = number
    if answer_key is not None:
        scores[NO_ANSWER] = int(rollout.get(answer_key) is None)
    return scores


def _column(task: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return the scores called `name` of one task's rollouts; missing ones are left out."""
    numbers = (finite_number(scores.get(name)) for scores in task)
    return [number for number in numbers if number is not None]


def _pass_chance(values: Sequence[float], k: int) -> float:
    """Return pass@k of one task for scores of 0 and 1, else the best of the first k scores."""
    if all(value in (0, 1) for value in values):
        return pass_at_k(len(values), sum(value == 1 for value in values), k)
    return max(values[:k])


def _majority_score(task: Sequence[Rollout], scores: Sequence[Scores], answer_key: str, name: str) -> float:
    """Return the score `name` of the most frequent answer, averaged over ties.

    If no rollout has an answer, all scores are 0, except `no_answer`, which is 1.
    """
    votes = Counter(
        (answer if isinstance(answer, str | int | float | bool) else repr(answer), score[name])
        for rollout, score in zip(task, scores, strict=True)
        if (answer := rollout.get(answer_key)) is not None and name in score
    )
    if not votes:
        return float(name == NO_ANSWER)
    max_count = max(votes.values())
    return mean([score for (_, score), count in votes.items() if count == max_count])


def _put_mean(metrics: dict[str, Any], key: str, values: Iterable[float]) -> None:
    """Store the mean of `values` in percent, unless there are no values or the mean is too large for a float."""
    numbers = list(values)
    if numbers and math.isfinite(percent := 100.0 * mean(numbers)):
        metrics[key] = percent


def _add_spread_across_runs(
    metrics: dict[str, Any], all_scores: Sequence[Sequence[Scores]], score_names: Sequence[str], max_k: int
) -> None:
    """Add the mean score of each "run", and the standard deviation and error of these means.

    Here, as in the names of these metrics, run n consists of the n-th rollout of every task.
    """
    run_means: dict[str, list[float]] = {}
    for name in score_names:
        runs = ([task[n][name] for task in all_scores if n < len(task) and name in task[n]] for n in range(max_k))
        percents = [100.0 * mean(values) for values in runs if values]
        run_means[name] = percents if all(map(math.isfinite, percents)) else []
    metrics[PER_SAMPLE_AGGREGATE] = run_means
    for k in range(2, max_k + 1):
        for name in score_names:
            deviation = sample_std(run_means[name][:k]) if len(run_means[name]) >= k else None
            if deviation is not None:
                key = f"pass@1[avg-of-{k}]/{name}"
                metrics[f"{key}/{STD_DEV_ACROSS_RUNS}"] = deviation
                metrics[f"{key}/{STD_ERR_ACROSS_RUNS}"] = deviation / math.sqrt(k)
