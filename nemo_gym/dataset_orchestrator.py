"""Datasets between registries under their public names."""

from nemo_gym.config_types import UploadJsonlDatasetHuggingFaceConfig, UploadJsonlDatasetHuggingFaceMaybeDeleteConfig
from nemo_gym.data import hub
from nemo_gym.data.gitlab_client import Registry
from nemo_gym.data.hub import Published
from nemo_gym.data.hub_migrate import migrate
from nemo_gym.errors import ConfigMissingValuesError
from nemo_gym.global_config import get_global_config_dict

__all__ = ["migrate_jsonl_dataset", "upload_jsonl_dataset_to_hf"]


def upload_jsonl_dataset_to_hf(config: UploadJsonlDatasetHuggingFaceMaybeDeleteConfig) -> Published:
    """Publish on the Hub; with `delete_from_gitlab`, delete GitLab's copy once the Hub's is verified."""
    return migrate(config, _registry()) if config.delete_from_gitlab else hub.upload(config)


def migrate_jsonl_dataset(config: UploadJsonlDatasetHuggingFaceConfig) -> Published:
    """Publish on the Hub and, once that is verified, delete from GitLab. Does not ask; `gym dataset migrate` does."""
    return migrate(config, _registry())


def _registry() -> Registry:
    config = get_global_config_dict()
    uri, token = config.get("mlflow_tracking_uri"), config.get("mlflow_tracking_token")
    if not uri:
        raise ConfigMissingValuesError("mlflow_tracking_uri is not set", fix="add it to env.yaml")
    return Registry(str(uri), str(token) if token else None)
