"""Metrics over all rollouts of an agent and for each of its tasks: the answer of `/aggregate_metrics`.

Rollouts are added one at a time, in any order. Only their numbers are kept, unless a server computes
additional metrics from the whole results.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, Field

from nemo_gym.errors import GymError
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    EXPECTED_NUM_ROLLOUTS_KEY_NAME,
    MASK_SAMPLE_KEY,
    MISSING_NUM_ROLLOUTS_KEY_NAME,
    NUM_ROLLOUTS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    ROLLOUT_INFOS_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.metrics.column_statistics import Numbers, describe, rollout_info, rollout_numbers
from nemo_gym.wire.stored_rollout import RolloutId, Row, StoredRollout

ComputeMetricsFn = Callable[[list[list[Row]]], dict[str, Any]]
ComputeRepeatMetricsFn = Callable[[list[list[Row]]], list[dict[str, Any]] | dict[str, Any] | None]
GetKeyMetricsFn = Callable[[dict[str, Any]], dict[str, Any]]

PER_TASK_METRICS = "per_task_metrics"
NUM_FAILED_ROLLOUTS = "num_failed_rollouts"
COVERAGE_PREFIX = "coverage/"
"""Prefix of the counts of measured and masked rollouts and tasks; present only if a rollout is masked."""
ANY_AGENT = {AGENT_REF_KEY_NAME: {"name": "agent"}}


class AggregateMetricsRequest(BaseModel):
    """Body of `POST /aggregate_metrics`: verify responses without their large fields.

    Each has at least its task index (`_ng_task_index`) and a `reward`.
    """

    verify_responses: list[dict[str, Any]]


class AggregateMetrics(BaseModel):
    """Answer of `/aggregate_metrics`; the keys are flat texts, which trackers such as W&B and MLflow log directly."""

    group_level_metrics: list[dict[str, Any]] = []
    agent_metrics: dict[str, Any] = {}
    key_metrics: dict[str, Any] = {}
    repeat_level_metrics: list[dict[str, Any]] = Field(default=[], exclude_if=lambda entries: not entries)
    """What a server computed for each repeat: entries with `_ng_rollout_index`."""


class RolloutRowsError(GymError, ValueError):
    """Rollouts cannot be counted: one occurs twice, belongs to no input, has no key, or is missing."""


def duplicate_rollout(rollout_id: RolloutId) -> RolloutRowsError:
    """Build the error for a rollout that occurs twice."""
    task, rollout = rollout_id
    fix = f"make ({TASK_INDEX_KEY_NAME}, {ROLLOUT_INDEX_KEY_NAME}) unique; was a file merged with itself?"
    return RolloutRowsError(f"rollout {rollout} of task {task} occurs twice", fix=fix)


def row_indices(row: Mapping[str, Any]) -> RolloutId:
    """Return the task and rollout index of a row; a missing index is 0."""
    return _index_of(row, TASK_INDEX_KEY_NAME) or 0, _index_of(row, ROLLOUT_INDEX_KEY_NAME) or 0


def _index_of(row: Mapping[str, Any], name: str) -> int | None:
    index = row.get(name)
    if index is None or (isinstance(index, int) and not isinstance(index, bool)):
        return index
    raise RolloutRowsError(f"{name} must be a whole number, not {index!r:.80}")


class RolloutStats:
    """The statistics of one agent's rollouts: `add` the rollouts in any order, then read the metrics.

    Keeps the numbers of each scored rollout, a few hundred bytes, not its whole result.
    """

    def __init__(self, columns_of: "RolloutStats | None" = None) -> None:
        """Start without rollouts; `columns_of` are other statistics of the same columns."""
        self.scored: dict[RolloutId, Numbers] = {}
        self.failed: dict[RolloutId, str] = {}
        """The kind of failure of each rollout that `add` received as failed."""
        self.masked: set[RolloutId] = set()
        """Rollouts with `mask_sample`: their rewards measure nothing, so they enter no statistic."""
        self.names: dict[str, None] = {} if columns_of is None else columns_of.names
        """The names of all numbers, in order of first appearance."""
        self._numeric_names: set[str] = set() if columns_of is None else columns_of._numeric_names
        """The names of numbers that are not boolean in some rollout."""
        self.last_id = (0, 0)
        """The rollout that was added last."""
        self._other_failures: dict[RolloutId, str] = {}
        self._expected: dict[int, int] = {}
        self._next_index: dict[int, int] = {}
        self._sorted_ids: list[RolloutId] = []

    def expect(self, task: int) -> None:
        """Expect one more rollout of `task`."""
        self._expected[task] = self._expected.get(task, 0) + 1

    def add(self, result: Row) -> Numbers | None:
        """Add the result of one rollout and return its numbers; only count a failed or masked one and return None."""
        return self.add_at(self._indices(result), result)

    def add_at(self, rollout_id: RolloutId, result: Row) -> Numbers | None:
        """Do the same as `add`, but identify the rollout by `rollout_id` instead of the indices in its result."""
        if self._has(rollout_id):
            raise duplicate_rollout(rollout_id)
        self.last_id = rollout_id
        failure_kind = StoredRollout(result).failure_class
        if failure_kind is not None:
            self.failed[rollout_id] = failure_kind
            return None
        if result.get(MASK_SAMPLE_KEY) is True:
            self.masked.add(rollout_id)
            return None
        numbers = self.scored[rollout_id] = rollout_numbers(result)
        self.names.update(dict.fromkeys(numbers))
        self._numeric_names.update(name for name in numbers if not isinstance(result.get(name), bool))
        return numbers

    @property
    def shares(self) -> set[str]:
        """The names of numbers that the verifier declares as verdicts: they are true or false in every rollout."""
        return self.names.keys() - self._numeric_names

    def add_failure(self, task: int, rollout: int, kind: str) -> None:
        """Add a failure from a failures file. It changes no metric, only `all_failed`."""
        self._other_failures[task, rollout] = kind

    def all_failed(self) -> dict[RolloutId, str]:
        """Return the kind of failure of every rollout that failed and has no score."""
        failures = {**self._other_failures, **self.failed}
        return {rollout_id: kind for rollout_id, kind in failures.items() if rollout_id not in self.scored}

    def by_task(self) -> Iterator[tuple[int, list[tuple[int, Numbers]]]]:
        """Yield each task that has scored rollouts, with the index and numbers of each, all in order of their index."""
        if len(self._sorted_ids) != len(self.scored):  # rollouts were added since the last call
            self._sorted_ids = sorted(self.scored)
        for task, rollout_ids in groupby(self._sorted_ids, key=itemgetter(0)):
            yield task, [(rollout_id[1], self.scored[rollout_id]) for rollout_id in rollout_ids]

    def metrics(self) -> dict[str, Any]:
        """Return the statistics over the scored rollouts of all tasks, and the number of failed rollouts if any."""
        metrics: dict[str, Any] = dict(describe(list(self.scored.values()), self.names))
        if self.failed:
            metrics[NUM_FAILED_ROLLOUTS] = len(self.failed)
        return metrics | self.coverage()

    def coverage(self) -> dict[str, int]:
        """Count measured and masked rollouts and tasks; empty if nothing is masked."""
        if not self.masked:
            return {}
        measured_tasks = {task for task, _ in self.scored}
        counts = {
            "measured_rollouts": len(self.scored),
            "masked_rollouts": len(self.masked),
            "measured_tasks": len(measured_tasks),
            "fully_masked_tasks": len({task for task, _ in self.masked} - measured_tasks),
        }
        return {COVERAGE_PREFIX + name: count for name, count in counts.items()}

    def groups(self, sample_of: Callable[[int], Mapping[str, Any]] = lambda _: ANY_AGENT) -> Iterator[Row]:
        """Yield an entry for each task with scored rollouts: statistics, sample row, completion and these rollouts."""
        failed = Counter(task for task, _ in (*self.failed, *self.masked))
        for task, rollouts in self.by_task():
            num_scored = len(rollouts)
            expected = self._expected.get(task) or num_scored + failed[task]
            yield {
                **describe([numbers for _, numbers in rollouts], self.names),
                TASK_INDEX_KEY_NAME: task,
                "sample": sample_of(task),
                NUM_ROLLOUTS_KEY_NAME: num_scored,
                EXPECTED_NUM_ROLLOUTS_KEY_NAME: expected,
                MISSING_NUM_ROLLOUTS_KEY_NAME: expected - num_scored,
                "reward_profile_completion_pct": 100.0 * num_scored / expected,
                ROLLOUT_INFOS_KEY_NAME: [rollout_info(task, rollout, numbers) for rollout, numbers in rollouts],
            }

    def _indices(self, result: Mapping[str, Any]) -> RolloutId:
        """Return task and rollout index; a result without a rollout index gets the next free one of its task."""
        task, rollout = row_indices(result)
        if result.get(ROLLOUT_INDEX_KEY_NAME) is not None:
            return task, rollout
        rollout = self._next_index.get(task, 0)
        while self._has((task, rollout)):
            rollout += 1
        self._next_index[task] = rollout + 1
        return task, rollout

    def _has(self, rollout_id: RolloutId) -> bool:
        return rollout_id in self.scored or rollout_id in self.failed or rollout_id in self.masked


def mean_metrics(agent_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries `mean/…`, the default headline metrics."""
    return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}


