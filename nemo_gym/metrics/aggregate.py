"""What `/aggregate_metrics` answers: figures over all rollouts of an agent and for each of its tasks.

Rows are taken in one at a time. Of each, only its numbers stay, and the row itself only if somebody's own metrics
want to see it. No figure depends on the order of the rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nemo_gym.errors import GymError
from nemo_gym.keys import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.columns import Columns, Numbers, is_failure, own_and_usage
from nemo_gym.wire.tasks import AggregateMetrics, AggregateMetricsRequest

Row = dict[str, Any]
ComputeMetricsFn = Callable[[list[list[Row]]], dict[str, Any]]
GetKeyMetricsFn = Callable[[dict[str, Any]], dict[str, Any]]

PER_TASK_METRICS = "per_task_metrics"
NUM_FAILED_ROLLOUTS = "num_failed_rollouts"
ANY_AGENT = {AGENT_REF_KEY_NAME: {"name": "agent"}}


class RolloutRowsError(GymError, ValueError):
    """Rollouts that cannot be counted as they are: one given twice, one too many, or some missing."""


def index_of(row: Mapping[str, Any], name: str) -> int | None:
    """The task or rollout index of a row, or None if it has none."""
    index = row.get(name)
    if index is None or (isinstance(index, int) and not isinstance(index, bool)):
        return index
    raise RolloutRowsError(f"{name} must be a whole number, not {index!r:.80}")


def rollout_info(task: int, rollout: int, own: Numbers, usage: Numbers) -> Row:
    """One rollout in short: who it is, its reward, its token usage, its other numbers."""
    info: Row = {
        "rollout_id": f"{task}:{rollout}",
        TASK_INDEX_KEY_NAME: task,
        ROLLOUT_INDEX_KEY_NAME: rollout,
    }
    if "reward" in own:
        info["reward"] = own["reward"]
    info.update(usage)
    info.update(own)
    return info


class TaskTally:
    """The rollouts of one task so far."""

    def __init__(self, task: int, *, expected: int = 0) -> None:
        self.task = task
        self.expected = expected
        self.columns = Columns()
        self.infos: dict[int, Row] = {}
        self.rows: dict[int, Row] = {}
        self.failed: set[int] = set()

    def number_of(self, result: Mapping[str, Any]) -> int:
        """The rollout index of `result`; a row without one gets the next number."""
        given = index_of(result, ROLLOUT_INDEX_KEY_NAME)
        rollout = len(self.infos) + len(self.failed) if given is None else given
        if rollout in self.infos or rollout in self.failed:
            raise RolloutRowsError(
                f"rollout {rollout} of task {self.task} is given twice",
                fix=f"make ({TASK_INDEX_KEY_NAME}, {ROLLOUT_INDEX_KEY_NAME}) unique; was a file merged with itself?",
            )
        return rollout

    def entry(self, sample: Mapping[str, Any], columns: Iterable[str]) -> Row:
        """What is reported about the task: its figures, how complete it is, and each rollout in short."""
        done = len(self.infos)
        expected = self.expected or done + len(self.failed)
        return {
            **self.columns.describe(columns),
            TASK_INDEX_KEY_NAME: self.task,
            "sample": sample,
            "num_rollouts": done,
            "expected_num_rollouts": expected,
            "missing_num_rollouts": expected - done,
            "reward_profile_completion_pct": 100.0 * done / expected if expected else 0.0,
            "rollout_infos": [self.infos[rollout] for rollout in sorted(self.infos)],
        }


class Tally:
    """The rollouts of one agent so far: `add` them in any order, then ask for the figures."""

    def __init__(self, *, keep_rows: bool = False) -> None:
        self.columns = Columns()
        self.num_failed = 0
        self._tasks: dict[int, TaskTally] = {}
        self._keep_rows = keep_rows

    def expect(self, task: int) -> None:
        """Announce that one more rollout of `task` should come."""
        self._task(task).expected += 1

    def add(self, result: Row) -> Numbers | None:
        """Take in one rollout and return its numbers. A failed one is counted, has none and enters no figure."""
        task = self._task(index_of(result, TASK_INDEX_KEY_NAME) or 0)
        rollout = task.number_of(result)
        if is_failure(result):
            task.failed.add(rollout)
            self.num_failed += 1
            return None
        own, usage = own_and_usage(result)
        numbers = own | usage
        self.columns.add(numbers)
        task.columns.add(numbers)
        task.infos[rollout] = rollout_info(task.task, rollout, own, usage)
        if self._keep_rows:
            task.rows[rollout] = result
        return numbers

    def tasks(self) -> list[TaskTally]:
        """The tasks in order of their index, leaving out those of which no rollout was scored."""
        return [self._tasks[index] for index in sorted(self._tasks) if self._tasks[index].infos]

    def rows_by_task(self) -> list[list[Row]]:
        """The rows kept, task by task, each in order of its rollout index."""
        return [[task.rows[rollout] for rollout in sorted(task.rows)] for task in self.tasks()]

    def _task(self, index: int) -> TaskTally:
        task = self._tasks.get(index)
        if task is None:
            task = self._tasks[index] = TaskTally(index)
        return task


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
    names = tally.columns.names
    agent_metrics: dict[str, Any] = dict(tally.columns.describe())
    groups = {task.task: task.entry(ANY_AGENT, names) for task in tally.tasks()}
    if tally.num_failed:
        agent_metrics[NUM_FAILED_ROLLOUTS] = tally.num_failed
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
