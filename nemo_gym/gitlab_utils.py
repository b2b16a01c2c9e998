"""Datasets in a GitLab model registry under their public names.

The registry's address and token are `mlflow_tracking_uri` and `mlflow_tracking_token` of the process's configuration.
"""

from pathlib import Path
from typing import Any

from nemo_gym.config_types import (
    DeleteJsonlDatasetGitlabConfig,
    DownloadJsonlDatasetGitlabConfig,
    UploadJsonlDatasetGitlabConfig,
)
from nemo_gym.data import gitlab
from nemo_gym.data.gitlab import Stored
from nemo_gym.data.gitlab_client import Registry
from nemo_gym.data.gitlab_client import create_mlflow_client as _client
from nemo_gym.errors import ConfigMissingValuesError
from nemo_gym.global_config import get_global_config_dict

__all__ = [
    "Stored",
    "create_mlflow_client",
    "delete_jsonl_dataset",
    "download_jsonl_dataset",
    "registry_address",
    "upload_jsonl_dataset",
]


def registry_address() -> tuple[str, str | None]:
    """Address and token of the registry.

    Raises:
        ConfigMissingValuesError: the configuration has no address.
    """
    config = get_global_config_dict()
    uri, token = config.get("mlflow_tracking_uri"), config.get("mlflow_tracking_token")
    if not uri:
        raise ConfigMissingValuesError("mlflow_tracking_uri is not set", fix="add it to env.yaml")
    return str(uri), str(token) if token else None


def create_mlflow_client() -> Any:
    """MLflow's client of the configured registry; the token is put into MLFLOW_TRACKING_TOKEN."""
    return _client(*registry_address())


def upload_jsonl_dataset(config: UploadJsonlDatasetGitlabConfig) -> Stored:
    """Put a file into a version of a dataset, and verify it."""
    uri, token = registry_address()
    return gitlab.upload(config, tracking_uri=uri, token=token)


def download_jsonl_dataset(config: DownloadJsonlDatasetGitlabConfig) -> Path:
    """Download a file of a version, checked; the file written."""
    uri, token = registry_address()
    return next(iter(gitlab.download(config, tracking_uri=uri, token=token)))


def delete_jsonl_dataset(config: DeleteJsonlDatasetGitlabConfig) -> None:
    """Delete a dataset with all its versions, without asking; `gym dataset rm` asks."""
    Registry(*registry_address()).delete(config.dataset_name)
