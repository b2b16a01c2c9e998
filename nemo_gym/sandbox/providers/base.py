"""What an engine must offer to host sandboxes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from nemo_gym.sandbox.spec import (
    DEFAULT_EXEC_TIMEOUT_S,
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
    "SandboxCreateError",
    "SandboxEndpoint",
    "SandboxError",
    "SandboxExecResult",
    "SandboxHandle",
    "SandboxProvider",
    "SandboxResources",
    "SandboxSpec",
    "SandboxStatus",
    "SandboxUnsupportedError",
]


class SandboxProvider(ABC):
    """One engine. A provider holds no sandbox: every call names one by its handle.

    Every call ends: `create` within the spec's `ready_timeout_s`, `exec` within its `timeout_s`, the rest within
    the provider's own bound. `close` may be called for a sandbox that is already gone.
    """

    name: ClassVar[str]

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox; it is running and holds the spec's files when this returns.

        Raises:
            SandboxCreateError: there is none, and nothing of it is left behind.
        """

    @abstractmethod
    async def exec(
        self,
        handle: SandboxHandle,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = DEFAULT_EXEC_TIMEOUT_S,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command (text through `sh -c`, a list as it is) and return what it left, whatever its status."""

    @abstractmethod
    async def upload(self, handle: SandboxHandle, source: Path, target: str) -> None:
        """Copy a local file, or the contents of a directory, to `target` inside; parents are made."""

    @abstractmethod
    async def download(self, handle: SandboxHandle, source: str, target: Path) -> None:
        """Copy a file, or the contents of a directory, to `target` here; nothing is written outside of it."""

    @abstractmethod
    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Where the sandbox is in its life, as the engine sees it."""

    @abstractmethod
    async def close(self, handle: SandboxHandle) -> None:
        """End the sandbox and everything in it."""

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:  # noqa: ARG002
        """Where `port` of the sandbox can be reached from here."""
        raise SandboxUnsupportedError(f"{self.name} sandboxes have no reachable ports", where=handle.sandbox_id)

    async def open_pty(
        self,
        handle: SandboxHandle,
        command: str | Sequence[str],  # noqa: ARG002
        **options: Any,  # noqa: ARG002
    ) -> Any:
        """An interactive terminal in the sandbox."""
        raise SandboxUnsupportedError(f"{self.name} sandboxes have no terminals", where=handle.sandbox_id)

    async def connect(self, sandbox_id: str) -> SandboxHandle:
        """A handle on a sandbox that is already there.

        Raises:
            SandboxError: it is not running.
        """
        handle = SandboxHandle(sandbox_id=sandbox_id, provider_name=self.name)
        found = await self.status(handle)
        if found is not SandboxStatus.RUNNING:
            raise SandboxError(f"the sandbox is {found.value}, not running", where=f"{self.name} {sandbox_id}")
        return handle

    async def aclose(self) -> None:  # noqa: B027 - most providers hold nothing to let go of
        """Let go of what the provider itself holds; its sandboxes stay."""
