"""Start a sandbox, run commands in it, move files, stop it.

    async with AsyncSandbox({"docker": {}}, SandboxSpec(image="python:3.12-slim")) as sandbox:
        result = await sandbox.exec("python -c 'print(6 * 7)'", timeout_s=10)

`Sandbox` is the same API for code without an event loop.
"""

import dataclasses
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from nemo_gym.sandbox.config import attribution_metadata
from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.providers.registry import create_provider
from nemo_gym.sandbox.spec import (
    DEFAULT_EXEC_TIMEOUT_S,
    SandboxEndpoint,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")

Provider = Mapping[str, Any] | SandboxProvider


class AsyncSandbox:
    """One sandbox. `async with` starts and stops it; `stop` also closes a provider that was passed as a mapping."""

    def __init__(self, provider: Provider, spec: SandboxSpec | None = None) -> None:
        self._owns_provider = not isinstance(provider, SandboxProvider)
        self.provider = provider if isinstance(provider, SandboxProvider) else create_provider(provider)
        self.spec = spec
        self._handle: SandboxHandle | None = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def handle(self) -> SandboxHandle:
        """Return the handle of the running sandbox.

        Raises:
            SandboxError: the sandbox is not started, or is stopped.
        """
        if self._handle is None:
            raise SandboxError("the sandbox is not started", fix="await sandbox.start()")
        return self._handle

    @property
    def sandbox_id(self) -> str:
        return self.handle.sandbox_id

    @property
    def pty(self) -> "SandboxTerminals":
        """Return the interactive terminals; creating one raises if the provider does not support them."""
        return SandboxTerminals(self)

    async def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox and wait until it is ready; add attribution metadata from environment variables.

        Raises:
            SandboxCreateError: the sandbox could not be created.
            SandboxError: the sandbox is already started.
        """
        if self._handle is not None:
            raise SandboxError("the sandbox is already started", where=self._handle.sandbox_id)
        spec = spec or self.spec or SandboxSpec()
        self.spec = dataclasses.replace(spec, metadata={**attribution_metadata(os.environ), **spec.metadata})
        try:
            self._handle = await self.provider.create(self.spec)
        except BaseException:
            if self._owns_provider:
                await self.provider.aclose()
            raise
        return self

    async def exec(
        self,
        command: str | Sequence[str],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = DEFAULT_EXEC_TIMEOUT_S,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command and return its result; a non-zero exit status does not raise.

        A command that exceeds `timeout_s` is killed with all its processes; its result has `error_type="timeout"`.
        """
        return await self.provider.exec(self.handle, command, cwd=cwd, env=env, timeout_s=timeout_s, user=user)

    async def upload(self, source: str | Path, target: str) -> None:
        """Copy a local file, or a directory's contents, to `target` in the sandbox.

        Raises:
            SandboxError: the source cannot be read, or the target cannot be written.
        """
        try:
            await self.provider.upload(self.handle, Path(source), target)
        except OSError as error:
            raise SandboxError(f"cannot be read: {error.strerror or error}", where=str(source)) from error

    async def download(self, source: str, target: str | Path) -> None:
        """Copy a file, or a directory's contents, to the local `target`; write nothing outside of it.

        Raises:
            SandboxError: the source is missing, an entry leads outside `target`, or `target` cannot be written.
        """
        try:
            await self.provider.download(self.handle, source, Path(target))
        except OSError as error:
            raise SandboxError(f"cannot be written: {error.strerror or error}", where=str(target)) from error

    async def status(self) -> SandboxStatus:
        """Return the state of the sandbox; `stopped` before `start` and after `stop`."""
        return SandboxStatus.STOPPED if self._handle is None else await self.provider.status(self._handle)

    async def endpoint(self, port: int) -> SandboxEndpoint:
        """Return the URL of a port of the sandbox."""
        return await self.provider.endpoint(self.handle, port)

    async def stop(self) -> None:
        """Remove the sandbox and kill its processes. Idempotent."""
        handle, self._handle = self._handle, None
        try:
            if handle is not None:
                await self.provider.close(handle)
        finally:
            if self._owns_provider:
                await self.provider.aclose()

    def serialize(self) -> dict[str, str]:
        """Return the state with which `connect` finds this sandbox from another process; without provider arguments."""
        return {"provider_name": self.handle.provider_name, "sandbox_id": self.handle.sandbox_id}

    @classmethod
    async def connect(cls, provider: Provider, state: Mapping[str, str]) -> Self:
        """Connect to the sandbox that `serialize` described.

        Raises:
            SandboxError: the sandbox belongs to another provider or is not running.
        """
        sandbox = cls(provider)
        await sandbox._connect(state)
        return sandbox

    async def _connect(self, state: Mapping[str, str]) -> None:
        """Connect this object to the sandbox of `state`; on failure close a provider that was passed as a mapping."""
        sandbox_id, provider_name = state["sandbox_id"], state["provider_name"]
        try:
            if provider_name != self.provider.name:
                problem = f"the sandbox belongs to {provider_name}, not {self.provider.name}"
                raise SandboxError(problem, where=sandbox_id)
            self._handle = await self.provider.connect(sandbox_id)
        except BaseException:
            if self._owns_provider:
                await self.provider.aclose()
            raise


class SandboxTerminals:
    """The interactive terminals of one sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def create(self, command: str | Sequence[str] = "sh", **options: Any) -> Any:
        """Open a terminal that runs `command`.

        Raises:
            SandboxUnsupportedError: the provider has no terminals.
        """
        return await self._sandbox.provider.open_pty(self._sandbox.handle, command, **options)


def _blocking(
    method: Callable[Concatenate[AsyncSandbox, _P], Coroutine[Any, Any, _T]],
) -> "Callable[Concatenate[Sandbox, _P], _T]":
    """Convert a method of `AsyncSandbox` to a blocking method of `Sandbox`."""

    @wraps(method)
    def run_in_thread(sandbox: "Sandbox", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return sandbox._run(partial(method, sandbox._sandbox, *args, **kwargs))

    return run_in_thread


class Sandbox:
    """`AsyncSandbox` for code without an event loop: the same methods, run on a loop in a separate thread.

    The thread exists from the first operation to `stop`.
    """

    def __init__(self, provider: Provider, spec: SandboxSpec | None = None) -> None:
        self._sandbox = AsyncSandbox(provider, spec)
        self._loop_thread = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def handle(self) -> SandboxHandle:
        return self._sandbox.handle

    @property
    def sandbox_id(self) -> str:
        return self._sandbox.sandbox_id

    @property
    def provider(self) -> SandboxProvider:
        return self._sandbox.provider

    def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox and wait until it is ready; see `AsyncSandbox.start`."""
        try:
            self._run(partial(self._sandbox.start, spec))
        except BaseException:
            self._end_thread()
            raise
        return self

    exec = _blocking(AsyncSandbox.exec)
    upload = _blocking(AsyncSandbox.upload)
    download = _blocking(AsyncSandbox.download)
    status = _blocking(AsyncSandbox.status)
    endpoint = _blocking(AsyncSandbox.endpoint)

    def stop(self) -> None:
        """Remove the sandbox and end the thread. Idempotent."""
        if self._portal is None:
            return
        try:
            self._run(self._sandbox.stop)
        finally:
            self._end_thread()

    def serialize(self) -> dict[str, str]:
        return self._sandbox.serialize()

    @classmethod
    def connect(cls, provider: Provider, state: Mapping[str, str]) -> Self:
        """Connect to the sandbox that `serialize` described; see `AsyncSandbox.connect`."""
        sandbox = cls(provider)
        try:
            sandbox._run(partial(sandbox._sandbox._connect, state))
        except BaseException:
            sandbox._end_thread()
            raise
        return sandbox

    def _run(self, operation: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run an operation on the loop's thread and wait for its result; cancel it if the caller is interrupted."""
        if self._portal is None:
            self._portal = self._loop_thread.enter_context(start_blocking_portal())
        future: Future[_T] = self._portal.start_task_soon(operation)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _end_thread(self) -> None:
        self._portal = None
        self._loop_thread.close()
