"""Scores with their standard error and 95 % interval, pass@k and pass^k, and attrition by failures and retries.

All values are clustered by task and are fractions, not percent. A value is left out if there is too little data.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nemo_gym.keys import ATTEMPT_INDEX_KEY_NAME
from nemo_gym.metrics.aggregate import RolloutStats
from nemo_gym.metrics.column_statistics import column
from nemo_gym.metrics.intervals import ClusteredMean, Mean
from nemo_gym.metrics.pass_at_k import pass_at_k, pass_hat_k
from nemo_gym.wire.stored_rollout import REWARD_KEY

SCORES = "scores"
ATTRITION = "attrition"
DENSE_K = 16
"""Up to this number of repeats every k is reported; for more repeats, the powers of two and the largest k."""


def compute_scores(stats: RolloutStats, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return mean, standard error and interval of every number, or of `names`; for a reward of 0 or 1 also pass@k."""
    selected = stats.names if names is None else [name for name in names if name in stats.names]
    means = {name: ClusteredMean() for name in selected}
    counted: list[tuple[int, float]] = []
    for _, rollouts in stats.by_task():
        for name, mean in means.items():
            values = column((numbers for _, numbers in rollouts), name)
            if values:
                mean.add_tasks(values)
                if name == REWARD_KEY:
                    counted.append((len(values), sum(values)))
    scores: dict[str, Any] = {name: mean_fields(running.mean()) for name, running in means.items()}
    if REWARD_KEY in scores:
        if means[REWARD_KEY].is_pass_or_fail:
            scores[REWARD_KEY] |= pass_scores([(n, int(right)) for n, right in counted])
        if failed := stats.all_failed():
            with_zeros = ClusteredMean((task, reward) for task, reward, _ in _rewards(stats))
            for task, _ in failed:
                with_zeros.add(task, 0.0)
            scores[REWARD_KEY]["failures_as_zero"] = mean_fields(with_zeros.mean())
    return scores


def compute_attrition(stats: RolloutStats) -> dict[str, Any]:
    """Count the rollouts that were scored, that failed (by kind), and that needed more than one attempt.

    Retries can bias the score: compare the mean reward of the retried rollouts with that of the others.
    """
    failed = stats.all_failed()
    attrition: dict[str, Any] = {"scored": len(stats.records), "failed": len(failed)}
    if failed:
        attrition["failed_by_kind"] = dict(Counter(failed.values()).most_common())
    retried, first = ClusteredMean(), ClusteredMean()
    for task, reward, attempt in _rewards(stats):
        (retried if attempt else first).add(task, reward)
    if (mean := retried.mean()) is not None:
        attrition["retried"] = {"count": mean.count, "mean_reward": mean.value}
        if (others := first.mean()) is not None:
            attrition["retried"]["mean_reward_of_others"] = others.value
    return attrition


def pass_scores(counted: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return pass@k (at least one of k right) and pass^k (all of k right) over the tasks with at least k rollouts.

    `counted` has the number of rollouts and the number of right ones for each task.
    """
    scores: dict[str, Any] = {"pass@k": {}, "pass^k": {}}
    counts = Counter(counted)
    for k in _reported_k(max(n for n, _ in counted)):
        for name, estimate in (("pass@k", pass_at_k), ("pass^k", pass_hat_k)):
            running = ClusteredMean()
            for (n, right), tasks in counts.items():
                if n >= k:
                    running.add_tasks([estimate(n, right, k)], tasks)
            scores[name][str(k)] = mean_fields(running.mean(), rollouts=False)
    return scores


def mean_fields(mean: Mean | None, *, rollouts: bool = True) -> dict[str, Any]:
    """Return the JSON fields of a mean; with `rollouts`, the number of values is included as `num_rollouts`."""
    if mean is None:
        return {"num_tasks": 0}
    fields: dict[str, Any] = {"mean": mean.value}
    if mean.standard_error is not None:
        fields |= {"standard_error": mean.standard_error, "ci95": [mean.low, mean.high]}
    counted = {"num_rollouts": mean.count} if rollouts else {}
    return fields | counted | {"num_tasks": mean.tasks}


def _rewards(stats: RolloutStats) -> Iterator[tuple[int, float, float]]:
    """Yield the task, the reward and the attempt number of every rollout that has a reward."""
    for (task, _), numbers in stats.records.items():
        if REWARD_KEY in numbers:
            yield task, numbers[REWARD_KEY], numbers.get(ATTEMPT_INDEX_KEY_NAME, 0)


def _reported_k(largest: int) -> list[int]:
    """Return the values of k to report: all up to `DENSE_K`, else powers of two and `largest`."""
    if largest <= DENSE_K:
        return list(range(1, largest + 1))
    powers = [1 << exponent for exponent in range(largest.bit_length())]
    return sorted({*powers, largest})
