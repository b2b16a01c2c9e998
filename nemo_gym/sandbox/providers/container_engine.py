"""Run the command line of container engines with bounded time and output, and report their failures."""

import asyncio
import contextlib
import difflib
import io
import logging
import os
import re
import secrets
import signal
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import IO, Any, TypeVar

from nemo_gym.processes import signal_group
from nemo_gym.sandbox.providers.archive import ArchiveProvider
from nemo_gym.sandbox.spec import (
    DEFAULT_READY_TIMEOUT_S,
    TIMEOUT_RETURN_CODE,
    ExecOptions,
    SandboxConfigError,
    SandboxCreateError,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    exec_timeout,
)
from nemo_gym.sandbox.utils import rewrite_image

logger = logging.getLogger("nemo_gym.sandbox")

DEFAULT_OPERATION_TIMEOUT_S = 120.0
DEFAULT_MAX_OUTPUT_BYTES = 8 << 20
DEFAULT_MAX_TRANSFER_BYTES = 4 << 30

KILL_GRACE_S = 5.0
"""Longest wait for a killed process to be reaped."""
DRAIN_S = 0.5
"""Longest wait for the output of a killed process group; a process that left the group may hold the pipes open."""

_CHUNK = 1 << 16
_ENGINE_OUTPUT_BYTES = 1 << 20


class BoundedOutput:
    """The first `limit` bytes of a stream, in memory or in `file`; the rest is read and dropped."""

    def __init__(self, limit: int, file: IO[bytes] | None = None) -> None:
        self.limit = limit
        self.file = io.BytesIO() if file is None else file
        self.size = 0
        self.is_cut = False

    async def drain(self, stream: asyncio.StreamReader) -> None:
        """Read a stream to its end, so that the writer is never blocked by a full pipe."""
        while chunk := await stream.read(_CHUNK):
            remaining = self.limit - self.size
            self.is_cut = self.is_cut or len(chunk) > remaining
            self.size += self.file.write(chunk[:remaining])

    def text(self) -> str:
        """Return the bytes as text, with replacement characters for invalid UTF-8; empty if they are in a file."""
        return self.file.getvalue().decode("utf-8", errors="replace") if isinstance(self.file, io.BytesIO) else ""


@dataclass(frozen=True)
class FinishedProcess:
    """The exit status (None after a timeout) and the output of a process; `is_cut` is set if output was dropped."""

    return_code: int | None
    stdout: str
    stderr: str
    is_cut: bool

    @property
    def timed_out(self) -> bool:
        return self.return_code is None

    def last_lines(self) -> str:
        """Return the last three lines of stderr (or stdout), for an error message."""
        lines = [line for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-600:] or f"exit status {self.return_code}"


