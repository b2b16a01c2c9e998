"""Public entry point: metrics and reward profiles.

A profile compares the planned rollouts of a run with the scored ones, by task and by agent. `RewardProfiler` computes
it from lists of rows and writes the profile files; `RunProfile` computes it from the files of a run.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.journal import RolloutReader, read_rows, scan_rows
from nemo_gym.keys import AGENT_REF_KEY_NAME
from nemo_gym.metrics.aggregate import (
    AggregateMetrics,
    AggregateMetricsMixin,
    AggregateMetricsRequest,
    RolloutRowsError,
    RolloutStats,
    compute_aggregate_metrics,
    duplicate_rollout,
    row_indices,
)
from nemo_gym.metrics.column_statistics import (
    INDEX_FIELDS,
    Numbers,
    column,
    describe,
    is_failure,
    rollout_info,
    rollout_numbers,
)
from nemo_gym.metrics.pass_at_k import (
    add_avg_sample_std_dev,
    add_pass_hat_k,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    headline_metrics,
    highest_k_metrics,
)
from nemo_gym.wire.stored_rollout import REWARD_KEY, RolloutId, Row, StoredRollout, mark_invalid_reward

__all__ = [
    "AggregateMetrics",
    "AggregateMetricsMixin",
    "AggregateMetricsRequest",
    "RewardProfileConfig",
    "RewardProfiler",
    "RolloutRowsError",
    "add_avg_sample_std_dev",
    "add_pass_hat_k",
    "compute_aggregate_metrics",
    "compute_pass_majority_metrics",
    "compute_subset_metrics",
    "headline_metrics",
    "highest_k_metrics",
]

UNNAMED_AGENT = "agent"
MAX_LISTED_KEYS = 5


class RewardProfileConfig(BaseNeMoGymCLIConfig):
    """Compute a reward profile from collected rollouts, without servers."""

    materialized_inputs_jsonl_fpath: str
    """The `<stem>_materialized_inputs.jsonl` of the run."""
    rollouts_jsonl_fpath: str
    """The rollouts of the run."""
    allow_partial_rollouts: bool = False
    """Profile an incomplete run."""


class Profile:
    """The rollouts of a run compared with its inputs. Memory holds their numbers and keys, not the rows."""

    def __init__(self, inputs: Iterable[Row], results: Iterable[Row]) -> None:
        """Read the inputs, then the rollouts, both in any order.

        Raises:
            RolloutRowsError: an input or a rollout occurs twice.
        """
        self.stats = RolloutStats()
        self._expected: set[RolloutId] = set()
        self._agents: dict[int, str | None] = {}
        self._by_agent: dict[str, list[Numbers]] = {}
        self._extra: list[RolloutId] = []
        for row in inputs:
            self._expect(row)
        for result in results:
            self._add(result)

    def _expect(self, row: Row) -> None:
        """Add the rollout of an input row to the expected rollouts."""
        key = row_indices(row)
        if key in self._expected:
            raise duplicate_rollout(key)
        self._expected.add(key)
        self.stats.expect(key[0])
        self._agents.setdefault(key[0], StoredRollout(row).agent)

    def _add(self, result: Row) -> None:
        """Add one rollout. A rollout that failed or has no input is counted, but not in the statistics."""
        key = row_indices(result)
        if key not in self._expected:
            self._extra.append(key)
            return
        numbers = self.stats.add_at(key, result)
        if numbers is not None:
            agent = StoredRollout(result).agent or self._agents[key[0]] or UNNAMED_AGENT
            self._by_agent.setdefault(agent, []).append(numbers)

    def check(self, *, allow_partial_rollouts: bool = False) -> None:
        """Raise RolloutRowsError for rollouts without an input or, unless allowed, for inputs without a rollout."""
        if self._extra:
            raise RolloutRowsError(
                f"{len(self._extra)} rollouts belong to no input row: {format_keys(self._extra)}",
                fix="profile the rollouts with the materialized inputs of the same run",
            )
        missing = [] if allow_partial_rollouts else [key for key in self._expected if key not in self.stats.scored]
        if missing:
            raise RolloutRowsError(
                f"{len(missing)} of {len(self._expected)} rollouts are missing or failed: {format_keys(missing)}",
                fix="resume the run, or pass allow_partial_rollouts=true to profile the existing rollouts",
            )

    def summary(self) -> dict[str, int | float]:
        """Return how many rollouts and how many tasks are complete, partial, missing and extra."""
        planned = Counter(task for task, _ in self._expected)
        done = Counter(task for task, _ in self.stats.scored)
        expected, completed = len(self._expected), len(self.stats.scored)
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

    def groups(self, input_of: Callable[[int], Mapping[str, Any]]) -> Iterator[Row]:
        """Yield one entry per task with a scored rollout, in order; `input_of` returns the input row of a task."""

        def without_indices(task: int) -> Row:
            return {name: value for name, value in input_of(task).items() if name not in INDEX_FIELDS}

        return self.stats.groups(without_indices)

    def agents(self) -> list[Row]:
        """Return the statistics of each agent over all its rollouts."""
        return [
            {**describe(records, self.stats.names), AGENT_REF_KEY_NAME: {"name": agent}}
            for agent, records in self._by_agent.items()
        ]


class RunProfile(Profile):
    """The profile of a stored run. Of its input rows, one file offset per task is kept."""

    def __init__(self, inputs: Path, rollouts: Path) -> None:
        """Read both files.

        Raises:
            ConfigPathNotFoundError: a file is missing.
            StoreError: a line is damaged.
            RolloutRowsError: a rollout occurs twice.
        """
        check_files_exist(inputs, rollouts)
        self._inputs = inputs
        self._offsets: dict[int, int] = {}
        super().__init__(self._index_inputs(), map(mark_invalid_reward, read_rows(rollouts)))

    def _index_inputs(self) -> Iterator[Row]:
        """Yield the input rows and store the offset of the first one of each task."""
        for begin, _, row in scan_rows(self._inputs):
            self._offsets.setdefault(row_indices(row)[0], begin)
            yield row

    def groups_with_inputs(self) -> Iterator[Row]:
        """Yield one entry per task that has a scored rollout, in order, with its input row."""
        with RolloutReader([self._inputs]) as reader:
            yield from self.groups(lambda task: reader.row(self._offsets[task]))


def check_files_exist(*paths: Path) -> None:
    """Raise ConfigPathNotFoundError if a file is missing."""
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise ConfigPathNotFoundError(f"file not found: {', '.join(missing)}", fix="check --inputs and --rollouts")


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


class RewardProfiler:
    """Per-task statistics of rollouts, for choosing tasks by difficulty or variance."""

    def align_rows_and_results(
        self, rows: Sequence[Row], results: Sequence[Row], allow_partial_rollouts: bool = False
    ) -> tuple[list[Row], list[Row]]:
        """Return the inputs that have a scored rollout and those rollouts, both ordered by task and rollout.

        Raises:
            RolloutRowsError: (a ValueError) a rollout occurs twice, has no input, or is missing.
        """
        Profile(rows, results).check(allow_partial_rollouts=allow_partial_rollouts)
        scored = {row_indices(result): result for result in results if not is_failure(result)}
        inputs = {row_indices(row): row for row in rows}
        keys = sorted(inputs.keys() & scored.keys())
        return [inputs[key] for key in keys], [scored[key] for key in keys]

    def profile_completion_summary(self, rows: Sequence[Row], results: Sequence[Row]) -> dict[str, int | float]:
        """Return how many rollouts and how many tasks are complete, partial, missing and extra."""
        return Profile(rows, results).summary()

    def rollout_info_from_result(self, result: Row) -> Row:
        """Summarize one rollout: its key, reward, token usage and other numbers."""
        return rollout_info(*row_indices(result), rollout_numbers(result))

    def describe_dataframe(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Return mean, max, min, median and deviation of every numeric field of `rows`."""
        rollouts = [rollout_numbers(row) for row in rows]
        return describe(rollouts, dict.fromkeys(name for numbers in rollouts for name in numbers))

    def calculate_metrics_single_df(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Return the statistics of the scored rollouts among `rows`."""
        return self.describe_dataframe(row for row in rows if not is_failure(row))

    def profile_from_data(
        self, rows: Sequence[Row], results: Iterable[Row], allow_partial_rollouts: bool = False
    ) -> tuple[list[Row], list[Row]]:
        """Return the entries of the tasks and of the agents; raises RolloutRowsError like `align_rows_and_results`."""
        profile = Profile(rows, results)
        profile.check(allow_partial_rollouts=allow_partial_rollouts)
        inputs = {row_indices(row)[0]: row for row in reversed(rows)}  # the first row of each task replaces the others
        return list(profile.groups(inputs.__getitem__)), profile.agents()

    def prepare_for_serialization(self, metrics: Iterable[Mapping[str, Any]]) -> list[Row]:
        """Return `metrics` without NaN and infinity, which JSON cannot hold."""

        def is_json(value: Any) -> bool:
            return not isinstance(value, float) or math.isfinite(value)

        return [{name: value for name, value in entry.items() if is_json(value)} for entry in metrics]

    def write_to_disk(
        self, group_level_metrics: Iterable[Row], agent_level_metrics: Iterable[Row], base_output_fpath: str | Path
    ) -> tuple[Path, Path]:
        """Write both results next to the rollouts file and return their paths.

        `<stem>_reward_profiling.jsonl` has one line per task, `<stem>_agent_metrics.json` one entry per agent.
        """
        rollouts = Path(base_output_fpath)
        profile_path = rollouts.with_name(f"{rollouts.stem}_reward_profiling.jsonl")
        agents_path = rollouts.with_name(f"{rollouts.stem}_agent_metrics.json")
        with whole_file(profile_path) as stream:
            for entry in group_level_metrics:
                stream.write(_json(self.prepare_for_serialization([entry])[0], orjson.OPT_APPEND_NEWLINE))
        with whole_file(agents_path) as stream:
            stream.write(_json(self.prepare_for_serialization(agent_level_metrics), orjson.OPT_INDENT_2))
        return profile_path, agents_path


def _json(value: Any, option: int) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except TypeError:  # metrics of a server may have keys that are not texts, for which orjson is slower
        return orjson.dumps(value, option=option | orjson.OPT_NON_STR_KEYS)


def format_keys(keys: Sequence[RolloutId]) -> str:
    """Return the lowest keys as `task:rollout`, with `…` if there are more than `MAX_LISTED_KEYS`."""
    listed = ", ".join(f"{task}:{rollout}" for task, rollout in sorted(keys)[:MAX_LISTED_KEYS])
    return f"{listed}, …" if len(keys) > MAX_LISTED_KEYS else listed
