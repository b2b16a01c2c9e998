"""Move a dataset from GitLab to the Hugging Face Hub: upload, verify, and only then delete."""

from nemo_gym.config.schema_datasets import BaseUploadJsonlDatasetHuggingFaceConfig
from nemo_gym.data import hub
from nemo_gym.data.file_transfer import Meter, RegistryError, ignore_progress
from nemo_gym.data.gitlab_client import Registry


def gitlab_name(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """Return the name of the dataset in GitLab, which is also the last part of the repository name on the Hub."""
    return config.dataset_name or hub.resources_server_of(config.resource_config_path)[0]


def versions_to_delete(registry: Registry, name: str) -> list[str]:
    """List the versions of a GitLab dataset, all of which `migrate` deletes.

    Raises:
        RegistryError: the dataset does not exist.
    """
    if not registry.has(name):
        fix = "check the name; gym dataset upload publishes without deleting"
        raise RegistryError(f"unknown dataset {name!r} in the GitLab registry", fix=fix)
    return registry.versions(name)


def migrate(
    config: BaseUploadJsonlDatasetHuggingFaceConfig, registry: Registry, *, meter: Meter = ignore_progress
) -> hub.PublishedFile:
    """Publish a dataset on the Hub, verify the copy, then delete the dataset from GitLab.

    Raises:
        ConfigError: the file or the configuration cannot be used.
        RegistryError: a registry rejected a request; the dataset in GitLab has not been deleted.
    """
    name = gitlab_name(config)
    versions_to_delete(registry, name)
    published = hub.upload(config, meter=meter)
    try:
        registry.delete(name)
    except RegistryError as error:
        fix = f"gym dataset rm --name {name}"
        raise RegistryError(
            f"published on the Hub, but not deleted from GitLab: {error}", where=name, fix=fix
        ) from None
    return published
