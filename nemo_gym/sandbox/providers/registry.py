"""Find sandbox providers by name: shipped, registered at run time, or from entry points of installed packages."""

import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.spec import SandboxConfigError

ENTRY_POINT_GROUP = "nemo_gym.sandbox_providers"

_SHIPPED = {
    "apptainer": "nemo_gym.sandbox.providers.apptainer:ApptainerProvider",
    "docker": "nemo_gym.sandbox.providers.docker:DockerProvider",
    "local": "nemo_gym.sandbox.providers.local:LocalProvider",
}

_SERVICES = {
    "daytona": "a Daytona account and the package daytona",
    "e2b": "an E2B account and the package e2b",
    "ecs_fargate": "an AWS account and the package boto3",
    "enroot": "the program enroot on a Slurm cluster",
    "opensandbox": "an OpenSandbox service and the package opensandbox",
    "openshell": "an OpenShell service and its package",
}
"""Names that configurations use, with what the engine needs; a package may provide them by entry point."""

_registered: dict[str, type[SandboxProvider]] = {}


def register_provider(name: str, provider_cls: type[SandboxProvider], override: bool = False) -> None:
    """Register `provider_cls` as `name` in this process.

    Raises:
        ValueError: the name is already used by another class and `override` is not set.
    """
    if not override and name in list_providers() and _registered.get(name) is not provider_cls:
        raise ValueError(f"sandbox provider {name!r} is already registered; pass override=True to replace it")
    _registered[name] = provider_cls


def get_provider_class(name: str) -> type[SandboxProvider]:
    """Return the provider class called `name`; registered classes come before shipped ones and entry points.

    Raises:
        SandboxConfigError: no provider has that name.
    """
    if name in _registered:
        return _registered[name]
    if name in _SHIPPED:
        module, _, attribute = _SHIPPED[name].partition(":")
        provider_cls: type[SandboxProvider] = getattr(importlib.import_module(module), attribute)
        return provider_cls
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        loaded: type[SandboxProvider] = entry_point.load()
        return loaded
    if name in _SERVICES:
        return _missing_provider(name)
    names = list_providers()
    close = difflib.get_close_matches(name, names, n=1)
    raise SandboxConfigError(
        f"unknown sandbox provider {name!r}", fix=close[0] if close else f"one of {', '.join(names)}"
    )


def list_providers() -> list[str]:
    """Return all names that `get_provider_class` accepts, sorted."""
    return sorted(
        {
            *_registered,
            *_SHIPPED,
            *_SERVICES,
            *(entry_point.name for entry_point in entry_points(group=ENTRY_POINT_GROUP)),
        }
    )


def _missing_provider(name: str) -> type[SandboxProvider]:
    """Return a class for a known provider that is not available here: creating an object of it raises."""

    def raise_missing(_cls: type, **_: Any) -> SandboxProvider:
        raise SandboxConfigError(
            f"the sandbox provider {name!r} is not available here: it needs {_SERVICES[name]}",
            fix=f"install a package with the entry point {ENTRY_POINT_GROUP}:{name}, or use docker, apptainer or local",
        )

    return type(f"Missing_{name}", (SandboxProvider,), {"name": name, "__new__": raise_missing})


def create_provider(config: Mapping[str, Any]) -> SandboxProvider:
    """Create a provider from a `{name: arguments}` mapping.

    Raises:
        SandboxConfigError: the mapping does not have exactly one known provider, or its class rejects the arguments.
    """
    if len(config) != 1:
        fix = "convert a sandbox block with resolve_provider_config(ref, named_configs)"
        raise SandboxConfigError(f"expected one sandbox provider, found {len(config)}", fix=fix)
    ((name, arguments),) = config.items()
    provider_cls = get_provider_class(name)
    try:
        return provider_cls(**dict(arguments or {}))
    except TypeError as error:
        raise SandboxConfigError(str(error), where=f"sandbox provider {name}") from error
