"""Metrics over all rollouts of an agent and for each of its tasks: the answer of `/aggregate_metrics`.

Rows are added one at a time. Only their numbers are kept, and rows only if the server adds metrics. No metric depends
on the order of the rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from nemo_gym.errors import GymError
from nemo_gym.keys import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.rollout_numbers import Record, Shapes, describe
from nemo_gym.wire.metrics import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.wire.stored_rollout import RolloutId, Row, StoredRollout

ComputeMetricsFn = Callable[[list[list[Row]]], dict[str, Any]]
GetKeyMetricsFn = Callable[[dict[str, Any]], dict[str, Any]]

PER_TASK_METRICS = "per_task_metrics"
NUM_FAILED_ROLLOUTS = "num_failed_rollouts"
ANY_AGENT = {AGENT_REF_KEY_NAME: {"name": "agent"}}


class RolloutRowsError(GymError, ValueError):
    """Rollouts that cannot be counted: one occurs twice, belongs to no input, or is missing."""


def duplicate_rollout(rollout_id: RolloutId) -> RolloutRowsError:
    """Make the error for a rollout that occurs twice."""
    return RolloutRowsError(
        f"rollout {rollout_id[1]} of task {rollout_id[0]} is given twice",
        fix=f"make ({TASK_INDEX_KEY_NAME}, {ROLLOUT_INDEX_KEY_NAME}) unique; was a file merged with itself?",
    )


def row_indices(row: Mapping[str, Any]) -> RolloutId:
    """Return the task and rollout index of a row, 0 where it has none."""
    return _index_of(row, TASK_INDEX_KEY_NAME) or 0, _index_of(row, ROLLOUT_INDEX_KEY_NAME) or 0


def _index_of(row: Mapping[str, Any], name: str) -> int | None:
    index = row.get(name)
    if index is None or (isinstance(index, int) and not isinstance(index, bool)):
        return index
    raise RolloutRowsError(f"{name} must be a whole number, not {index!r:.80}")


class Tally:
    """The rollouts of one agent: `add` them in any order, then read the metrics.

    Keeps the numbers of each rollout, one or two hundred bytes; with `keep_rows` the row too.
    """

    def __init__(self, *, keep_rows: bool = False, shapes: Shapes | None = None) -> None:
        self.records: dict[RolloutId, Record] = {}
        self.failed: dict[RolloutId, str] = {}
        """Rollouts that were added as failures, and their kind."""
        self.shapes = shapes or Shapes()
        self.latest = (0, 0)
        """Task and rollout index of the rollout added last."""
        self._other_failures: dict[RolloutId, str] = {}
        self._expected: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._sorted: list[RolloutId] = []
        self._rows: dict[RolloutId, Row] | None = {} if keep_rows else None

    def expect(self, task: int) -> None:
        """Expect one more rollout of `task`."""
        self._expected[task] = self._expected.get(task, 0) + 1

    def add(self, result: Row) -> Record | None:
        """Add one rollout and return its numbers. A failed one is counted, has none and enters no metric."""
        return self.add_at(self._indices(result), result)

    def add_at(self, key: RolloutId, result: Row) -> Record | None:
        """Add a rollout under a task and rollout index."""
        if key in self.records or key in self.failed:
            raise duplicate_rollout(key)
        self.latest = key
        failure_class = StoredRollout(result).failure_class
        if failure_class is not None:
            self.failed[key] = failure_class
            return None
        record = self.records[key] = self.shapes.record(result)
        if self._rows is not None:
            self._rows[key] = result
        return record

    def fail(self, task: int, rollout: int, kind: str) -> None:
        """Add a failure from a failures file. It changes no metric, only `all_failed`."""
        self._other_failures[task, rollout] = kind

    def all_failed(self) -> dict[RolloutId, str]:
        """Return every rollout that failed and was not scored later, with the kind of its last failure."""
        failures = {**self._other_failures, **self.failed}
        return {key: kind for key, kind in failures.items() if key not in self.records}

    def by_task(self) -> Iterator[tuple[int, list[tuple[int, Record]]]]:
        """Yield the tasks in order with their scored rollouts in order."""
        if len(self._sorted) != len(self.records):
            self._sorted = sorted(self.records)
        for task, keys in groupby(self._sorted, key=itemgetter(0)):
            yield task, [(key[1], self.records[key]) for key in keys]

    def rows_by_task(self) -> list[list[Row]]:
        """Return the kept rows, task by task, each in order of its rollout index."""
        rows = self._rows or {}
        return [[rows[key] for key in keys] for _, keys in groupby(sorted(rows), key=itemgetter(0))]

    def metrics(self) -> dict[str, Any]:
        """Return the statistics over all rollouts."""
        metrics: dict[str, Any] = dict(describe(list(self.records.values()), self.shapes.names))
        if self.failed:
            metrics[NUM_FAILED_ROLLOUTS] = len(self.failed)
        return metrics

    def groups(self, sample_of: Callable[[int], Mapping[str, Any]] = lambda _: ANY_AGENT) -> Iterator[Row]:
        """Yield the entry of each task: its statistics, its completion and a summary of each rollout."""
        names = self.shapes.names
        failed = Counter(task for task, _ in self.failed)
        for task, rollouts in self.by_task():
            done = len(rollouts)
            expected = self._expected.get(task) or done + failed[task]
            yield {
                **describe([record for _, record in rollouts], names),
                TASK_INDEX_KEY_NAME: task,
                "sample": sample_of(task),
                "num_rollouts": done,
                "expected_num_rollouts": expected,
                "missing_num_rollouts": expected - done,
                "reward_profile_completion_pct": 100.0 * done / expected,
                "rollout_infos": [shape.info(task, rollout, values) for rollout, (shape, values) in rollouts],
            }

    def _indices(self, result: Mapping[str, Any]) -> RolloutId:
        """Return task and rollout index; a row without the second gets the next free one of its task."""
        task, rollout = row_indices(result)
        if result.get(ROLLOUT_INDEX_KEY_NAME) is not None:
            return task, rollout
        rollout = self._next.get(task, 0)
        while (task, rollout) in self.records or (task, rollout) in self.failed:
            rollout += 1
        self._next[task] = rollout + 1
        return task, rollout


def mean_metrics(agent_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries `mean/…`, the default headline metrics."""
    return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}


