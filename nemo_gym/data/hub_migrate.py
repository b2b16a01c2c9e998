"""From GitLab to the Hugging Face Hub: upload, verify, and only then delete."""

from nemo_gym.config.schema_datasets import BaseUploadJsonlDatasetHuggingFaceConfig
from nemo_gym.data import hub
from nemo_gym.data.gitlab_client import Registry
from nemo_gym.data.hub_transfer import Meter, RegistryError, no_meter


def gitlab_name(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> str:
    """What the dataset is called in GitLab: as in its repository's name."""
    return config.dataset_name or hub.resources_server_of(config.resource_config_path)[0]


def versions_to_delete(registry: Registry, name: str) -> list[str]:
    """The versions that go when the dataset is deleted.

    Raises:
        RegistryError: there is no such dataset.
    """
    if not registry.has(name):
        fix = "check the name; gym dataset upload publishes without deleting"
        raise RegistryError(f"there is no dataset {name!r} in the GitLab registry", fix=fix)
    return registry.versions(name)


def migrate(
    config: BaseUploadJsonlDatasetHuggingFaceConfig,
    registry: Registry,
    *,
    endpoint: str | None = None,
    meter: Meter = no_meter,
    pause: float = 1.0,
) -> hub.Published:
    """Publish on the Hub and delete from GitLab. Whatever goes wrong before the Hub's copy is verified deletes nothing.

    Raises:
        ConfigError: the file or the configuration cannot be used.
        RegistryError: either side refused; GitLab's copy is there unless the message says that it was deleted.
    """
    name = gitlab_name(config)
    versions_to_delete(registry, name)
    published = hub.upload(config, endpoint=endpoint, meter=meter, pause=pause)
    try:
        registry.delete(name)
    except RegistryError as error:
        fix = f"gym dataset rm --name {name}"
        raise RegistryError(f"on the Hub now, but not deleted from GitLab: {error}", where=name, fix=fix) from None
    return published
