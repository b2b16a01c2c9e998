"""What the engines driven by a command line have in common: run it, bound it, explain its failures."""

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from nemo_gym.sandbox.providers import process
from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.spec import (
    DEFAULT_READY_TIMEOUT_S,
    TIMEOUT_RETURN_CODE,
    SandboxCreateError,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
)

DEFAULT_OPERATION_TIMEOUT_S = 120.0
DEFAULT_MAX_OUTPUT_BYTES = 8 << 20
DEFAULT_MAX_TRANSFER_BYTES = 4 << 30

_ENGINE_TEXT_BYTES = 1 << 20


class CommandLineProvider(SandboxProvider):
    """A provider whose engine is a program on this machine."""

    def __init__(
        self,
        binary: str,
        *,
        operation_timeout_s: float = DEFAULT_OPERATION_TIMEOUT_S,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        max_transfer_bytes: int = DEFAULT_MAX_TRANSFER_BYTES,
    ) -> None:
        self.binary = binary
        self.operation_timeout_s = operation_timeout_s
        self.max_output_bytes = max_output_bytes
        self.max_transfer_bytes = max_transfer_bytes

    async def _create(self, argv: Sequence[str], spec: SandboxSpec, environ: Mapping[str, str]) -> str:
        """Run the command that makes a sandbox and return its standard output.

        Raises:
            SandboxCreateError: the engine cannot be run, refuses, or is not done in time.
        """
        allowed = spec.ready_timeout_s or DEFAULT_READY_TIMEOUT_S
        where = f"{self.name} {spec.image}"
        try:
            ended = await self._run(argv, timeout_s=allowed, environ=environ)
        except SandboxError as error:
            raise SandboxCreateError(error.problem, where=where, fix=error.fix) from error
        if ended.timed_out:
            raise SandboxCreateError(
                f"not ready within {allowed:g} s", where=where, fix="a longer ready_timeout_s, or pull the image first"
            )
        if ended.return_code:
            raise SandboxCreateError(_last_words(ended), where=where)
        return ended.stdout

    async def _operate(self, argv: Sequence[str], handle: SandboxHandle, doing: str) -> str:
        """Run a command of the engine that must succeed and return its standard output.

        Raises:
            SandboxError: it failed or took too long.
        """
        ended = await self._run(argv, timeout_s=self.operation_timeout_s)
        return self._succeeded(ended, handle, doing)

    async def _run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: IO[bytes] | None = None,
        stdout: process.Sink | None = None,
        stderr: process.Kept | None = None,
        environ: Mapping[str, str] | None = None,
        max_output_bytes: int = _ENGINE_TEXT_BYTES,
    ) -> process.Ended:
        try:
            return await process.run(
                [self.binary, *argv],
                timeout_s=timeout_s,
                max_output_bytes=max_output_bytes,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                environ=None if environ is None else {**os.environ, **environ},
            )
        except FileNotFoundError:
            raise SandboxError(
                f"the program {self.binary!r} is not installed", fix=f"install {self.name}, or use another sandbox"
            ) from None
        except OSError as error:
            raise SandboxError(f"the program {self.binary!r} cannot be run: {error.strerror}") from error
        except ValueError as error:
            raise SandboxError(f"the command cannot be passed on: {error}") from error

    def _succeeded(self, ended: process.Ended, handle: SandboxHandle, doing: str) -> str:
        where = f"{self.name} {handle.sandbox_id}"
        if ended.timed_out:
            raise SandboxError(f"{doing} took longer than {self.operation_timeout_s:g} s", where=where)
        if ended.return_code:
            raise SandboxError(f"{doing} failed: {_last_words(ended)}", where=where)
        return ended.stdout

    async def _place_files(self, handle: SandboxHandle, spec: SandboxSpec) -> None:
        """Put the spec's files into a new sandbox; if that fails the sandbox is ended."""
        try:
            for target, content in spec.files.items():
                if isinstance(content, Path):
                    await self.upload(handle, content, target)
                else:
                    data = content.encode() if isinstance(content, str) else content
                    await self._upload_bytes(handle, data, target)
        except BaseException as error:
            await asyncio.shield(self.close(handle))
            if isinstance(error, SandboxError | OSError):
                raise SandboxCreateError(f"a file could not be placed: {error}", where=handle.sandbox_id) from error
            raise

    async def _upload_bytes(self, handle: SandboxHandle, content: bytes, target: str) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            await self.upload(handle, Path(file.name), target)


def exec_result(ended: process.Ended, timeout_s: float, *, stderr: str | None = None) -> SandboxExecResult:
    """How a command in the sandbox ended, in the API's words."""
    said = ended.stderr if stderr is None else stderr
    if ended.timed_out:
        note = f"killed after {timeout_s:g} s"
        return SandboxExecResult(ended.stdout, f"{said}\n{note}".lstrip("\n"), TIMEOUT_RETURN_CODE, "timeout")
    assert ended.return_code is not None
    return SandboxExecResult(ended.stdout, said, ended.return_code, "output_limit" if ended.cut else None)


def inside(path: str, workdir: str | None) -> str:
    """`path` as an absolute path in the sandbox; relative ones start at the working directory.

    Raises:
        SandboxError: it climbs with `..`, holds a zero byte, or is empty.
    """
    pure = PurePosixPath(workdir or "/") / path
    if not path or "\0" in path or ".." in pure.parts:
        raise SandboxError(f"not a path in the sandbox: {path!r}", fix="a path without '..'")
    return pure.as_posix()


def _last_words(ended: process.Ended) -> str:
    """The last lines an engine wrote before it failed."""
    lines = [line for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:] or f"exit status {ended.return_code}"
