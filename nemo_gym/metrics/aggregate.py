"""What `/aggregate_metrics` answers: figures over all rollouts of an agent and for each of its tasks.

Rows are taken in one at a time. Of each, only its numbers stay, and the row itself only if somebody's own metrics
want to see it. No figure depends on the order of the rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from nemo_gym.errors import GymError
from nemo_gym.keys import AGENT_REF_KEY_NAME, NG_FAILURE_CLASS_KEY, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.columns import is_failure
from nemo_gym.metrics.records import Describer, Record, Row, Shapes
from nemo_gym.wire.metrics import AggregateMetrics, AggregateMetricsRequest

ComputeMetricsFn = Callable[[list[list[Row]]], dict[str, Any]]
GetKeyMetricsFn = Callable[[dict[str, Any]], dict[str, Any]]

PER_TASK_METRICS = "per_task_metrics"
NUM_FAILED_ROLLOUTS = "num_failed_rollouts"
ANY_AGENT = {AGENT_REF_KEY_NAME: {"name": "agent"}}


class RolloutRowsError(GymError, ValueError):
    """Rollouts that cannot be counted as they are: one given twice, one too many, or some missing."""


def given_twice(key: tuple[int, int]) -> RolloutRowsError:
    """The complaint about a rollout that is there more than once."""
    return RolloutRowsError(
        f"rollout {key[1]} of task {key[0]} is given twice",
        fix=f"make ({TASK_INDEX_KEY_NAME}, {ROLLOUT_INDEX_KEY_NAME}) unique; was a file merged with itself?",
    )


def index_of(row: Mapping[str, Any], name: str) -> int | None:
    """The task or rollout index of a row, or None if it has none."""
    index = row.get(name)
    if type(index) is int or index is None or (isinstance(index, int) and not isinstance(index, bool)):
        return index
    raise RolloutRowsError(f"{name} must be a whole number, not {index!r:.80}")


class Tally:
    """The rollouts of one agent so far: `add` them in any order, then ask for the figures.

    Of a rollout only its numbers stay, a hundred bytes or two; with `keep_rows` the row too.
    """

    def __init__(self, *, keep_rows: bool = False, shapes: Shapes | None = None) -> None:
        self.records: dict[tuple[int, int], Record] = {}
        self.failed: dict[tuple[int, int], str] = {}
        """Rollouts that were given as failures, and their kind."""
        self.shapes = shapes or Shapes()
        self.latest = (0, 0)
        """Task and rollout index of the one added last."""
        self._noted: dict[tuple[int, int], str] = {}
        self._expected: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._sorted: list[tuple[int, int]] = []
        self._rows: dict[tuple[int, int], Row] | None = {} if keep_rows else None

    def expect(self, task: int) -> None:
        """Announce that one more rollout of `task` should come."""
        self._expected[task] = self._expected.get(task, 0) + 1

    def add(self, result: Row) -> Record | None:
        """Take in one rollout and return its numbers. A failed one is counted, has none and enters no figure."""
        return self.add_at(self._place(result), result)

    def add_at(self, key: tuple[int, int], result: Row) -> Record | None:
        """The same, of a rollout whose task and rollout index are known already."""
        if key in self.records or key in self.failed:
            raise given_twice(key)
        self.latest = key
        if is_failure(result):
            self.failed[key] = str(result[NG_FAILURE_CLASS_KEY])
            return None
        record = self.records[key] = self.shapes.record(result)
        if self._rows is not None:
            self._rows[key] = result
        return record

    def fail(self, task: int, rollout: int, kind: str) -> None:
        """Note a failure that is known from elsewhere. It changes no figure, only what `all_failed` tells."""
        self._noted[task, rollout] = kind

    def all_failed(self) -> dict[tuple[int, int], str]:
        """Every rollout known to have failed and not scored in the end, with the kind of its last failure."""
        return {key: kind for key, kind in {**self._noted, **self.failed}.items() if key not in self.records}

    def by_task(self) -> Iterator[tuple[int, list[tuple[int, Record]]]]:
        """The tasks in order of their index with their scored rollouts in order of theirs."""
        if len(self._sorted) != len(self.records):
            self._sorted = sorted(self.records)
        for task, keys in groupby(self._sorted, key=itemgetter(0)):
            yield task, [(key[1], self.records[key]) for key in keys]

    def rows_by_task(self) -> list[list[Row]]:
        """The rows kept, task by task, each in order of its rollout index."""
        rows = self._rows or {}
        return [[rows[key] for key in keys] for _, keys in groupby(sorted(rows), key=itemgetter(0))]

    def figures(self) -> dict[str, Any]:
        """The figures over all rollouts."""
        figures: dict[str, Any] = dict(Describer(self.shapes.names)(list(self.records.values())))
        if self.failed:
            figures[NUM_FAILED_ROLLOUTS] = len(self.failed)
        return figures

    def groups(self, sample_of: Callable[[int], Mapping[str, Any]] = lambda _: ANY_AGENT) -> Iterator[Row]:
        """What is reported of each task, one at a time: its figures, how complete it is, each rollout in short."""
        describe = Describer(self.shapes.names)
        failed = Counter(task for task, _ in self.failed)
        for task, rollouts in self.by_task():
            done = len(rollouts)
            expected = self._expected.get(task) or done + failed[task]
            yield {
                **describe([record for _, record in rollouts]),
                TASK_INDEX_KEY_NAME: task,
                "sample": sample_of(task),
                "num_rollouts": done,
                "expected_num_rollouts": expected,
                "missing_num_rollouts": expected - done,
                "reward_profile_completion_pct": 100.0 * done / expected,
                "rollout_infos": [shape.info(task, rollout, values) for rollout, (shape, values) in rollouts],
            }

    def _place(self, result: Mapping[str, Any]) -> tuple[int, int]:
        """Task and rollout index of `result`; a row without the second gets the next free number of its task."""
        task = index_of(result, TASK_INDEX_KEY_NAME) or 0
        given = index_of(result, ROLLOUT_INDEX_KEY_NAME)
        if given is not None:
            return task, given
        rollout = self._next.get(task, 0)
        while (task, rollout) in self.records or (task, rollout) in self.failed:
            rollout += 1
        self._next[task] = rollout + 1
        return task, rollout


def mean_metrics(agent_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The entries `mean/…`: what counts as headline when a server does not say."""
    return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}