async def run_process(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdout: BoundedOutput,
    stderr: BoundedOutput,
    stdin: IO[bytes] | None = None,
    environ: Mapping[str, str] | None = None,
) -> FinishedProcess:
    """Run `argv` in a new process group; kill the whole group on timeout or cancellation.

    Raises:
        OSError: the program cannot be started.
        ValueError: an argument or a variable contains a zero byte.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=stdin if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=None if environ is None else dict(environ),
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    readers = asyncio.gather(stdout.drain(process.stdout), stderr.drain(process.stderr))
    is_finished = False
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(readers)  # `_kill_group` reads the rest of the output
            await process.wait()
            is_finished = True
    except TimeoutError:
        pass  # reported as `return_code` None
    finally:
        if not is_finished:
            await _kill_group(process, readers)
    return_code = process.returncode if is_finished else None
    return FinishedProcess(return_code, stdout.text(), stderr.text(), stdout.is_cut or stderr.is_cut)


async def _kill_group(process: asyncio.subprocess.Process, readers: "asyncio.Future[tuple[None, None]]") -> None:
    """Kill the process group, read its remaining output, reap its leader and close the pipes, in bounded time."""
    signal_group(process.pid, signal.SIGKILL)
    # The output already in the pipes may hold the process id of the command, which is needed to kill the command.
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(readers, DRAIN_S)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), KILL_GRACE_S)
    # A grandchild that left the group may hold the pipes open; closing our ends removes them from the event loop.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


@dataclass(kw_only=True)
class ExecConfig:
    """The block `exec` of a provider: options of every command."""

    default_timeout_s: float | None = None
    """Time limit of a command that has none."""
    default_binds: Sequence[str] = ()
    extra_exec_args: Sequence[str] = ()
    concurrency: int | None = None
    """Commands that run at the same time; None: no limit."""
    timeout_grace_s: float = 0.0
    """Seconds that a command gets beyond its time limit."""


@dataclass(kw_only=True)
class StartConfig:
    """The block `create` of a provider: options of every sandbox."""

    start_timeout_s: float | None = None
    """Time limit of a start whose spec has none."""
    extra_start_args: Sequence[str] = ()
    extra_run_args: Sequence[str] = ()


@dataclass(kw_only=True)
class ProbeConfig:
    """The block `probe` of a provider: a command that must succeed before a sandbox is used."""

    enabled: bool = True
    command: str | None = None
    timeout_s: float = 30.0


ConfigT = TypeVar("ConfigT")


def read_block(config_class: type[ConfigT], block: ConfigT | Mapping[str, Any] | None, location: str) -> ConfigT:
    """Return a block of a provider's configuration; warn about keys that this provider does not have.

    Raises:
        SandboxConfigError: a key is a misspelling of a known one, which may be a limit.
    """
    if isinstance(block, config_class):
        return block
    values: dict[str, Any] = dict(block or {})  # type: ignore[arg-type]  # a mapping here
    names = {field.name for field in fields(config_class)}  # type: ignore[arg-type]  # a dataclass
    unknown = sorted(key for key in values if key not in names)
    for key in unknown:
        if close := difflib.get_close_matches(key, names, n=1, cutoff=0.8):
            raise SandboxConfigError(f"unknown key {key!r}", where=location, fix=close[0])
    if unknown:
        logger.warning("%s: these keys have no effect here: %s", location, ", ".join(unknown))
    return config_class(**{key: value for key, value in values.items() if key in names})


class CommandLineProvider(ArchiveProvider):
    """A provider that runs its engine's command-line program."""

    def __init__(
        self,
        binary: str,
        *,
        exec: ExecConfig | Mapping[str, Any] | None = None,  # noqa: A002 - the name of the block in configurations
        probe: ProbeConfig | Mapping[str, Any] | None = None,
        image: str | None = None,
        image_rewrites: Sequence[Mapping[str, str]] = (),
        run_id: str | None = None,
        operation_timeout_s: float = DEFAULT_OPERATION_TIMEOUT_S,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        max_transfer_bytes: int = DEFAULT_MAX_TRANSFER_BYTES,
    ) -> None:
        self.binary = binary
        self.exec_config = read_block(ExecConfig, exec, f"sandbox {self.name}.exec")
        self.probe_config = read_block(ProbeConfig, probe, f"sandbox {self.name}.probe")
        self._slots = asyncio.Semaphore(self.exec_config.concurrency or sys.maxsize)
        self.image = image
        self.image_rewrites = list(image_rewrites)
        self.run_id = run_id or secrets.token_hex(8)
        self.operation_timeout_s = operation_timeout_s
        self.max_output_bytes = max_output_bytes
        self.max_transfer_bytes = max_transfer_bytes

    start_timeout_s: float | None = None

    def _exec_timeout(self, options: ExecOptions) -> float:
        """Return the time limit of a command: from its request, from the block `exec`, or the default."""
        if options.get("timeout_s") is None and self.exec_config.default_timeout_s is not None:
            options = {**options, "timeout_s": self.exec_config.default_timeout_s}
        return exec_timeout(options) + self.exec_config.timeout_grace_s

    async def _probe(self, handle: SandboxHandle) -> None:
        """Run the command of the block `probe`, if it has one; remove the sandbox if the command fails."""
        probe = self.probe_config
        if not probe.enabled or not probe.command:
            return
        try:
            result = await self.exec(handle, probe.command, timeout_s=probe.timeout_s)
            if result.return_code:
                raise SandboxCreateError(f"the probe failed: {result.stderr[-600:]}", where=handle.sandbox_id)
        except BaseException:
            await asyncio.shield(self.close(handle))
            raise

    @abstractmethod
    def _create_command(self, name: str, image: str, spec: SandboxSpec) -> tuple[list[str], dict[str, str]]:
        """Return the arguments and the additional environment of the command that creates a sandbox."""

    @abstractmethod
    def _remove_command(self, name: str) -> list[str]:
        """Return the arguments of the command that removes a sandbox and kills its processes."""

    @abstractmethod
    def _unpack_command(self, name: str) -> list[str]:
        """Return the arguments of the command that unpacks an archive from stdin at the root of a sandbox."""

    @abstractmethod
    def _pack_command(self, name: str, path: str) -> list[str]:
        """Return the arguments of the command that writes an archive of `path` in a sandbox to stdout."""

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Create a sandbox named after the run, and write the spec's files into it."""
        image = spec.image or self.image
        if not image:
            raise SandboxCreateError("an image is required", where=self.name, fix="set SandboxSpec(image=…)")
        raw = {"workdir": spec.workdir, "env": dict(spec.env)}
        run_name = re.sub(r"[^A-Za-z0-9_.-]", "-", self.run_id)
        handle = SandboxHandle(f"nemo-gym-{run_name}-{secrets.token_hex(6)}", self.name, raw=raw)
        argv, environ = self._create_command(handle.sandbox_id, rewrite_image(image, self.image_rewrites), spec)
        try:
            await self._run_create_command(argv, spec, environ)
        except BaseException:
            # The client may have been killed after the engine accepted the command: remove the sandbox if it exists.
            await asyncio.shield(self.close(handle))
            raise
        await self._write_spec_files(handle, spec)
        await self._probe(handle)
        return handle

    async def _run_create_command(self, argv: Sequence[str], spec: SandboxSpec, environ: Mapping[str, str]) -> None:
        """Run the command that creates a sandbox; raise SandboxCreateError if it fails or times out."""
        timeout_s = spec.ready_timeout_s or self.start_timeout_s or DEFAULT_READY_TIMEOUT_S
        location = f"{self.name} {spec.image}"
        try:
            finished = await self._run(argv, timeout_s=timeout_s, environ=environ)
        except SandboxError as error:
            raise SandboxCreateError(error.problem, where=location, fix=error.fix) from error
        if finished.timed_out:
            fix = "increase ready_timeout_s, or pull the image first"
            raise SandboxCreateError(f"not ready within {timeout_s:g} s", where=location, fix=fix)
        if finished.return_code:
            raise SandboxCreateError(finished.last_lines(), where=location)

    async def close(self, handle: SandboxHandle) -> None:
        """Remove the sandbox; ignore an error of the engine, which it reports if the sandbox has already ended."""
        try:
            finished = await self._run(self._remove_command(handle.sandbox_id))
        except SandboxError:
            return  # without an engine there is no sandbox to remove
        if finished.timed_out:
            raise SandboxError("not removed in time", where=f"{self.name} {handle.sandbox_id}")

    async def _send_archive(self, handle: SandboxHandle, packed: IO[bytes], operation: str) -> None:
        finished = await self._run(self._unpack_command(handle.sandbox_id), stdin=packed)
        self._require_success(finished, handle, operation)

    async def _receive_archive(self, handle: SandboxHandle, origin: str, packed: IO[bytes]) -> bool:
        output = BoundedOutput(self.max_transfer_bytes, packed)
        finished = await self._run(self._pack_command(handle.sandbox_id, origin), stdout=output)
        self._require_success(finished, handle, f"download of {origin}")
        return not output.is_cut

    async def _run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: IO[bytes] | None = None,
        stdout: BoundedOutput | None = None,
        stderr: BoundedOutput | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> FinishedProcess:
        """Run one command of the engine, by default with `operation_timeout_s` and up to 1 MiB per output stream."""
        try:
            return await run_process(
                [self.binary, *argv],
                timeout_s=self.operation_timeout_s if timeout_s is None else timeout_s,
                stdin=stdin,
                stdout=stdout or BoundedOutput(_ENGINE_OUTPUT_BYTES),
                stderr=stderr or BoundedOutput(_ENGINE_OUTPUT_BYTES),
                environ=None if environ is None else {**os.environ, **environ},
            )
        except FileNotFoundError:
            fix = f"install {self.name}, or use another sandbox provider"
            raise SandboxError(f"the program {self.binary!r} is not installed", fix=fix) from None
        except OSError as error:
            raise SandboxError(f"the program {self.binary!r} cannot be run: {error.strerror}") from error
        except ValueError as error:
            raise SandboxError(f"the command cannot be run: {error}") from error

    def _require_success(self, finished: FinishedProcess, handle: SandboxHandle, operation: str) -> str:
        """Return the stdout of a finished operation.

        Raises:
            SandboxError: the operation failed or timed out.
        """
        location = f"{self.name} {handle.sandbox_id}"
        if finished.timed_out:
            raise SandboxError(f"{operation} took longer than {self.operation_timeout_s:g} s", where=location)
        if finished.return_code:
            raise SandboxError(f"{operation} failed: {finished.last_lines()}", where=location)
        return finished.stdout

    def _workdir(self, handle: SandboxHandle) -> str | None:
        return handle_state(handle).get("workdir")


