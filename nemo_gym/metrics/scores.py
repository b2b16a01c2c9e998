"""Scores with their standard error and 95 % confidence interval, and attrition: failed and retried rollouts.

Errors and intervals are clustered by task. All values are fractions, not percent. A value is left out if the data
are too few for it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nemo_gym.keys import ATTEMPT_INDEX_KEY_NAME
from nemo_gym.metrics.aggregate import RolloutStats
from nemo_gym.metrics.column_statistics import column, is_count
from nemo_gym.metrics.intervals import ClusteredMean, MeanWithInterval
from nemo_gym.metrics.pass_at_k import pass_at_k, pass_hat_k
from nemo_gym.wire.stored_rollout import REWARD_KEY

SCORES = "scores"
ATTRITION = "attrition"
DENSE_K = 16
"""Up to this number of repeats every k is reported; for more repeats, the powers of two and the largest k."""


def compute_scores(stats: RolloutStats, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return mean, standard error and interval of every number, or of those in `names`.

    A column is a share, whose interval is Wilson's, if it is the reward or if all its values are booleans; counts of
    tokens have no interval. Add pass@k and pass^k if every reward is 0 or 1, and the mean with failures as zero if
    rollouts failed.
    """
    selected = stats.names if names is None else [name for name in names if name in stats.names]
    clustered = {name: ClusteredMean(may_be_share=name == REWARD_KEY or name in stats.shares) for name in selected}
    reward_sums: list[tuple[int, float]] = []
    for _, rollouts in stats.by_task():
        for name, clustered_mean in clustered.items():
            values = column((numbers for _, numbers in rollouts), name)
            if values:
                clustered_mean.add_tasks(values)
                if name == REWARD_KEY:
                    reward_sums.append((len(values), sum(values)))
    scores: dict[str, Any] = {
        name: mean_fields(clustered_mean.mean(), with_interval=not is_count(name))
        for name, clustered_mean in clustered.items()
    }
    if REWARD_KEY in scores:
        if clustered[REWARD_KEY].is_pass_or_fail:  # then the sum of the rewards is the number of right rollouts
            scores[REWARD_KEY] |= pass_scores([(count, int(total)) for count, total in reward_sums])
        if failed := stats.all_failed():
            with_zeros = ClusteredMean((task, reward) for task, reward, _ in _rewards(stats))
            for task, _ in failed:
                with_zeros.add(task, 0.0)
            scores[REWARD_KEY]["failures_as_zero"] = mean_fields(with_zeros.mean())
    return scores


def compute_attrition(stats: RolloutStats) -> dict[str, Any]:
    """Count the rollouts that were scored, those that failed (by kind), and the scored ones that were retried.

    Retries can bias the score: compare the mean reward of the retried rollouts with that of the others.
    """
    failed = stats.all_failed()
    attrition: dict[str, Any] = {"scored": len(stats.scored), "failed": len(failed)}
    if failed:
        attrition["failed_by_kind"] = dict(Counter(failed.values()).most_common())
    retried, not_retried = ClusteredMean(), ClusteredMean()
    for task, reward, attempt_index in _rewards(stats):
        (retried if attempt_index > 0 else not_retried).add(task, reward)
    if (mean := retried.mean()) is not None:
        attrition["retried"] = {"count": mean.count, "mean_reward": mean.value}
        if (others := not_retried.mean()) is not None:
            attrition["retried"]["mean_reward_of_others"] = others.value
    return attrition


def pass_scores(task_counts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return pass@k (at least one of k right) and pass^k (all of k right) over the tasks with at least k rollouts.

    `task_counts` holds the number of rollouts and the number of right ones of each task.
    """
    scores: dict[str, Any] = {"pass@k": {}, "pass^k": {}}
    tasks_with_counts = Counter(task_counts)  # tasks with the same counts have the same pass@k
    for k in reported_k(max(n for n, _ in task_counts)):
        for name, estimate in (("pass@k", pass_at_k), ("pass^k", pass_hat_k)):
            clustered_mean = ClusteredMean()
            for (n, right), tasks in tasks_with_counts.items():
                if n >= k:
                    clustered_mean.add_tasks([estimate(n, right, k)], tasks)
            scores[name][str(k)] = mean_fields(clustered_mean.mean(), with_rollouts=False)
    return scores


def mean_fields(
    mean: MeanWithInterval | None, *, with_rollouts: bool = True, with_interval: bool = True
) -> dict[str, Any]:
    """Return the JSON fields of a mean; `with_rollouts` includes the number of its values as `num_rollouts`."""
    if mean is None:
        return {"num_tasks": 0}
    fields: dict[str, Any] = {"mean": mean.value}
    if mean.standard_error is not None:
        fields["standard_error"] = mean.standard_error
    if with_interval and mean.low is not None:
        fields["ci95"] = [mean.low, mean.high]
    if with_rollouts:
        fields["num_rollouts"] = mean.count
    return fields | {"num_tasks": mean.tasks}


def _rewards(stats: RolloutStats) -> Iterator[tuple[int, float, float]]:
    """Yield the task, the reward and the attempt index (0 for the first attempt) of every rollout with a reward."""
    for (task, _), numbers in stats.scored.items():
        if REWARD_KEY in numbers:
            yield task, numbers[REWARD_KEY], numbers.get(ATTEMPT_INDEX_KEY_NAME, 0)


def reported_k(largest: int) -> list[int]:
    """Return the values of k to report: all, or if `largest` is above `DENSE_K`, the powers of two and `largest`."""
    if largest <= DENSE_K:
        return list(range(1, largest + 1))
    powers = [1 << exponent for exponent in range(largest.bit_length())]
    return sorted({*powers, largest})
