"""How hard each task is: what was asked for beside what came out, task by task and agent by agent."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nemo_gym.keys import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.aggregate import RolloutRowsError, Tally, given_twice, index_of
from nemo_gym.metrics.columns import INDEX_FIELDS, is_failure
from nemo_gym.metrics.records import Describer, Record, Row, Shapes, column

REWARD = "reward"
UNNAMED_AGENT = "agent"
SHOWN = 5


class Profile:
    """Announce every input with `expect`, then `add` the rollouts in any order, then read the figures.

    Holds the numbers of the rollouts and who they are, never the inputs or the rollouts themselves.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self._expected: set[tuple[int, int]] = set()
        self._agents: dict[int, str | None] = {}
        self._by_agent: dict[str, list[Record]] = {}
        self._extra: list[tuple[int, int]] = []

    def expect(self, row: Row) -> int:
        """Announce the rollout this input row asks for; returns its task index."""
        key = _key(row)
        if key in self._expected:
            raise given_twice(key)
        self._expected.add(key)
        self.tally.expect(key[0])
        self._agents.setdefault(key[0], agent_name(row))
        return key[0]

    def add(self, result: Row) -> None:
        """Take in one rollout; one that no input asked for, or that failed, is only counted."""
        key = _key(result)
        if key not in self._expected:
            self._extra.append(key)
            return
        record = self.tally.add_at(key, result)
        if record is not None:
            agent = agent_name(result) or self._agents[key[0]] or UNNAMED_AGENT
            self._by_agent.setdefault(agent, []).append(record)

    def check(self, *, allow_partial_rollouts: bool = False) -> None:
        """Refuse rollouts nobody asked for and, unless partial ones are allowed, inputs without a rollout."""
        if self._extra:
            raise RolloutRowsError(
                f"{len(self._extra)} rollouts belong to no input row: {_shown(self._extra)}",
                fix="profile the rollouts with the materialized inputs of the same run",
            )
        missing = [] if allow_partial_rollouts else [key for key in self._expected if key not in self.tally.records]
        if missing:
            raise RolloutRowsError(
                f"{len(missing)} of {len(self._expected)} rollouts are missing or failed: {_shown(missing)}",
                fix="resume the run to complete it, or pass allow_partial_rollouts=true to profile what there is",
            )

    def summary(self) -> dict[str, int | float]:
        """How complete the run is, counted in rollouts and in tasks."""
        wanted = Counter(task for task, _ in self._expected)
        done = Counter(task for task, _ in self.tally.records)
        expected, completed = len(self._expected), len(self.tally.records)
        complete = sum(done[task] == count for task, count in wanted.items())
        return {
            "expected_rollout_rows": expected,
            "completed_rollout_rows": completed,
            "missing_rollout_rows": expected - completed,
            "extra_rollout_rows": len(self._extra),
            "completion_pct": 100.0 * completed / expected if expected else 0.0,
            "total_input_rows": len(wanted),
            "complete_input_rows": complete,
            "partial_input_rows": len(done) - complete,
            "missing_input_rows": len(wanted) - len(done),
        }

    def groups(self, sample_of: Callable[[int], Mapping[str, Any]]) -> Iterator[Row]:
        """One entry per task with at least one scored rollout, in order; `sample_of` gives the task's input row."""

        def without_indices(task: int) -> Row:
            return {name: value for name, value in sample_of(task).items() if name not in INDEX_FIELDS}

        return self.tally.groups(without_indices)

    def agents(self) -> list[Row]:
        """The figures of each agent over all its rollouts."""
        describe = Describer(self.tally.shapes.names)
        return [{**describe(records), AGENT_REF_KEY_NAME: {"name": agent}} for agent, records in self._by_agent.items()]


def spread_of(tally: Tally) -> dict[str, int]:
    """How many tasks can teach something: those with several rollouts whose rewards differ, and those without.

    With a reward of pass or fail, `never_solved` and `always_solved` count the tasks of one rollout too.
    """
    counts = dict.fromkeys(("num_tasks", "rewards_differ", "all_rewards_equal", "never_solved", "always_solved"), 0)
    pass_or_fail = True
    for _, rollouts in tally.by_task():
        rewards = column((record for _, record in rollouts), REWARD)
        if not rewards:
            continue
        lowest, highest = min(rewards), max(rewards)
        counts["num_tasks"] += 1
        counts["rewards_differ"] += lowest != highest
        counts["all_rewards_equal"] += lowest == highest and len(rewards) > 1
        counts["never_solved"] += highest == 0
        counts["always_solved"] += lowest == 1
        pass_or_fail = pass_or_fail and all(reward in (0, 1) for reward in rewards)
    if not pass_or_fail:
        del counts["never_solved"], counts["always_solved"]
    return counts


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
        shape, values = Shapes().record(result)
        return shape.info(*_key(result), values)

    def describe_dataframe(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Mean, max, min, median and deviation of every numeric field of `rows`."""
        shapes = Shapes()
        records = [shapes.record(row) for row in rows]
        return Describer(shapes.names)(records)

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


def agent_name(row: Mapping[str, Any]) -> str | None:
    reference = row.get(AGENT_REF_KEY_NAME)
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else None


def _shown(keys: Sequence[tuple[int, int]]) -> str:
    """The first few (task, rollout) keys, and whether there are more."""
    listed = ", ".join(f"{task}:{rollout}" for task, rollout in sorted(keys)[:SHOWN])
    return f"{listed}, …" if len(keys) > SHOWN else listed
