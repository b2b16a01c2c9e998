"""What a sandbox is asked for and what it answers: plain data, shared by the API and every provider."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from nemo_gym.errors import GymError

DEFAULT_EXEC_TIMEOUT_S = 180.0
DEFAULT_READY_TIMEOUT_S = 600.0
DEFAULT_TTL_S = 24 * 3600.0
"""A sandbox nobody stopped ends by itself after this long, where the engine can do that."""

TIMEOUT_RETURN_CODE = 124
"""The status of a command that was killed by its clock, as `timeout(1)` reports it."""


class SandboxError(GymError, RuntimeError):
    """A sandbox operation failed for a reason that is not the command's own."""


class SandboxCreateError(SandboxError):
    """No sandbox could be made: the engine, its binary or the image is missing, or it took too long."""


class SandboxUnsupportedError(SandboxError, NotImplementedError):
    """This provider cannot do that."""


class SandboxStatus(StrEnum):
    """Where a sandbox is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass
class SandboxResources:
    """Upper bounds; None leaves the engine's default."""

    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: float | None = None
    gpu: int | None = None
    gpu_type: str | None = None


@dataclass
class SandboxSpec:
    """What to start.

    `files` maps a path inside the sandbox to what it shall hold: text or bytes are the content itself, a `Path`
    is a local file to copy. `entrypoint` replaces the idle process that keeps the sandbox alive. `ports` are
    reachable through `endpoint(port)`. `provider_options` are passed to the provider untouched.
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
    ports: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.resources, Mapping):
            self.resources = SandboxResources(**self.resources)
        for name, seconds in (("ttl_s", self.ttl_s), ("ready_timeout_s", self.ready_timeout_s)):
            if seconds is not None and seconds <= 0:
                raise ValueError(f"SandboxSpec.{name} must be more than 0 seconds, not {seconds}")


class SandboxErrorKind(StrEnum):
    """What ended or spoiled a command; a command that ran to its own end has none, whatever its status."""

    TIMEOUT = "timeout"
    """The wall clock ran out."""
    CPU_TIME = "cpu_time"
    """The processor time ran out."""
    MEMORY = "memory"
    OUTPUT = "output"
    """It wrote more than the bound and was killed for it."""
    OUTPUT_LIMIT = "output_limit"
    """It wrote more than the bound; it ran on, and the output is cut (docker, apptainer)."""
    PROCESSES = "processes"
    """It wanted more processes or threads than the bound."""
    DISK = "disk"
    """It wanted to write more than there is room for."""
    FORBIDDEN = "forbidden"
    """It failed on a system call, a path or a network that is closed to it."""
    CRASHED = "crashed"
    """A signal ended it that nothing above explains."""
    SANDBOX = "sandbox"
    """The engine failed, the command may never have started: not the command's doing."""


@dataclass(frozen=True)
class SandboxExecDetail:
    """What is known beyond the result: figures are None where the engine does not count them."""

    isolated: bool = True
    signal: int | None = None
    seconds: float | None = None
    cpu_s: float | None = None
    peak_memory_mib: float | None = None


@dataclass(frozen=True)
class SandboxExecResult:
    """What a command left behind.

    `error_type` is None when the command ran to its own end, otherwise one of `SandboxErrorKind`.
    """

    stdout: str = ""
    stderr: str = ""
    return_code: int = 0
    error_type: str | None = None
    detail: SandboxExecDetail | None = None


@dataclass
class SandboxHandle:
    """A provider's grip on one sandbox. `raw` is the provider's own; `sandbox_id` is what it needs to find it again."""

    sandbox_id: str
    provider_name: str
    raw: Any = None


@dataclass(frozen=True)
class SandboxEndpoint:
    """Where a port of the sandbox can be reached from here, and the headers a request there needs."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)


def argv_of(command: str | Sequence[str]) -> list[str]:
    """A command as the arguments to run: text goes through `sh -c`, a list is run as it is."""
    return ["sh", "-c", command] if isinstance(command, str) else list(command)
