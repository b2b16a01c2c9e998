"""Providers that run sandboxes, by name.

- `base`: the interface; `registry`: names to classes
- `archive`, `container_engine`: code shared by the shipped providers
- `docker`, `apptainer`, `local`: the shipped providers
"""

from nemo_gym.sandbox.providers.base import ConnectableProvider, SandboxProvider, SupportsSandboxEndpoint
from nemo_gym.sandbox.providers.registry import create_provider, get_provider_class, list_providers, register_provider

__all__ = [
    "ConnectableProvider",
    "SandboxProvider",
    "SupportsSandboxEndpoint",
    "create_provider",
    "get_provider_class",
    "list_providers",
    "register_provider",
]
