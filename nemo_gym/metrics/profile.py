"""Profile a run: planned rollouts compared with scored ones, by task and by agent."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nemo_gym.keys import AGENT_REF_KEY_NAME
from nemo_gym.metrics.aggregate import RolloutRowsError, RolloutStats, duplicate_rollout, row_indices
from nemo_gym.metrics.number_columns import INDEX_FIELDS, is_failure
from nemo_gym.metrics.rollout_numbers import Record, RecordShapes, column, describe
from nemo_gym.wire.stored_rollout import REWARD_KEY, RolloutId, Row, StoredRollout

UNNAMED_AGENT = "agent"
LISTED = 5


class Profile:
    """Compare the rollouts of a run with its inputs.

    Call `expect` for every input, then `add` for every rollout, in any order, then read the results. Memory holds the
    numbers and keys of the rollouts, not the inputs or the rollouts.
    """

    def __init__(self) -> None:
        self.stats = RolloutStats()
        self._expected: set[RolloutId] = set()
        self._agents: dict[int, str | None] = {}
        self._by_agent: dict[str, list[Record]] = {}
        self._extra: list[RolloutId] = []

    def expect(self, row: Row) -> int:
        """Expect the rollout of an input row; return its task index."""
        key = row_indices(row)
        if key in self._expected:
            raise duplicate_rollout(key)
        self._expected.add(key)
        self.stats.expect(key[0])
        self._agents.setdefault(key[0], StoredRollout(row).agent)
        return key[0]

    def add(self, result: Row) -> None:
        """Add one rollout. A rollout without an input or a failed one is only counted."""
        key = row_indices(result)
        if key not in self._expected:
            self._extra.append(key)
            return
        record = self.stats.add_at(key, result)
        if record is not None:
            agent = StoredRollout(result).agent or self._agents[key[0]] or UNNAMED_AGENT
            self._by_agent.setdefault(agent, []).append(record)

    def check(self, *, allow_partial_rollouts: bool = False) -> None:
        """Raise RolloutRowsError for rollouts without an input or, unless allowed, for inputs without a rollout."""
        if self._extra:
            raise RolloutRowsError(
                f"{len(self._extra)} rollouts belong to no input row: {_format_keys(self._extra)}",
                fix="profile the rollouts with the materialized inputs of the same run",
            )
        missing = [] if allow_partial_rollouts else [key for key in self._expected if key not in self.stats.records]
        if missing:
            raise RolloutRowsError(
                f"{len(missing)} of {len(self._expected)} rollouts are missing or failed: {_format_keys(missing)}",
                fix="resume the run, or pass allow_partial_rollouts=true to profile the existing rollouts",
            )

    def summary(self) -> dict[str, int | float]:
        """Return the completion of the run in rollouts and in tasks."""
        planned = Counter(task for task, _ in self._expected)
        done = Counter(task for task, _ in self.stats.records)
        expected, completed = len(self._expected), len(self.stats.records)
        complete = sum(done[task] == count for task, count in planned.items())
        return {
            "expected_rollout_rows": expected,
            "completed_rollout_rows": completed,
            "missing_rollout_rows": expected - completed,
            "extra_rollout_rows": len(self._extra),
            "completion_pct": 100.0 * completed / expected if expected else 0.0,
            "total_input_rows": len(planned),
            "complete_input_rows": complete,
            "partial_input_rows": len(done) - complete,
            "missing_input_rows": len(planned) - len(done),
        }

    def groups(self, sample_of: Callable[[int], Mapping[str, Any]]) -> Iterator[Row]:
        """Yield one entry per task with a scored rollout, in order; `sample_of` returns the task's input row."""

        def without_indices(task: int) -> Row:
            return {name: value for name, value in sample_of(task).items() if name not in INDEX_FIELDS}

        return self.stats.groups(without_indices)

    def agents(self) -> list[Row]:
        """Return the statistics of each agent over all its rollouts."""
        names = self.stats.shapes.names
        return [
            {**describe(records, names), AGENT_REF_KEY_NAME: {"name": agent}}
            for agent, records in self._by_agent.items()
        ]


