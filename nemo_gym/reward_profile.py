"""Public entry point: metrics and reward profiles, and `RewardProfiler`, which writes the profile files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.metrics.aggregate import (
    AggregateMetrics,
    AggregateMetricsMixin,
    AggregateMetricsRequest,
    RolloutRowsError,
    compute_aggregate_metrics,
)
from nemo_gym.metrics.pass_at_k import (
    add_avg_sample_std_dev,
    add_pass_hat_k,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)
from nemo_gym.metrics.profile import ProfileArithmetic
from nemo_gym.wire.stored_rollout import Row

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
    "highest_k_metrics",
]


class RewardProfileConfig(BaseNeMoGymCLIConfig):
    """Compute a reward profile from collected rollouts, without servers."""

    materialized_inputs_jsonl_fpath: str
    """The `<stem>_materialized_inputs.jsonl` of the run."""
    rollouts_jsonl_fpath: str
    """The rollouts of the run."""
    allow_partial_rollouts: bool = False
    """Profile an incomplete run."""


class RewardProfiler(ProfileArithmetic):
    """Per-task statistics of rollouts, for choosing tasks by difficulty or variance."""

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