def compute_aggregate_metrics(
    verify_responses: Iterable[Row],
    compute_metrics_fn: ComputeMetricsFn | None = None,
    get_key_metrics_fn: GetKeyMetricsFn | None = None,
    compute_repeat_metrics_fn: ComputeRepeatMetricsFn | None = None,
) -> AggregateMetrics:
    """Compute the statistics of every number in the rollouts, over all tasks and for each task.

    `compute_metrics_fn` gets a list of scored results for each task. The metrics it returns are added to those of the
    agent, except `per_task_metrics`, which are added to those of the tasks. `compute_repeat_metrics_fn` gets the same
    and returns the list `repeat_level_metrics`; or it returns the metrics of one repeat, then it is called with the
    results of each. `get_key_metrics_fn` selects the headline metrics (default: the means). Failed
    rollouts are counted in `num_failed_rollouts`, masked ones in `coverage/…`, and both are left out of the rest.

    Raises:
        RolloutRowsError: (a ValueError) the same rollout occurs twice.
    """
    stats = RolloutStats()
    needs_results = compute_metrics_fn is not None or compute_repeat_metrics_fn is not None
    scored_results: dict[RolloutId, Row] = {}
    for result in verify_responses:
        if stats.add(result) is not None and needs_results:
            scored_results[stats.last_id] = result
    agent_metrics = stats.metrics()
    groups = {group[TASK_INDEX_KEY_NAME]: group for group in stats.groups()}
    ids_by_task = groupby(sorted(scored_results), key=itemgetter(0))
    results_by_task = [[scored_results[rollout_id] for rollout_id in ids] for _, ids in ids_by_task]
    if compute_metrics_fn is not None:
        computed = dict(compute_metrics_fn(results_by_task) or {})
        _add_to_groups(groups, computed.pop(PER_TASK_METRICS, None) or [])
        agent_metrics |= computed
    key_metrics = (get_key_metrics_fn or mean_metrics)(agent_metrics) | stats.coverage()
    group_metrics = list(groups.values())
    return AggregateMetrics(
        group_level_metrics=group_metrics,
        agent_metrics=agent_metrics,
        key_metrics=key_metrics,
        repeat_level_metrics=_repeat_metrics(results_by_task, compute_repeat_metrics_fn),
    )


