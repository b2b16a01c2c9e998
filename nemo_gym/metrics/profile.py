"""How hard each task is: what was asked for beside what came out, task by task and agent by agent."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nemo_gym.keys import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.aggregate import RolloutRowsError, Row, Tally, TaskTally, index_of, rollout_info
from nemo_gym.metrics.columns import INDEX_FIELDS, Columns, is_failure, numbers_of, own_and_usage

UNNAMED_AGENT = "agent"
SHOWN = 5


class Profile:
    """Announce every input with `expect`, then `add` the rollouts in any order, then read the figures.

    Holds the numbers of the rollouts and who they are, never the inputs or the rollouts themselves.
    """

    def __init__(self) -> None:
        self._expected: dict[int, TaskTally] = {}
        self._agents: dict[int, str | None] = {}
        self._tally = Tally()
        self._by_agent: dict[str, Columns] = {}
        self._extra: list[tuple[int, int]] = []

    def expect(self, row: Row) -> int:
        """Announce the rollout this input row asks for; returns its task index."""
        index = index_of(row, TASK_INDEX_KEY_NAME) or 0
        task = self._expected.setdefault(index, TaskTally(index))
        task.infos[task.number_of(row)] = {}
        self._tally.expect(index)
        self._agents.setdefault(index, _agent_name(row))
        return index

    def add(self, result: Row) -> None:
        """Take in one rollout; one that no input asked for, or that failed, is only counted."""
        index, rollout = _key(result)
        if index not in self._expected or rollout not in self._expected[index].infos:
            self._extra.append((index, rollout))
            return
        numbers = self._tally.add({**result, ROLLOUT_INDEX_KEY_NAME: rollout})
        if numbers is not None:
            agent = _agent_name(result) or self._agents[index] or UNNAMED_AGENT
            self._by_agent.setdefault(agent, Columns()).add(numbers)

    def check(self, *, allow_partial_rollouts: bool = False) -> None:
        """Refuse rollouts nobody asked for and, unless partial ones are allowed, inputs without a rollout."""
        if self._extra:
            raise RolloutRowsError(
                f"{len(self._extra)} rollouts belong to no input row: {_shown(self._extra)}",
                fix="profile the rollouts with the materialized inputs of the same run",
            )
        missing = list(self._missing())
        if missing and not allow_partial_rollouts:
            raise RolloutRowsError(
                f"{len(missing)} of {self._num_expected} rollouts are missing or failed: {_shown(missing)}",
                fix="resume the run to complete it, or pass allow_partial_rollouts=true to profile what there is",
            )

    def summary(self) -> dict[str, int | float]:
        """How complete the run is, counted in rollouts and in tasks."""
        done = {task.task: len(task.infos) for task in self._tally.tasks()}
        completed = sum(done.values())
        expected = self._num_expected
        complete = sum(done.get(index, 0) == len(task.infos) for index, task in self._expected.items())
        return {
            "expected_rollout_rows": expected,
            "completed_rollout_rows": completed,
            "missing_rollout_rows": expected - completed,
            "extra_rollout_rows": len(self._extra),
            "completion_pct": 100.0 * completed / expected if expected else 0.0,
            "total_input_rows": len(self._expected),
            "complete_input_rows": complete,
            "partial_input_rows": len(done) - complete,
            "missing_input_rows": len(self._expected) - len(done),
        }

    def groups(self, sample_of: Callable[[int], Mapping[str, Any]]) -> Iterator[Row]:
        """One entry per task with at least one scored rollout, in order; `sample_of` gives the task's input row."""
        names = self._tally.columns.names
        for task in self._tally.tasks():
            sample = {name: value for name, value in sample_of(task.task).items() if name not in INDEX_FIELDS}
            yield task.entry(sample, names)

    def agents(self) -> list[Row]:
        """The figures of each agent over all its rollouts."""
        return [
            {**columns.describe(), AGENT_REF_KEY_NAME: {"name": agent}} for agent, columns in self._by_agent.items()
        ]

    @property
    def _num_expected(self) -> int:
        return sum(len(task.infos) for task in self._expected.values())

    def _missing(self) -> Iterator[tuple[int, int]]:
        done = {task.task: task.infos for task in self._tally.tasks()}
        for index, task in self._expected.items():
            yield from ((index, rollout) for rollout in task.infos if rollout not in done.get(index, {}))


