"""Sandboxes: isolation for model-written code.

A box is one isolated process tree: a sandbox of the provider `local`.

- `api`: `AsyncSandbox` and `Sandbox`; `spec`: their specs, results and errors; `config`: sandbox blocks of configs
- `providers`: `local`, `docker`, `apptainer`
- `python`: run untrusted Python; `base_server`: base class of servers that run untrusted Python
- `utils`: image names
"""

from nemo_gym.sandbox.api import AsyncSandbox, Sandbox
from nemo_gym.sandbox.config import attribution_metadata, resolve_provider_config, resolve_provider_metadata
from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.providers.registry import create_provider, get_provider_class, list_providers, register_provider
from nemo_gym.sandbox.spec import (
    SandboxCreateError,
    SandboxEndpoint,
    SandboxError,
    SandboxErrorKind,
    SandboxExecDetail,
    SandboxExecResult,
    SandboxHandle,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
    SandboxUnsupportedError,
)
from nemo_gym.sandbox.utils import rewrite_image

__all__ = [
    "AsyncSandbox",
    "Sandbox",
    "SandboxCreateError",
    "SandboxEndpoint",
    "SandboxError",
    "SandboxErrorKind",
    "SandboxExecDetail",
    "SandboxExecResult",
    "SandboxHandle",
    "SandboxProvider",
    "SandboxResources",
    "SandboxSpec",
    "SandboxStatus",
    "SandboxUnsupportedError",
    "attribution_metadata",
    "create_provider",
    "get_provider_class",
    "list_providers",
    "register_provider",
    "resolve_provider_config",
    "resolve_provider_metadata",
    "rewrite_image",
]
