"""Sandboxes: isolation for model-written code.

A box is one isolated process tree: a sandbox of the provider `local`.

- `api`: `AsyncSandbox` and `Sandbox`; `spec`: their specs, results and errors; `config`: sandbox blocks of configs
- `providers`: `local`, `docker`, `apptainer`
- `python`: run untrusted Python; `base_server`: base class of servers that run untrusted Python
- `programs`: run programs that call a model; `workspaces`: files of a rollout, and what was changed in them
- `access`: a sandbox that another server started; `agent_tools`: helpers of agents in a sandbox
- `process_supervisor`: a program that runs inside a sandbox
- `utils`: image names, limits of threads
"""

from nemo_gym.sandbox.api import AsyncSandbox, Sandbox, SandboxPty
from nemo_gym.sandbox.config import attribution_metadata, resolve_provider_config, resolve_provider_metadata
from nemo_gym.sandbox.providers.base import ConnectableProvider, SandboxProvider, SupportsSandboxEndpoint
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
from nemo_gym.sandbox.utils import cpu_cap_env, rewrite_image

__all__ = [
    "AsyncSandbox",
    "ConnectableProvider",
    "Sandbox",
    "SandboxCreateError",
    "SandboxEndpoint",
    "SandboxError",
    "SandboxErrorKind",
    "SandboxExecDetail",
    "SandboxExecResult",
    "SandboxHandle",
    "SandboxProvider",
    "SandboxPty",
    "SandboxResources",
    "SandboxSpec",
    "SandboxStatus",
    "SandboxUnsupportedError",
    "SupportsSandboxEndpoint",
    "attribution_metadata",
    "cpu_cap_env",
    "create_provider",
    "get_provider_class",
    "list_providers",
    "register_provider",
    "resolve_provider_config",
    "resolve_provider_metadata",
    "rewrite_image",
]
