"""Start a sandbox, run commands in it, move files, stop it.

    async with AsyncSandbox({"docker": {}}, SandboxSpec(image="python:3.12-slim")) as sandbox:
        result = await sandbox.exec("python -c 'print(6 * 7)'", timeout_s=10)

`Sandbox` is the same API for code without an event loop. A provider is a mapping `{name: arguments}` or any object with
the methods of `SandboxProvider`.
"""

import asyncio
import dataclasses
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

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
    SandboxUnsupportedError,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")

_THREAD_END_S = 5.0
"""Longest wait for the thread of a blocking sandbox to end."""

_CANCEL_S = 30.0
"""Longest wait for an interrupted operation of a blocking sandbox to end."""

Provider = Mapping[str, Any] | SandboxProvider | Any


class AsyncSandbox:
    """One sandbox. `stop` also closes the provider, unless `owns_provider` is False.

    `async with` stops the sandbox at its end; it starts the sandbox if the constructor has a spec, and otherwise waits
    for `start(spec)`.
    """

    def __init__(self, provider: Provider, spec: SandboxSpec | None = None, *, owns_provider: bool = True) -> None:
        self._owns_provider = owns_provider
        self.provider: Any = create_provider(provider) if isinstance(provider, Mapping) else provider
        self.spec = spec
        self._handle: SandboxHandle | None = None
        self._started_by_context = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        if self.spec is not None:
            await self.start()
            self._started_by_context = True
        return self

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
    def pty(self) -> "SandboxPty":
        """Return the interactive terminals; creating one raises if the provider does not support them."""
        return SandboxPty(self)

    async def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox and wait until it is ready; add attribution metadata from environment variables.

        Raises:
            SandboxCreateError: the sandbox could not be created.
            SandboxError: the sandbox is already started.
        """
        if self._started_by_context and spec in (None, self.spec):
            self._started_by_context = False
            return self
        if self._handle is not None:
            raise SandboxError("the sandbox is already started", where=self._handle.sandbox_id)
        given_spec = spec or self.spec or SandboxSpec()
        metadata = {**attribution_metadata(os.environ), **given_spec.metadata}
        self._is_closed = False
        try:
            self._handle = await self.provider.create(dataclasses.replace(given_spec, metadata=metadata))
            self.spec = given_spec
            if not isinstance(self.provider, SandboxProvider):  # ours write the files when they create the sandbox
                await self._upload_spec_files(given_spec)
        except BaseException:
            await self.stop()
            raise
        return self

    async def start_with_setup(
        self, spec: SandboxSpec | None, setup: "Callable[[AsyncSandbox], Awaitable[Any]]"
    ) -> Self:
        """Start the sandbox and run `setup` in it; stop the sandbox if that fails."""
        await self.start(spec)
        try:
            await setup(self)
        except BaseException:
            await self.stop()
            raise
        return self

    async def _upload_spec_files(self, spec: SandboxSpec) -> None:
        for target, content in spec.files.items():
            if isinstance(content, Path):
                await self.provider.upload_file(self.handle, content, target)
                continue
            with tempfile.NamedTemporaryFile() as file:
                file.write(content.encode(errors="replace") if isinstance(content, str) else content)
                file.flush()
                await self.provider.upload_file(self.handle, Path(file.name), target)

    async def exec(
        self,
        command: str | Sequence[str],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = DEFAULT_EXEC_TIMEOUT_S,
        user: str | int | None = None,
        preserve_background_services: bool = False,
    ) -> SandboxExecResult:
        """Run a command and return its result; a non-zero exit status does not raise.

        A command that exceeds `timeout_s` is killed with all its processes; its result has `error_type="timeout"`.
        `preserve_background_services` is passed to providers that can keep what the command leaves running.
        """
        options: dict[str, Any] = {"cwd": cwd, "env": env, "timeout_s": timeout_s, "user": user}
        if preserve_background_services:
            options["preserve_background_services"] = True
        result: SandboxExecResult = await self.provider.exec(self.handle, command, **options)
        return result

    async def upload(self, source: str | Path, target: str) -> None:
        """Copy a local file, or a directory's contents, to `target` in the sandbox.

        Raises:
            SandboxError: the source cannot be read, or the target cannot be written.
        """
        try:
            await self.provider.upload_file(self.handle, Path(source), target)
        except OSError as error:
            raise SandboxError(f"cannot be read: {error.strerror or error}", where=str(source)) from error

    async def download(self, source: str, target: str | Path) -> None:
        """Copy a file, or a directory's contents, to the local `target`; write nothing outside of it.

        Raises:
            SandboxError: the source is missing, an entry leads outside `target`, or `target` cannot be written.
        """
        try:
            await self.provider.download_file(self.handle, source, Path(target))
        except OSError as error:
            raise SandboxError(f"cannot be written: {error.strerror or error}", where=str(target)) from error

    async def status(self) -> SandboxStatus:
        """Return the state of the sandbox; `stopped` before `start` and after `stop`."""
        if self._handle is None:
            return SandboxStatus.STOPPED
        status: SandboxStatus = await self.provider.status(self._handle)
        return status

    async def endpoint(self, port: int) -> SandboxEndpoint:
        """Return the URL of a port of the sandbox."""
        endpoint: SandboxEndpoint = await self.provider.endpoint(self.handle, port)
        return endpoint

    async def pause(self) -> None:
        """Stop the processes of the sandbox until `resume`; raises if the provider cannot."""
        await self._optional_method("pause")(self.handle)

    async def resume(self) -> None:
        """Continue a paused sandbox; raises if the provider cannot."""
        await self._optional_method("resume")(self.handle)

    def _optional_method(self, name: str) -> Callable[..., Awaitable[Any]]:
        method: Callable[..., Awaitable[Any]] | None = getattr(self.provider, name, None)
        if method is None:
            raise SandboxUnsupportedError(f"this provider cannot {name} a sandbox", where=self.handle.sandbox_id)
        return method

    async def stop(self) -> None:
        """Remove the sandbox and kill its processes. Idempotent; if the provider fails, it can be called again."""
        self._started_by_context = False
        if self._handle is not None:
            await self.provider.close(self._handle)
            self._handle = None
        if not self._is_closed:
            await self._close_provider()
            self._is_closed = True

    async def disconnect(self) -> None:
        """Release the provider without stopping the sandbox, which another process started."""
        self._handle = None
        await self._close_provider()

    async def _close_provider(self) -> None:
        close = getattr(self.provider, "aclose", None)
        if self._owns_provider and close is not None:
            await close()

    async def serialize(self, scope: Any = None) -> dict[str, Any]:
        """Return the descriptor with which `connect` finds this sandbox; it contains no provider arguments."""
        arguments = () if scope is None else (scope,)
        descriptor: dict[str, Any] = await self.provider.serialize(self.handle, *arguments)
        return descriptor

    @classmethod
    async def connect(cls, descriptor: Mapping[str, Any], *, provider: Provider, owns_provider: bool = True) -> Self:
        """Connect to the sandbox that `serialize` described.

        Raises:
            SandboxError: the sandbox belongs to another provider or is not running.
        """
        sandbox = cls(provider, owns_provider=owns_provider)
        await sandbox._connect(descriptor)
        return sandbox

    async def _connect(self, descriptor: Mapping[str, Any]) -> None:
        """Connect this object to the sandbox of a descriptor; on failure close the provider."""
        try:
            self._handle = await self.provider.connect(descriptor)
        except BaseException:
            await self._close_provider()
            raise


class SandboxPty:
    """The interactive terminals of one sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def create(self, command: str | Sequence[str] = "sh", **options: Any) -> Any:
        """Open a terminal that runs `command`.

        Raises:
            SandboxUnsupportedError: the provider has no terminals.
        """
        return await self._sandbox._optional_method("open_pty")(self._sandbox.handle, command, **options)