def option_arguments(options: Mapping[str, object]) -> list[str]:
    """Return options as arguments: True gives the name alone, None and False nothing, a list repeats its option."""
    arguments: list[str] = []
    for name, value in options.items():
        if value is True:
            arguments.append(name)
        elif isinstance(value, list):
            arguments += [argument for element in value for argument in (name, str(element))]
        elif value is not None and value is not False:
            arguments += [name, str(value)]
    return arguments


def handle_state(handle: SandboxHandle) -> Mapping[str, Any]:
    """Return the `workdir` and `env` of the sandbox's spec; empty for a handle from `connect`."""
    return handle.raw if isinstance(handle.raw, Mapping) else {}


def exec_result(finished: FinishedProcess, timeout_s: float, *, stderr: str | None = None) -> SandboxExecResult:
    """Convert a finished command to the API's result; `stderr`, if given, replaces its stderr."""
    stderr = finished.stderr if stderr is None else stderr
    if finished.return_code is None:
        note = f"killed after {timeout_s:g} s"
        return SandboxExecResult(finished.stdout, f"{stderr}\n{note}".lstrip("\n"), TIMEOUT_RETURN_CODE, "timeout")
    return SandboxExecResult(finished.stdout, stderr, finished.return_code, "output_limit" if finished.is_cut else None)
