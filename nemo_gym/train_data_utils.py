"""Preparing training data under its public names: the work is in `nemo_gym.data`."""

import logging
from pathlib import Path

from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.data.collate import Collated, Limits, MetricsConflict, RowsRefused, collate
from nemo_gym.data.problems import DataError
from nemo_gym.data.sources import (
    Access,
    MissingDatasetsError,
    Mode,
    Storage,
    Watch,
    fetch_missing,
    sources_of,
)
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig, get_global_config_dict

logger = logging.getLogger(__name__)


class TrainDataProcessorConfig(BaseNeMoGymCLIConfig):
    """Validate the datasets of agents, measure them, and collate them into one file per type.

    gym dataset collate --config resources_servers/sums/configs/sums.yaml --output-dir data/sums
        --mode example_validation
    """

    output_dirpath: str = Field(description="Folder for the collated rows and their metrics.")
    mode: Mode = Field(description="train_preparation (train, validation, benchmark) or example_validation (example).")
    should_download: bool = Field(default=False, description="Download datasets whose files are missing.")
    data_source: Storage = Field(default="huggingface", description="Where from, if a dataset is in both registries.")
    overwrite_metrics_conflicts: bool = Field(default=False, description="Replace metrics files that disagree.")
    max_errors: int | None = Field(default=None, ge=1, description="Stop after this many rows that cannot be used.")
    num_processes: int | None = Field(default=None, ge=1, description="Processes to work with; by default as fits.")
    hf_token: str | None = Field(default=None, description="The access token of the Hub.")
    mlflow_tracking_uri: str | None = Field(default=None, description="Address of the GitLab registry.")
    mlflow_tracking_token: str | None = Field(default=None, description="Access token of the GitLab registry.")


class TrainDataProcessor:
    """Prepares the data that a configuration names. `watch` is told how far the work is."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch or _unwatched

    def run(self, global_config_dict: DictConfig) -> Collated:
        """Do what the configuration asks for.

        Raises:
            pydantic.ValidationError: the keys of `TrainDataProcessorConfig` are missing or wrong.
            MissingDatasetsError: (an AssertionError) files are missing; all of them are named.
            RowsRefused: (a ValueError) rows cannot be used; all of them are named.
            MetricsConflict: (a ValueError) rows and the metrics beside them disagree.
        """
        return self.prepare(TrainDataProcessorConfig.model_validate(global_config_dict), global_config_dict)

    def prepare(self, config: TrainDataProcessorConfig, global_config_dict: DictConfig) -> Collated:
        """The same with the command's own keys checked already."""
        instances = GlobalConfigDictParser().filter_for_server_instance_configs(global_config_dict)
        sources = sources_of(instances, config.mode)
        access = Access(config.data_source, config.hf_token, config.mlflow_tracking_uri, config.mlflow_tracking_token)
        fetched = fetch_missing(sources, config.mode, access if config.should_download else None, self._watch)
        done = collate(
            fetched,
            Path(config.output_dirpath),
            overwrite=config.overwrite_metrics_conflicts,
            limits=Limits(config.max_errors, config.num_processes),
            watch=self._watch,
        )
        for note in done.notes:
            logger.info("%s", note)
        return done


def _unwatched(what: str, done: int, total: int | None) -> None:
    """Nobody watches."""


def prepare_data() -> Collated:
    """Collate what the command line of this process asks for. `gym dataset collate` says more about it."""
    stand_in = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    parsed = get_global_config_dict(GlobalConfigDictParserConfig(initial_global_config_dict=stand_in))
    return TrainDataProcessor().run(parsed)


__all__ = [
    "Collated",
    "DataError",
    "MetricsConflict",
    "MissingDatasetsError",
    "RowsRefused",
    "TrainDataProcessor",
    "TrainDataProcessorConfig",
    "prepare_data",
]