def _repeat_metrics(
    results_by_task: list[list[Row]], compute_repeat_metrics_fn: ComputeRepeatMetricsFn | None
) -> list[dict[str, Any]]:
    """Return an entry for each repeat, from a function that returns all entries, or the metrics of one repeat."""
    if compute_repeat_metrics_fn is None:
        return []
    metrics = compute_repeat_metrics_fn(results_by_task) or []
    if not isinstance(metrics, Mapping):
        return metrics
    entries = []
    for index in sorted({row_indices(row)[1] for rows in results_by_task for row in rows}):
        tasks = [kept for rows in results_by_task if (kept := [row for row in rows if row_indices(row)[1] == index])]
        counts = {"sample_count": len(tasks), "missing_count": len(results_by_task) - len(tasks)}
        computed = compute_repeat_metrics_fn(tasks)
        entries.append({ROLLOUT_INDEX_KEY_NAME: index, **counts, **(computed if isinstance(computed, Mapping) else {})})
    return entries


def _add_to_groups(groups: Mapping[int, Row], per_task: Sequence[Mapping[str, Any]]) -> None:
    """Add the per-task metrics that a server computed to the entries of the tasks; unknown tasks are ignored."""
    for metrics in per_task:
        group = groups.get(metrics.get(TASK_INDEX_KEY_NAME, -1))  # no task has the index -1
        if group is not None:
            group.update({name: value for name, value in metrics.items() if name != TASK_INDEX_KEY_NAME})


class AggregateMetricsMixin:
    """Metrics of a server: override `compute_metrics` to add metrics, `get_key_metrics` to select the headline ones."""

    def compute_metrics(self, tasks: list[list[Row]]) -> dict[str, Any]:  # noqa: ARG002 - for overriding
        """Return additional metrics, computed from the scored results of each task; by default none."""
        return {}

    def compute_repeat_metrics(
        self,
        tasks: list[list[Row]],  # noqa: ARG002 - for overriding
    ) -> list[dict[str, Any]] | dict[str, Any] | None:
        """Return a list with the metrics of each repeat and its `_ng_rollout_index`; by default none.

        A dict is the metrics of one repeat: the method is then called again with the results of each repeat.
        """
        return []

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the headline metrics: by default the means."""
        return mean_metrics(agent_metrics)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Answer `POST /aggregate_metrics`."""
        return compute_aggregate_metrics(
            body.verify_responses,
            compute_metrics_fn=self.compute_metrics,
            get_key_metrics_fn=self.get_key_metrics,
            compute_repeat_metrics_fn=self.compute_repeat_metrics,
        )
