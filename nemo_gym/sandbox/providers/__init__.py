"""Engines that host sandboxes, by name."""

from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.providers.registry import (
    create_provider,
    get_provider_class,
    list_providers,
    register_provider,
)

__all__ = ["SandboxProvider", "create_provider", "get_provider_class", "list_providers", "register_provider"]