def compute_aggregate_metrics(
    verify_responses: Iterable[Row],
    compute_metrics_fn: ComputeMetricsFn | None = None,
    get_key_metrics_fn: GetKeyMetricsFn | None = None,
) -> AggregateMetrics:
    """Describe every number of the rollouts, for all of them together and task by task.

    `compute_metrics_fn` gets the scored rows task by task; what it returns is added to the figures of the agent, and
    its `per_task_metrics` to those of the tasks. `get_key_metrics_fn` picks the headline figures (default: the
    means). Failed rollouts enter nothing; if there are any, `num_failed_rollouts` says how many.

    Raises:
        RolloutRowsError: (a ValueError) the same rollout is given twice.
    """
    tally = Tally(keep_rows=compute_metrics_fn is not None)
    for result in verify_responses:
        tally.add(result)
    agent_metrics = tally.figures()
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
    """Put a server's own figures for a task beside ours; a task we do not know is none of ours."""
    for figures in per_task:
        group = groups.get(figures.get(TASK_INDEX_KEY_NAME, -1))
        if group is not None:
            group.update({name: value for name, value in figures.items() if name != TASK_INDEX_KEY_NAME})


class AggregateMetricsMixin:
    """The metrics of a server: override `compute_metrics` to add figures, `get_key_metrics` to choose the headline."""

    def compute_metrics(self, tasks: list[list[Row]]) -> dict[str, Any]:  # noqa: ARG002 - for overriding
        """Figures beyond the standard ones, from the scored rows of each task. None by default."""
        return {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The headline figures: the means, by default."""
        return mean_metrics(agent_metrics)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """The answer of `POST /aggregate_metrics`."""
        return compute_aggregate_metrics(
            body.verify_responses,
            compute_metrics_fn=self.compute_metrics,
            get_key_metrics_fn=self.get_key_metrics,
        )
