"""Providers by name: our own, those registered at run time, and those that installed packages offer."""

import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.providers.base import SandboxProvider

ENTRY_POINT_GROUP = "nemo_gym.sandbox_providers"

_SHIPPED = {
    "apptainer": "nemo_gym.sandbox.providers.apptainer:ApptainerProvider",
    "docker": "nemo_gym.sandbox.providers.docker:DockerProvider",
    "local": "nemo_gym.sandbox.providers.local:LocalProvider",
}

_registered: dict[str, type[SandboxProvider]] = {}


def register_provider(name: str, provider_cls: type[SandboxProvider], override: bool = False) -> None:
    """Make `name` stand for `provider_cls` in this process.

    Raises:
        ValueError: the name stands for another class and `override` is not given.
    """
    if not override and name in list_providers() and _registered.get(name) is not provider_cls:
        raise ValueError(f"sandbox provider {name!r} is already registered; pass override=True to replace it")
    _registered[name] = provider_cls


def get_provider_class(name: str) -> type[SandboxProvider]:
    """The class `name` stands for; registered ones come before ours, ours before those of installed packages.

    Raises:
        ConfigError: no provider has that name.
    """
    if name in _registered:
        return _registered[name]
    if name in _SHIPPED:
        module, _, attribute = _SHIPPED[name].partition(":")
        found: type[SandboxProvider] = getattr(importlib.import_module(module), attribute)
        return found
    for offered in entry_points(group=ENTRY_POINT_GROUP, name=name):
        loaded: type[SandboxProvider] = offered.load()
        return loaded
    names = list_providers()
    close = difflib.get_close_matches(name, names, n=1)
    raise ConfigError(f"there is no sandbox provider {name!r}", fix=close[0] if close else f"one of {', '.join(names)}")


def list_providers() -> list[str]:
    """Every name `get_provider_class` knows, sorted."""
    return sorted({*_registered, *_SHIPPED, *(offered.name for offered in entry_points(group=ENTRY_POINT_GROUP))})


def create_provider(config: Mapping[str, Any]) -> SandboxProvider:
    """The provider of a `{name: arguments}` mapping.

    Raises:
        ConfigError: it does not name exactly one known provider, or the arguments do not fit.
    """
    if len(config) != 1:
        raise ConfigError(
            f"a sandbox provider is one name with its arguments, not {len(config)} names",
            fix="resolve_provider_config(ref, named_configs) turns a sandbox block into that form",
        )
    ((name, arguments),) = config.items()
    provider_cls = get_provider_class(name)
    try:
        return provider_cls(**dict(arguments or {}))
    except TypeError as error:
        raise ConfigError(str(error), where=f"sandbox provider {name}") from error
