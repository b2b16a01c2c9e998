"""Specs, results and errors of sandboxes: plain data shared by the API and every provider."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict

from nemo_gym.errors import ConfigError, GymError

DEFAULT_EXEC_TIMEOUT_S = 180.0
DEFAULT_READY_TIMEOUT_S = 600.0
DEFAULT_TTL_S = 24 * 3600.0
"""The engine removes an abandoned sandbox after this time, if it supports that."""

TIMEOUT_RETURN_CODE = 124
"""Exit status of a command that exceeded its timeout, as in `timeout(1)`."""


class SandboxError(GymError, RuntimeError):
    """A sandbox operation failed, for a reason other than the command itself."""


class SandboxConfigError(ConfigError, ValueError):
    """A sandbox block or its provider is unknown or malformed; a ValueError, as server folders expect."""


class SandboxCreateError(SandboxError):
    """A sandbox could not be created: the engine, its binary or the image is missing, or a timeout passed."""


class SandboxUnsupportedError(SandboxError, NotImplementedError):
    """The provider does not support the operation."""


class SandboxStatus(StrEnum):
    """The state of a sandbox."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass
class SandboxResources:
    """Resource limits of a sandbox; None keeps the engine's default."""

    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: float | None = None
    gpu: int | None = None
    gpu_type: str | None = None

    @classmethod
    def from_mapping(cls, mapping: "Mapping[str, Any] | None") -> "SandboxResources":
        """Return the resources of a configuration; numbers may be written as text.

        Raises:
            ValueError: a key is unknown, or a value is not a number.
        """
        casts: dict[str, Any] = {"cpu": float, "memory_mib": int, "disk_gib": float, "gpu": int, "gpu_type": str}
        values = dict(mapping or {})
        if unknown := sorted(str(key) for key in values if key not in casts):
            raise ValueError(f"Unknown sandbox resource keys: {', '.join(unknown)} (known: {', '.join(casts)})")
        return cls(**{key: None if value is None else casts[key](value) for key, value in values.items()})


@dataclass
class SandboxSpec:
    """The description of a sandbox to start.

    `files` maps a path inside the sandbox to its content: text, bytes, or the `Path` of a local file to copy.
    `entrypoint` replaces the idle process that keeps the sandbox alive. `ports` are reachable through
    `endpoint(port)`. `provider_options` are passed to the provider unchanged.
    """

    image: str | None = None
    ttl_s: float | None = None
    ready_timeout_s: float | None = None
    workdir: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str | bytes | Path] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    resources: SandboxResources = field(default_factory=SandboxResources)
    entrypoint: list[str] | None = None
    provider_options: dict[str, Any] = field(default_factory=dict)
    ports: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.resources is None or isinstance(self.resources, Mapping):
            self.resources = SandboxResources.from_mapping(self.resources)
        self.ports = tuple(self.ports)
        for name, seconds in (("ttl_s", self.ttl_s), ("ready_timeout_s", self.ready_timeout_s)):
            if seconds is not None and seconds <= 0:
                raise ValueError(f"SandboxSpec.{name} must be more than 0 seconds, not {seconds}")


class SandboxErrorKind(StrEnum):
    """Why a command was killed, or which limit made it fail."""

    TIMEOUT = "timeout"
    """It exceeded its wall-clock time."""
    CPU_TIME = "cpu_time"
    """It exceeded its processor time."""
    MEMORY = "memory"
    OUTPUT = "output"
    """It wrote more output than the limit and was killed."""
    OUTPUT_LIMIT = "output_limit"
    """It wrote more output than the limit; the output is cut, the command was not killed (docker, apptainer)."""
    PROCESSES = "processes"
    """It tried to start more processes or threads than the limit."""
    DISK = "disk"
    """It tried to write more than the disk limit."""
    FORBIDDEN = "forbidden"
    """It failed on a forbidden system call, path or network access."""
    CRASHED = "crashed"
    """A signal killed it for none of the reasons above."""
    SANDBOX = "sandbox"
    """The engine failed, not the command; the command may not have started."""


@dataclass(frozen=True)
class SandboxExecDetail:
    """Measurements of a command; None if the engine does not provide one."""

    isolated: bool = True
    signal: int | None = None
    seconds: float | None = None
    cpu_s: float | None = None
    peak_memory_mib: float | None = None
    sampled_limits: tuple[str, ...] = ()
    """Limits (`memory`, `pids`) that the kernel did not enforce; the provider measured and could react late."""


@dataclass(frozen=True)
class SandboxExecResult:
    """The result of a command.

    `error_type` is None if the command exited by itself with any status, otherwise one of `SandboxErrorKind`.
    """

    stdout: str = ""
    stderr: str = ""
    return_code: int = 0
    error_type: str | None = None
    detail: SandboxExecDetail | None = None


@dataclass
class SandboxHandle:
    """A provider's reference to one sandbox. `raw` is private to the provider; `sandbox_id` identifies the sandbox."""

    sandbox_id: str
    provider_name: str
    raw: Any = None


@dataclass(frozen=True)
class SandboxEndpoint:
    """The URL of a port of the sandbox, and the headers that requests to it need."""

    endpoint: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.endpoint


class ExecOptions(TypedDict, total=False):
    """The options of a command: working directory, additional variables, time limit and user in the sandbox."""

    cwd: str | None
    env: Mapping[str, str] | None
    timeout_s: float | None
    user: str | int | None


def exec_timeout(options: ExecOptions) -> float:
    """Return the time limit of a command; a missing one is `DEFAULT_EXEC_TIMEOUT_S`."""
    timeout_s = options.get("timeout_s")
    return DEFAULT_EXEC_TIMEOUT_S if timeout_s is None else timeout_s


def command_argv(command: str | Sequence[str]) -> list[str]:
    """Return a command as an argument list; a string is run with `sh -c`."""
    return ["sh", "-c", command] if isinstance(command, str) else list(command)
