"""Move a dataset from GitLab to the Hugging Face Hub: upload, verify, and only then delete."""

from nemo_gym.config.schema_datasets import BaseUploadJsonlDatasetHuggingFaceConfig
from nemo_gym.data import hub
from nemo_gym.data.file_transfer import Meter, RegistryError, ignore_progress
from nemo_gym.data.gitlab_client import Registry


def gitlab_name(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """Return the dataset's name in GitLab, which is also the last part of its repository name."""
    return config.dataset_name or hub.resources_server_of(config.resource_config_path)[0]


def versions_to_delete(registry: Registry, name: str) -> list[str]:
    """List the versions that are deleted with the dataset.

    Raises:
        RegistryError: there is no such dataset.
    """
    if not registry.has(name):
        fix = "check the name; gym dataset upload publishes without deleting"
        raise RegistryError(f"there is no dataset {name!r} in the GitLab registry", fix=fix)
    return registry.versions(name)


def migrate(
    config: BaseUploadJsonlDatasetHuggingFaceConfig, registry: Registry, *, meter: Meter = ignore_progress
) -> hub.PublishedFile:
    """Publish on the Hub and delete from GitLab. An error before the Hub's copy is verified deletes nothing.

    Raises:
        ConfigError: the file or the configuration cannot be used.
        RegistryError: a registry refused; GitLab's copy still exists unless the message says that it was deleted.
    """
    name = gitlab_name(config)
    versions_to_delete(registry, name)
    published = hub.upload(config, meter=meter)
    try:
        registry.delete(name)
    except RegistryError as error:
        fix = f"gym dataset rm --name {name}"
        raise RegistryError(f"on the Hub now, but not deleted from GitLab: {error}", where=name, fix=fix) from None
    return published
