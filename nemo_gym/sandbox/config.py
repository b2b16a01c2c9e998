"""From a `sandbox:` reference in a server's config to the provider and its arguments."""

import difflib
from collections.abc import Mapping
from typing import Any

from nemo_gym.errors import ConfigError

DEFAULT_METADATA_KEY = "default_metadata"
"""Reserved beside the provider's name in a sandbox block: metadata every sandbox of that block carries."""

_ATTRIBUTION_VARIABLES = {
    "team": ("NEMO_GYM_TEAM", "SLURM_JOB_ACCOUNT"),
    "user": ("NEMO_GYM_USER", "SLURM_JOB_USER"),
    "workload": ("NEMO_GYM_WORKLOAD", "SLURM_JOB_NAME"),
    "run": ("NEMO_GYM_RUN_ID", "SLURM_JOB_ID"),
}

ProviderRef = str | Mapping[str, Any]


def resolve_provider_config(
    ref: ProviderRef, named_configs: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """The `{provider: arguments}` that `ref` stands for.

    `ref` is the name of a top-level block (`sandbox`) or such a block written in place.

    Raises:
        ConfigError: the name is not there, or the block does not name exactly one provider.
    """
    block, where = _block(ref, named_configs)
    providers = {name: arguments for name, arguments in block.items() if name != DEFAULT_METADATA_KEY}
    if len(providers) != 1:
        named = ", ".join(sorted(providers)) or "none"
        raise ConfigError(
            f"a sandbox block names exactly one provider, this one names {len(providers)} ({named})",
            where=where,
            fix="{docker: {}} or the name of a top-level block",
        )
    ((name, arguments),) = providers.items()
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ConfigError(
            f"the arguments of sandbox provider {name!r} must be a mapping, not {type(arguments).__name__}",
            where=where,
        )
    return {name: dict(arguments or {})}


def resolve_provider_metadata(ref: ProviderRef, named_configs: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The `default_metadata` of the block that `ref` stands for, or nothing.

    Raises:
        ConfigError: the name is not there, or the metadata is not a mapping.
    """
    block, where = _block(ref, named_configs)
    metadata = block.get(DEFAULT_METADATA_KEY) or {}
    if not isinstance(metadata, Mapping):
        raise ConfigError(f"{DEFAULT_METADATA_KEY} must be a mapping, not {type(metadata).__name__}", where=where)
    return {str(key): str(value) for key, value in metadata.items()}


def attribution_metadata(environ: Mapping[str, str]) -> dict[str, str]:
    """Who and what a sandbox is for (team, user, workload, run), as far as the environment says."""
    found: dict[str, str] = {}
    for name, variables in _ATTRIBUTION_VARIABLES.items():
        value = next((environ[variable] for variable in variables if environ.get(variable)), None)
        if value is not None:
            found[name] = value
    return found


def _block(ref: ProviderRef, named_configs: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    if not isinstance(ref, str):
        return _plain(ref), "sandbox provider"
    named = named_configs if named_configs is not None else {}
    if ref not in named:
        close = difflib.get_close_matches(ref, [str(name) for name in named], n=1)
        raise ConfigError(
            f"there is no sandbox block named {ref!r}",
            fix=f"{close[0]}?"
            if close
            else "add nemo_gym/sandbox/providers/docker/configs/docker.yaml to config_paths",
        )
    block = named[ref]
    if not isinstance(block, Mapping) and not hasattr(block, "items"):
        raise ConfigError(f"the sandbox block {ref!r} must be a mapping, not {type(block).__name__}", where=ref)
    return _plain(block), ref


def _plain(block: Any) -> dict[str, Any]:
    """A block as ordinary dicts and lists; OmegaConf's containers are told apart without importing it."""
    if type(block).__module__.startswith("omegaconf."):
        from omegaconf import OmegaConf

        block = OmegaConf.to_container(block, resolve=True)
    return {str(name): value for name, value in block.items()}
