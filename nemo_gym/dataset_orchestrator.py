"""Datasets between registries: the public functions."""

from nemo_gym.config_types import UploadJsonlDatasetHuggingFaceConfig, UploadJsonlDatasetHuggingFaceMaybeDeleteConfig
from nemo_gym.data import hub
from nemo_gym.data.gitlab import Registry, migrate_to_hub, registry_address
from nemo_gym.data.hub import PublishedFile
from nemo_gym.global_config import get_global_config_dict

__all__ = ["migrate_jsonl_dataset", "upload_jsonl_dataset_to_hf"]


def upload_jsonl_dataset_to_hf(config: UploadJsonlDatasetHuggingFaceMaybeDeleteConfig) -> PublishedFile:
    """Publish on the Hub; with `delete_from_gitlab`, delete GitLab's copy once the Hub's is verified."""
    return migrate_to_hub(config, _registry()) if config.delete_from_gitlab else hub.upload(config)


def migrate_jsonl_dataset(config: UploadJsonlDatasetHuggingFaceConfig) -> PublishedFile:
    """Publish on the Hub, verify, then delete from GitLab; only `gym dataset migrate` asks for a confirmation."""
    return migrate_to_hub(config, _registry())


def _registry() -> Registry:
    return Registry(*registry_address(get_global_config_dict()))