def compute_aggregate_metrics(
    verify_responses: Iterable[Row],
    compute_metrics_fn: ComputeMetricsFn | None = None,
    get_key_metrics_fn: GetKeyMetricsFn | None = None,
) -> AggregateMetrics:
    """Describe every number of the rollouts, for all of them together and task by task.

    `compute_metrics_fn` gets the scored rows task by task; its result is added to the metrics of the agent, and its
    `per_task_metrics` to those of the tasks. `get_key_metrics_fn` picks the headline metrics (default: the means).
    Failed rollouts enter no metric; `num_failed_rollouts` counts them.

    Raises:
        RolloutRowsError: (a ValueError) the same rollout occurs twice.
    """
    tally = Tally(keep_rows=compute_metrics_fn is not None)
    for result in verify_responses:
        tally.add(result)
    agent_metrics = tally.metrics()
    groups = {group[TASK_INDEX_KEY_NAME]: group for group in tally.groups()}
    if compute_metrics_fn is not None:
        computed = dict(compute_metrics_fn(tally.rows_by_task()) or {})
        _add_to_groups(groups, computed.pop(PER_TASK_METRICS, None) or [])
        agent_metrics |= computed
    pick = get_key_metrics_fn or mean_metrics
    return AggregateMetrics(
        group_level_metrics=list(groups.values()),
        agent_metrics=agent_metrics,
        key_metrics=pick(agent_metrics),
    )


def _add_to_groups(groups: Mapping[int, Row], per_task: Sequence[Mapping[str, Any]]) -> None:
    """Add a server's metrics of its tasks to the entries of the tasks; unknown tasks are ignored."""
    for metrics in per_task:
        group = groups.get(metrics.get(TASK_INDEX_KEY_NAME, -1))
        if group is not None:
            group.update({name: value for name, value in metrics.items() if name != TASK_INDEX_KEY_NAME})


class AggregateMetricsMixin:
    """The metrics of a server: override `compute_metrics` to add some, `get_key_metrics` to choose the headline."""

    def compute_metrics(self, tasks: list[list[Row]]) -> dict[str, Any]:  # noqa: ARG002 - for overriding
        """Return further metrics from the scored rows of each task; by default no further ones."""
        return {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the headline metrics: by default the means."""
        return mean_metrics(agent_metrics)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Answer `POST /aggregate_metrics`."""
        return compute_aggregate_metrics(
            body.verify_responses,
            compute_metrics_fn=self.compute_metrics,
            get_key_metrics_fn=self.get_key_metrics,
        )
