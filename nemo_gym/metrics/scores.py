"""What a score is worth: its error, its 95 % interval, passing once or always in k tries, and what failures hide.

Everything is clustered by task and given as a fraction, not in percent. A value is left out where the data cannot say.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from nemo_gym.keys import ATTEMPT_INDEX_KEY_NAME
from nemo_gym.metrics.aggregate import Tally
from nemo_gym.metrics.intervals import ClusteredMean, Clusters, Mean
from nemo_gym.metrics.pass_at_k import pass_at_k, pass_hat_k
from nemo_gym.metrics.records import Record, columns_of

REWARD = "reward"
SCORES = "scores"
ATTRITION = "attrition"
MOST_K = 16
"""Up to this many repeats every k is reported; beyond, the powers of two and the largest."""


def scores_of(tally: Tally, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Mean, error and interval of every number of the rollouts, or of `names`; of a pass-or-fail reward also tries."""
    wanted = tally.shapes.names if names is None else [name for name in names if name in tally.shapes.names]
    clusters: dict[str, Clusters] = {name: Clusters() for name in wanted}
    lone: list[Record] = []
    counted: list[tuple[int, float]] = []
    for _, rollouts in tally.by_task():
        if len(rollouts) == 1:
            lone.append(rollouts[0][1])
            continue
        for name, values in columns_of([record for _, record in rollouts], clusters):
            clusters[name].add(values)
            if name == REWARD:
                counted.append((len(values), sum(values)))
    for name, values in columns_of(lone, clusters):
        clusters[name].add_each(values)
        if name == REWARD:
            counted += [(1, value) for value in values]
    scores: dict[str, Any] = {name: spelt(cluster.mean()) for name, cluster in clusters.items()}
    if REWARD in scores:
        if clusters[REWARD].pass_or_fail:
            scores[REWARD] |= tries([(n, int(right)) for n, right in counted])
        if failed := tally.all_failed():
            scores[REWARD]["failures_as_zero"] = spelt(_with_zeros(tally, [task for task, _ in failed]))
    return scores


def attrition_of(tally: Tally) -> dict[str, Any]:
    """How many rollouts were scored, how many failed and why, and how many needed more than one attempt.

    Retried rollouts rolled the dice again: if their mean differs from the others', so does the score from what a single
    attempt would have given.
    """
    failed = tally.all_failed()
    told: dict[str, Any] = {"scored": len(tally.records), "failed": len(failed)}
    if failed:
        told["failed_by_kind"] = dict(Counter(failed.values()).most_common())
    retried, first = ClusteredMean(), ClusteredMean()
    for (task, _), (shape, values) in tally.records.items():
        if REWARD in shape.position:
            again = ATTEMPT_INDEX_KEY_NAME in shape.position and values[shape.position[ATTEMPT_INDEX_KEY_NAME]] > 0
            (retried if again else first).add(task, values[shape.position[REWARD]])
    if (mean := retried.mean()) is not None:
        told["retried"] = {"count": mean.count, "mean_reward": mean.value}
        if (others := first.mean()) is not None:
            told["retried"]["mean_reward_of_others"] = others.value
    return told


def tries(counted: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """pass@k (one of k right) and pass^k (all of k right) over the tasks that have k rollouts.

    `counted` has, for each task, how many rollouts it has and how many of them are right.
    """
    told: dict[str, Any] = {"pass@k": {}, "pass^k": {}}
    alike = Counter(counted)
    for k in _reported(max(n for n, _ in counted)):
        for name, estimate in (("pass@k", pass_at_k), ("pass^k", pass_hat_k)):
            clusters = Clusters()
            for (n, right), tasks in alike.items():
                if n >= k:
                    clusters.add_each([estimate(n, right, k)] * tasks)
            told[name][str(k)] = spelt(clusters.mean(), rollouts=False)
    return told


def spelt(mean: Mean | None, *, rollouts: bool = True) -> dict[str, Any]:
    """A mean as it is written in files; `rollouts` says of how many, where the values are of rollouts."""
    if mean is None:
        return {"num_tasks": 0}
    told: dict[str, Any] = {"mean": mean.value}
    if mean.standard_error is not None:
        told |= {"standard_error": mean.standard_error, "ci95": [mean.low, mean.high]}
    counted = {"num_rollouts": mean.count} if rollouts else {}
    return told | counted | {"num_tasks": mean.tasks}


def _with_zeros(tally: Tally, failed: Iterable[int]) -> Mean | None:
    """The mean reward if every failed rollout, given by its task, had earned nothing."""
    running = ClusteredMean()
    for (task, _), (shape, values) in tally.records.items():
        if REWARD in shape.position:
            running.add(task, values[shape.position[REWARD]])
    for task in failed:
        running.add(task, 0.0)
    return running.mean()


def _reported(largest: int) -> list[int]:
    if largest <= MOST_K:
        return list(range(1, largest + 1))
    powers = [1 << exponent for exponent in range(largest.bit_length())]
    return sorted({*powers, largest})