def count_reward_spread(stats: RolloutStats) -> dict[str, int]:
    """Count the tasks whose rollouts have different rewards, from which a trainer can learn, and those with equal ones.

    If every reward is 0 or 1, `never_solved` and `always_solved` are counted as well, also for tasks of one rollout.
    """
    counts = dict.fromkeys(("num_tasks", "rewards_differ", "all_rewards_equal", "never_solved", "always_solved"), 0)
    is_pass_or_fail = True
    for _, rollouts in stats.by_task():
        rewards = column((record for _, record in rollouts), REWARD_KEY)
        if not rewards:
            continue
        lowest, highest = min(rewards), max(rewards)
        counts["num_tasks"] += 1
        counts["rewards_differ"] += lowest != highest
        counts["all_rewards_equal"] += lowest == highest and len(rewards) > 1
        counts["never_solved"] += highest == 0
        counts["always_solved"] += lowest == 1
        is_pass_or_fail = is_pass_or_fail and all(reward in (0, 1) for reward in rewards)
    if not is_pass_or_fail:
        del counts["never_solved"], counts["always_solved"]
    return counts


class ProfileArithmetic:
    """The part of the public `RewardProfiler` that computes on lists of rows, without files."""

    def align_rows_and_results(
        self, rows: Sequence[Row], results: Sequence[Row], allow_partial_rollouts: bool = False
    ) -> tuple[list[Row], list[Row]]:
        """Return the inputs that have a scored rollout and those rollouts, both ordered by task and rollout.

        Raises:
            RolloutRowsError: (a ValueError) a rollout occurs twice, has no input, or is missing.
        """
        _profile_rows(rows, results).check(allow_partial_rollouts=allow_partial_rollouts)
        scored = {row_indices(result): result for result in results if not is_failure(result)}
        inputs = {row_indices(row): row for row in rows}
        keys = sorted(inputs.keys() & scored.keys())
        return [inputs[key] for key in keys], [scored[key] for key in keys]

    def profile_completion_summary(self, rows: Sequence[Row], results: Sequence[Row]) -> dict[str, int | float]:
        """Return the completion of the run in rollouts and in tasks."""
        return _profile_rows(rows, results).summary()

    def rollout_info_from_result(self, result: Row) -> Row:
        """Summarize one rollout: its key, reward, token usage and other numbers."""
        shape, values = RecordShapes().record(result)
        return shape.info(*row_indices(result), values)

    def describe_dataframe(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Return mean, max, min, median and deviation of every numeric field of `rows`."""
        shapes = RecordShapes()
        records = [shapes.record(row) for row in rows]
        return describe(records, shapes.names)

    def calculate_metrics_single_df(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Return the statistics of the scored rollouts among `rows`."""
        return self.describe_dataframe(row for row in rows if not is_failure(row))

    def profile_from_data(
        self, rows: Sequence[Row], results: Iterable[Row], allow_partial_rollouts: bool = False
    ) -> tuple[list[Row], list[Row]]:
        """Return the entries of the tasks and of the agents; raises RolloutRowsError like `align_rows_and_results`."""
        samples: dict[int, Row] = {}
        profile = _profile_rows(rows, results, samples)
        profile.check(allow_partial_rollouts=allow_partial_rollouts)
        return list(profile.groups(samples.__getitem__)), profile.agents()

    def prepare_for_serialization(self, metrics: Iterable[Mapping[str, Any]]) -> list[Row]:
        """Return `metrics` without NaN and infinity, which JSON cannot hold."""
        return [
            {
                name: value
                for name, value in entry.items()
                if not (isinstance(value, float) and not math.isfinite(value))
            }
            for entry in metrics
        ]


def _profile_rows(rows: Iterable[Row], results: Iterable[Row], samples: dict[int, Row] | None = None) -> Profile:
    """Build the profile of inputs and rollouts; the first input of each task is added to `samples`."""
    profile = Profile()
    for row in rows:
        index = profile.expect(row)
        if samples is not None:
            samples.setdefault(index, row)
    for result in results:
        profile.add(result)
    return profile


def _format_keys(keys: Sequence[RolloutId]) -> str:
    listed = ", ".join(f"{task}:{rollout}" for task, rollout in sorted(keys)[:LISTED])
    return f"{listed}, …" if len(keys) > LISTED else listed
