"""The interface of sandbox providers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Unpack, runtime_checkable

from nemo_gym.sandbox.spec import (
    ExecOptions,
    SandboxCreateError,
    SandboxEndpoint,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
    SandboxUnsupportedError,
)

__all__ = [
    "ConnectableProvider",
    "SandboxCreateError",
    "SandboxEndpoint",
    "SandboxExecResult",
    "SandboxHandle",
    "SandboxProvider",
    "SandboxResources",
    "SandboxSpec",
    "SandboxStatus",
    "SupportsSandboxEndpoint",
    "SupportsSandboxPauseResume",
]


class SandboxProvider(ABC):
    """The interface of a sandbox engine; methods take the handle that `create` or `connect` has returned.

    Every method is bounded in time: `create` by the spec's `ready_timeout_s`, `exec` by its `timeout_s`, the others by
    the provider's operation timeout. `close` may be called for a sandbox that has already ended.
    """

    name: ClassVar[str]

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox and write the spec's files into it.

        Raises:
            SandboxCreateError: the sandbox could not be created; a partial one has been removed.
        """

    @abstractmethod
    async def exec(
        self, handle: SandboxHandle, command: str | Sequence[str], **options: Unpack[ExecOptions]
    ) -> SandboxExecResult:
        """Run a command (a string with `sh -c`) and return its result; a non-zero exit status does not raise."""

    @abstractmethod
    async def upload_file(self, handle: SandboxHandle, source: Path, target: str) -> None:
        """Copy a local file, or the contents of a directory, to `target` in the sandbox; create missing parents."""

    @abstractmethod
    async def download_file(self, handle: SandboxHandle, source: str, target: Path) -> None:
        """Copy a file, or the contents of a directory, to the local `target`; write nothing outside of it."""

    @abstractmethod
    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Return the state of the sandbox as the engine reports it."""

    @abstractmethod
    async def close(self, handle: SandboxHandle) -> None:
        """Remove the sandbox and kill its processes."""

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:  # noqa: ARG002
        """Return the URL of a port of the sandbox."""
        raise SandboxUnsupportedError(f"{self.name} sandboxes have no reachable ports", where=handle.sandbox_id)

    async def open_pty(
        self,
        handle: SandboxHandle,
        command: str | Sequence[str],  # noqa: ARG002
        **options: Any,  # noqa: ARG002
    ) -> Any:
        """Open an interactive terminal in the sandbox."""
        raise SandboxUnsupportedError(f"{self.name} sandboxes have no terminals", where=handle.sandbox_id)

    async def serialize(self, handle: SandboxHandle, scope: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """Return the descriptor with which `connect` finds the sandbox from another process."""
        return {"provider_name": self.name, "sandbox_id": handle.sandbox_id}

    async def connect(self, descriptor: str | Mapping[str, Any]) -> SandboxHandle:
        """Return a handle on an existing sandbox, given its id or its descriptor.

        Raises:
            SandboxError: the sandbox belongs to another provider or is not running.
        """
        state = {"sandbox_id": descriptor} if isinstance(descriptor, str) else dict(descriptor)
        sandbox_id, provider_name = str(state["sandbox_id"]), state.get("provider_name", self.name)
        if provider_name != self.name:
            raise SandboxError(f"the sandbox belongs to {provider_name}, not {self.name}", where=sandbox_id)
        handle = SandboxHandle(sandbox_id=sandbox_id, provider_name=self.name)
        status = await self.status(handle)
        if status is not SandboxStatus.RUNNING:
            raise SandboxError(f"the sandbox is {status.value}, not running", where=f"{self.name} {sandbox_id}")
        return handle

    async def aclose(self) -> None:  # noqa: B027 - most providers hold no resources
        """Release the resources of the provider itself."""


@runtime_checkable
class ConnectableProvider(Protocol):
    """A provider whose sandboxes other processes can use."""

    async def serialize(self, handle: SandboxHandle, scope: Any = None) -> dict[str, Any]: ...

    async def connect(self, descriptor: Any) -> SandboxHandle: ...


@runtime_checkable
class SupportsSandboxEndpoint(Protocol):
    """A provider whose sandboxes have reachable ports."""

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint: ...


@runtime_checkable
class SupportsSandboxPauseResume(Protocol):
    """A provider that can stop the processes of a sandbox and continue them later."""

    async def pause(self, handle: SandboxHandle) -> None: ...

    async def resume(self, handle: SandboxHandle) -> None: ...
