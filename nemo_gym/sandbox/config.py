"""Resolve a `sandbox:` reference in a server's config to a provider and its arguments."""

import difflib
from collections.abc import Mapping
from typing import Any

from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.sandbox.spec import SandboxConfigError

DEFAULT_METADATA_KEY = "default_metadata"
"""Reserved key in a sandbox block: metadata for every sandbox of that block."""

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
    """Return the `{provider: arguments}` of a sandbox reference.

    `ref` is the name of a top-level block (`sandbox`) or an inline block.

    Raises:
        SandboxConfigError: the block does not exist, or does not have exactly one provider.
    """
    block, location = _find_block(ref, named_configs)
    providers = {name: arguments for name, arguments in block.items() if name != DEFAULT_METADATA_KEY}
    if len(providers) != 1:
        names = ", ".join(sorted(providers)) or "none"
        raise SandboxConfigError(
            f"a sandbox block must have exactly one provider, not {len(providers)} ({names})",
            where=location,
            fix="{docker: {}} or the name of a top-level block",
        )
    ((name, arguments),) = providers.items()
    if arguments is not None and not isinstance(arguments, Mapping):
        raise SandboxConfigError(
            f"the arguments of sandbox provider {name!r} must be a mapping, not {type(arguments).__name__}",
            where=location,
        )
    return {name: dict(arguments or {})}


def resolve_provider_metadata(ref: ProviderRef, named_configs: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the `default_metadata` of a sandbox reference; empty if the block has none.

    Raises:
        SandboxConfigError: the block does not exist, or the metadata is not a mapping.
    """
    block, location = _find_block(ref, named_configs)
    metadata = block.get(DEFAULT_METADATA_KEY) or {}
    if not isinstance(metadata, Mapping):
        raise SandboxConfigError(
            f"{DEFAULT_METADATA_KEY} must be a mapping, not {type(metadata).__name__}", where=location
        )
    return {str(key): str(value) for key, value in metadata.items()}


def attribution_metadata(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the team, user, workload and run of a sandbox, each only if an environment variable sets it."""
    values = {
        name: next((environ[variable] for variable in variables if environ.get(variable)), None)
        for name, variables in _ATTRIBUTION_VARIABLES.items()
    }
    return {name: value for name, value in values.items() if value is not None}


def _find_block(ref: ProviderRef, named_configs: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Return the sandbox block of a reference, and its location for error messages."""
    if not isinstance(ref, str):
        return as_dict(ref), "sandbox provider"
    blocks = named_configs if named_configs is not None else {}
    if ref not in blocks:
        close = difflib.get_close_matches(ref, [str(name) for name in blocks], n=1)
        add_block = "add nemo_gym/sandbox/providers/docker/configs/docker.yaml to config_paths"
        raise SandboxConfigError(f"unknown sandbox block {ref!r}", fix=repr(close[0]) if close else add_block)
    block = blocks[ref]
    if not isinstance(block, Mapping) and not hasattr(block, "items"):
        raise SandboxConfigError(f"the sandbox block {ref!r} must be a mapping, not {type(block).__name__}", where=ref)
    return as_dict(block), ref
