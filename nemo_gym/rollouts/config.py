"""What every way of collecting rollouts is configured with."""

from typing import Annotated, Any, Literal

from pydantic import Field

from nemo_gym.config_types import BaseNeMoGymCLIConfig, UploadRolloutsConfigMixin
from nemo_gym.rollouts.collect import DEFAULT_AT_ONCE
from nemo_gym.rollouts.options import FailureOptions, LimitOptions

AtLeastOne = Annotated[int, Field(ge=1)]


class SharedRolloutCollectionConfig(UploadRolloutsConfigMixin, LimitOptions, FailureOptions, BaseNeMoGymCLIConfig):
    """What every way of collecting rollouts takes."""

    output_jsonl_fpath: str = Field(description="Where scored rollouts are written, one JSON object per line.")
    num_samples_in_parallel: AtLeastOne | None = Field(
        default=None, description=f"How many rollouts are in flight at once; {DEFAULT_AT_ONCE} when not given."
    )
    responses_create_params: dict[str, Any] = Field(
        default_factory=dict, description="Laid over each row's responses_create_params, top-level keys only."
    )
    sync_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=1.0,
        description="How often results are forced onto the disk: what a power cut costs; null: at the end.",
    )
    disable_aggregation: bool = Field(default=False, description="Do not ask the agents for metrics at the end.")
    rollout_collection_driver: str | None = Field(
        default=None, description="'module.path:function' that collects instead; only in end-to-end runs."
    )


class E2ERolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Collate data, start the servers and collect rollouts."""

    split: Literal["train", "validation", "benchmark"] = Field(description="Which datasets of the agents are run.")
    reuse_existing_data_preparation: bool = Field(default=False, description="Use the datasets collated before.")


class RolloutAggregationConfig(BaseNeMoGymCLIConfig):
    """Merge the outputs of sharded runs and compute their metrics together."""

    input_glob: str = Field(description="Glob patterns of the shards, separated by commas.")
    output_jsonl_fpath: str = Field(description="The merged rollouts; metrics are written next to it.")
    merge_shards: bool = Field(default=True, description="Write the merged file, not only the metrics.")
