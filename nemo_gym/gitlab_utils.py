"""Datasets in a GitLab model registry: the public functions.

Address and token of the registry are `mlflow_tracking_uri` and `mlflow_tracking_token` of the global configuration.
"""

from pathlib import Path
from typing import Any

from nemo_gym.config_types import (
    DeleteJsonlDatasetGitlabConfig,
    DownloadJsonlDatasetGitlabConfig,
    UploadJsonlDatasetGitlabConfig,
)
from nemo_gym.data import gitlab
from nemo_gym.data.gitlab import StoredFile as StoredFile
from nemo_gym.global_config import get_global_config_dict


def registry_address() -> tuple[str, str | None]:
    """Return address and token of the configured registry.

    Raises:
        ConfigMissingValuesError: the configuration has no address.
    """
    return gitlab.registry_address(get_global_config_dict())


def create_mlflow_client() -> Any:
    """Return MLflow's client of the configured registry and set MLFLOW_TRACKING_TOKEN."""
    return gitlab.create_mlflow_client(*registry_address())


def upload_jsonl_dataset(config: UploadJsonlDatasetGitlabConfig) -> StoredFile:
    """Upload a file to a version of a dataset, and verify it."""
    return gitlab.upload(config, gitlab.Registry(*registry_address()))


def download_jsonl_dataset(config: DownloadJsonlDatasetGitlabConfig) -> Path:
    """Download a file of a version, verify it, and return the file written."""
    target = Path(config.output_fpath)
    gitlab.fetch(config, target, gitlab.Registry(*registry_address()))
    return target


def delete_jsonl_dataset(config: DeleteJsonlDatasetGitlabConfig) -> None:
    """Delete a dataset with all its versions, without a confirmation; `gym dataset rm` asks for one."""
    gitlab.Registry(*registry_address()).delete(config.dataset_name)