class ProfileArithmetic:
    """The profile of rows held in lists; the public `RewardProfiler` adds the files."""

    def align_rows_and_results(
        self, rows: Sequence[Row], results: Sequence[Row], allow_partial_rollouts: bool = False
    ) -> tuple[list[Row], list[Row]]:
        """The inputs that have a scored rollout and those rollouts, side by side, ordered by task and rollout.

        Raises:
            RolloutRowsError: (a ValueError) a rollout is given twice, is asked for by no input, or is missing.
        """
        _profile(rows, results).check(allow_partial_rollouts=allow_partial_rollouts)
        scored = {_key(result): result for result in results if not is_failure(result)}
        pairs = sorted(((_key(row), row) for row in rows if _key(row) in scored), key=lambda pair: pair[0])
        return [row for _, row in pairs], [scored[key] for key, _ in pairs]

    def profile_completion_summary(self, rows: Sequence[Row], results: Sequence[Row]) -> dict[str, int | float]:
        """How complete the run is, counted in rollouts and in tasks."""
        return _profile(rows, results).summary()

    def rollout_info_from_result(self, result: Row) -> Row:
        """One rollout in short: who it is, its reward, its token usage, its other numbers."""
        return rollout_info(*_key(result), *own_and_usage(result))

    def describe_dataframe(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Mean, max, min, median and deviation of every numeric field of `rows`."""
        columns = Columns()
        for row in rows:
            columns.add(numbers_of(row))
        return columns.describe()

    def calculate_metrics_single_df(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """The figures of the rollouts among `rows` that were scored."""
        return self.describe_dataframe(row for row in rows if not is_failure(row))

    def profile_from_data(
        self, rows: Sequence[Row], results: Iterable[Row], allow_partial_rollouts: bool = False
    ) -> tuple[list[Row], list[Row]]:
        """The entries of the tasks and those of the agents.

        Raises:
            RolloutRowsError: (a ValueError) a rollout is given twice, is asked for by no input, or is missing.
        """
        samples: dict[int, Row] = {}
        profile = _profile(rows, results, samples)
        profile.check(allow_partial_rollouts=allow_partial_rollouts)
        return list(profile.groups(samples.__getitem__)), profile.agents()

    def prepare_for_serialization(self, metrics: Iterable[Mapping[str, Any]]) -> list[Row]:
        """`metrics` without what JSON cannot write: entries that are NaN or infinite."""
        return [
            {
                name: value
                for name, value in entry.items()
                if not (isinstance(value, float) and not math.isfinite(value))
            }
            for entry in metrics
        ]


def _profile(rows: Iterable[Row], results: Iterable[Row], samples: dict[int, Row] | None = None) -> Profile:
    profile = Profile()
    for row in rows:
        index = profile.expect(row)
        if samples is not None:
            samples.setdefault(index, row)
    for result in results:
        profile.add(result)
    return profile


def _key(row: Mapping[str, Any]) -> tuple[int, int]:
    return index_of(row, TASK_INDEX_KEY_NAME) or 0, index_of(row, ROLLOUT_INDEX_KEY_NAME) or 0


def _agent_name(row: Mapping[str, Any]) -> str | None:
    reference = row.get(AGENT_REF_KEY_NAME)
    name = reference.get("name") if isinstance(reference, Mapping) else None
    return name if isinstance(name, str) else None


def _shown(keys: Sequence[tuple[int, int]]) -> str:
    """The first few (task, rollout) keys, and whether there are more."""
    listed = ", ".join(f"{task}:{rollout}" for task, rollout in sorted(keys)[:SHOWN])
    return f"{listed}, …" if len(keys) > SHOWN else listed
