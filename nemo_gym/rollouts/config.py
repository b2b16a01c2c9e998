"""Configuration of a collection: limits of a rollout and of the run, retries, output.

All fields are configuration keys (`+rollout_timeout_seconds=600`); null switches a limit off.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from nemo_gym.config_types import BaseNeMoGymCLIConfig, UploadRolloutsConfigMixin
from nemo_gym.rollouts.collect import DEFAULT_CONCURRENCY
from nemo_gym.transport.deadlines import Allowance

Seconds = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


class LimitOptions(BaseModel):
    """Time and usage limits of a rollout and its calls. On by default, with generous values."""

    rollout_timeout_seconds: Seconds | None = Field(
        default=7200.0, description="Rollout deadline: wall time of one rollout from send to answer; null: no limit."
    )
    model_call_timeout_seconds: Seconds | None = Field(
        default=3600.0, description="Time of one call of an agent or environment to a model; null: no separate limit."
    )
    tool_call_timeout_seconds: Seconds | None = Field(
        default=1800.0, description="Time of one tool call, or of seeding a session; null: no separate limit."
    )
    verify_timeout_seconds: Seconds | None = Field(
        default=1800.0, description="Time of verifying one rollout; null: no separate limit."
    )
    max_steps_per_rollout: AtLeastOne | None = Field(
        default=1000,
        description="Model turns of one rollout, for agents that count them (simple_agent does); null: no limit.",
    )
    max_tokens_per_rollout: AtLeastOne | None = Field(
        default=50_000_000, description="Tokens of all model calls of one rollout, in and out; null: no limit."
    )
    max_total_tokens: AtLeastOne | None = Field(
        default=10_000_000_000,
        description="Tokens of the whole run, resumed parts included. When they are used up, no rollout is started "
        "and those in flight finish; null: no limit.",
    )

    @property
    def allowance(self) -> Allowance:
        """The limits that are sent with each rollout."""
        return Allowance(
            model_call_seconds=self.model_call_timeout_seconds,
            tool_call_seconds=self.tool_call_timeout_seconds,
            verify_seconds=self.verify_timeout_seconds,
            steps=self.max_steps_per_rollout,
            tokens=self.max_tokens_per_rollout,
        )


class FailureOptions(BaseModel):
    """Retries of failed rollouts, and the failures that end the run."""

    max_rollout_attempts: AtLeastOne | None = Field(
        default=None,
        description="Maximum attempts per rollout, resumed runs included; default: NEMO_GYM_MAX_ROLLOUT_ATTEMPTS or 3.",
    )
    retry_pause_seconds: Annotated[float, Field(ge=0)] = Field(
        default=2.0, description="Pause before a rollout is retried, doubled each time, with jitter."
    )
    max_failures: AtLeastOne | None = Field(
        default=None, description="Stop after this number of failed rollouts; those in flight can be resumed."
    )
    fail_fast: bool = Field(default=False, description="Stop at the first rollout that failed for good (-x).")


class SharedRolloutCollectionConfig(UploadRolloutsConfigMixin, LimitOptions, FailureOptions, BaseNeMoGymCLIConfig):
    """Options that all commands which collect rollouts have in common."""

    output_jsonl_fpath: str = Field(description="Where scored rollouts are written, one JSON object per line.")
    num_samples_in_parallel: AtLeastOne | None = Field(
        default=None, description=f"Number of rollouts in flight; default: {DEFAULT_CONCURRENCY}."
    )
    responses_create_params: dict[str, Any] = Field(
        default_factory=dict, description="Merged over each row's responses_create_params, top-level keys only."
    )
    sync_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=1.0,
        description="Seconds between syncs of the results to disk: at most this much is lost in a power cut; "
        "null: sync only at the end.",
    )
    disable_aggregation: bool = Field(default=False, description="Do not compute metrics at the end.")
    rollout_collection_driver: str | None = Field(
        default=None, description="'module.path:function' that collects instead; only in end-to-end runs."
    )


class E2ERolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Collate data, start the servers and collect rollouts."""

    split: Literal["train", "validation", "benchmark"] = Field(description="Type of the agents' datasets that are run.")
    reuse_existing_data_preparation: bool = Field(default=False, description="Use datasets that are collated already.")


class RolloutAggregationConfig(BaseNeMoGymCLIConfig):
    """Merge the outputs of sharded runs and compute their metrics together."""

    input_glob: str = Field(description="Glob patterns of the shards, separated by commas.")
    output_jsonl_fpath: str = Field(description="The merged rollouts; metrics are written next to it.")
    merge_shards: bool = Field(default=True, description="Write the merged file, not only the metrics.")