def _blocking(
    method: Callable[Concatenate[AsyncSandbox, _P], Coroutine[Any, Any, _T]],
) -> "Callable[Concatenate[Sandbox, _P], _T]":
    """Convert a method of `AsyncSandbox` to a blocking method of `Sandbox`."""

    @wraps(method)
    def run_in_thread(sandbox: "Sandbox", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return sandbox._run(partial(method, sandbox._sandbox, *args, **kwargs))

    return run_in_thread


class LoopThread:
    """An event loop on a daemon thread: code that forgets to stop a sandbox does not keep the process from ending."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="sandbox loop", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def run(self, operation: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run an operation and wait for its result; if the caller is interrupted, cancel it and wait for its end.

        A sandbox that is being created is removed by then.
        """
        has_ended = threading.Event()

        async def run_operation() -> _T:
            try:
                return await operation()
            finally:
                has_ended.set()

        future = asyncio.run_coroutine_threadsafe(run_operation(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            has_ended.wait(_CANCEL_S)
            raise

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_THREAD_END_S)


class Sandbox:
    """`AsyncSandbox` for code without an event loop: the same methods, run on a loop in a separate thread.

    The thread exists from the first operation to `stop`.
    """

    def __init__(self, provider: Provider, spec: SandboxSpec | None = None, *, owns_provider: bool = True) -> None:
        self._sandbox = AsyncSandbox(provider, spec, owns_provider=owns_provider)
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self._run(self._sandbox.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def handle(self) -> SandboxHandle:
        return self._sandbox.handle

    @property
    def sandbox_id(self) -> str:
        return self._sandbox.sandbox_id

    @property
    def provider(self) -> Any:
        return self._sandbox.provider

    def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox and wait until it is ready; see `AsyncSandbox.start`."""
        self._run(partial(self._sandbox.start, spec))
        return self

    exec = _blocking(AsyncSandbox.exec)
    upload = _blocking(AsyncSandbox.upload)
    download = _blocking(AsyncSandbox.download)
    status = _blocking(AsyncSandbox.status)
    endpoint = _blocking(AsyncSandbox.endpoint)
    pause = _blocking(AsyncSandbox.pause)
    resume = _blocking(AsyncSandbox.resume)
    serialize = _blocking(AsyncSandbox.serialize)

    def stop(self) -> None:
        """Remove the sandbox and end the thread. Idempotent."""
        if self._thread is not None:
            self._run(self._sandbox.stop)
            self._end_thread()

    @classmethod
    def connect(cls, descriptor: Mapping[str, Any], *, provider: Provider, owns_provider: bool = True) -> Self:
        """Connect to the sandbox that `serialize` described; see `AsyncSandbox.connect`."""
        sandbox = cls(provider, owns_provider=owns_provider)
        sandbox._run(partial(sandbox._sandbox._connect, descriptor))
        return sandbox

    def _run(self, operation: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run an operation on the loop's thread; end the thread if there is no sandbox afterwards."""
        self._thread = self._thread or LoopThread()
        try:
            return self._thread.run(operation)
        except BaseException:
            if self._sandbox._handle is None:
                self._end_thread()
            raise

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.end()
        self._thread = None
