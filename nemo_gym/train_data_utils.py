"""Prepare training data: the public names of `nemo_gym.data.collate` and `nemo_gym.data.sources`."""

import logging
from pathlib import Path

from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.catalog.row_problems import DataError as DataError
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.data.collate import CollationResult as CollationResult
from nemo_gym.data.collate import MetricsConflict as MetricsConflict
from nemo_gym.data.collate import RowsRefused as RowsRefused
from nemo_gym.data.collate import collate
from nemo_gym.data.sources import MissingDatasetsError as MissingDatasetsError
from nemo_gym.data.sources import Mode, RegistryAccess, Storage, Watch, fetch_missing, find_sources
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
    data_source: Storage = Field(default="huggingface", description="Registry to use if a dataset is in both.")
    overwrite_metrics_conflicts: bool = Field(default=False, description="Replace metrics files that disagree.")
    max_errors: int | None = Field(default=None, ge=1, description="Stop after this many invalid rows.")
    num_processes: int | None = Field(
        default=None, ge=1, description="Number of processes; by default one per processor."
    )
    hf_token: str | None = Field(default=None, description="The access token of the Hub.")
    mlflow_tracking_uri: str | None = Field(default=None, description="Address of the GitLab registry.")
    mlflow_tracking_token: str | None = Field(default=None, description="Access token of the GitLab registry.")


class TrainDataProcessor:
    """Prepares the datasets of a configuration. `watch` is called with the progress of the work."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch or (lambda *_: None)

    def run(self, global_config_dict: DictConfig) -> CollationResult:
        """Prepare the datasets as the keys of `TrainDataProcessorConfig` in the configuration say.

        Raises:
            pydantic.ValidationError: the keys of `TrainDataProcessorConfig` are missing or wrong.
            MissingDatasetsError: (an AssertionError) files are missing; lists all of them.
            RowsRefused: (a ValueError) rows are invalid; lists all of them.
            MetricsConflict: (a ValueError) rows and the metrics files beside them disagree.
        """
        return self.prepare(TrainDataProcessorConfig.model_validate(global_config_dict), global_config_dict)

    def prepare(self, config: TrainDataProcessorConfig, global_config_dict: DictConfig) -> CollationResult:
        """Prepare the datasets of a configuration as `config` says."""
        instances = GlobalConfigDictParser().filter_for_server_instance_configs(global_config_dict)
        sources = find_sources(instances, config.mode)
        uri, token = config.mlflow_tracking_uri, config.mlflow_tracking_token
        access = RegistryAccess(config.data_source, config.hf_token, uri, token)
        fetched = fetch_missing(sources, config.mode, access if config.should_download else None, self._watch)
        result = collate(
            fetched,
            Path(config.output_dirpath),
            overwrite=config.overwrite_metrics_conflicts,
            max_errors=config.max_errors,
            processes=config.num_processes,
            watch=self._watch,
        )
        for note in result.notes:
            logger.info("%s", note)
        return result


def prepare_data() -> CollationResult:
    """Collate datasets as the command line of this process says, like `gym dataset collate`."""
    without_model = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    config = get_global_config_dict(GlobalConfigDictParserConfig(initial_global_config_dict=without_model))
    return TrainDataProcessor().run(config)
