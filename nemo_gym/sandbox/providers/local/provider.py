"""Sandboxes on this machine: bubblewrap, seccomp, Landlock, rlimits and control groups. No image, no daemon."""

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.providers import archive
from nemo_gym.sandbox.providers.base import SandboxProvider
from nemo_gym.sandbox.providers.engine import inside
from nemo_gym.sandbox.providers.local import bubblewrap
from nemo_gym.sandbox.providers.local.bubblewrap import Shape
from nemo_gym.sandbox.providers.local.cgroups import Cgroups
from nemo_gym.sandbox.providers.local.execution import Limits, Order, Outcome, execute
from nemo_gym.sandbox.providers.local.isolation import probe
from nemo_gym.sandbox.providers.local.launch import Box, find_bwrap
from nemo_gym.sandbox.providers.local.pool import Pool
from nemo_gym.sandbox.spec import (
    DEFAULT_EXEC_TIMEOUT_S,
    DEFAULT_READY_TIMEOUT_S,
    DEFAULT_TTL_S,
    SandboxCreateError,
    SandboxError,
    SandboxErrorKind,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
    SandboxUnsupportedError,
    argv_of,
)

_UNSUPPORTED = {
    "image": "a local sandbox has no image: it sees this machine's system, read-only",
    "entrypoint": "a local sandbox has no entrypoint of its own",
    "ports": "a local sandbox has no network",
}


@dataclass
class LocalSandbox:
    """What the provider knows about one sandbox; one command at a time runs in it."""

    box: Box
    spec: SandboxSpec
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    ttl: asyncio.TimerHandle | None = None


class LocalProvider(SandboxProvider):
    """Boxes of this machine. At most `max_running` programs run at once, the others queue in the order they came.

    `warm` boxes are kept ready. Bounds given here hold where a spec names none; `processes` counts threads, too, and
    files in a box count as its memory. `packages` are folders of Python packages that programs may import.
    """

    name: ClassVar[str] = "local"

    def __init__(
        self,
        *,
        warm: int = 0,
        max_running: int | None = None,
        memory_mib: int = 1024,
        disk_mib: int = 256,
        processes: int = 64,
        cpu_s: float | None = None,
        packages: Sequence[str] = (),
        max_output_bytes: int = 8 << 20,
        max_transfer_bytes: int = 256 << 20,
        operation_timeout_s: float = 120.0,
        workdir: str = bubblewrap.WORKDIR,
    ) -> None:
        bounds = {"memory_mib": memory_mib, "disk_mib": disk_mib, "processes": processes, "warm": warm + 1}
        wrong = sorted(name for name, value in bounds.items() if value < 1)
        if wrong or (max_running is not None and max_running < 1):
            raise ConfigError(f"must be more than nothing: {', '.join(wrong) or 'max_running'}", where="sandbox local")
        self.warm = warm
        self.memory_mib = memory_mib
        self.disk_mib = disk_mib
        self.processes = processes
        self.cpu_s = cpu_s
        self.packages = tuple(str(path) for path in packages)
        self.max_output_bytes = max_output_bytes
        self.max_transfer_bytes = max_transfer_bytes
        self.operation_timeout_s = operation_timeout_s
        self.workdir = workdir
        self._slots = asyncio.Semaphore(max_running or default_running())
        self._opening = asyncio.Lock()
        self._pool: Pool | None = None
        self._cgroups: Cgroups | None = None
        self._sandboxes: dict[str, SandboxHandle] = {}

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        shape = self._shape(spec)
        pool = await self.open()
        allowed = spec.ready_timeout_s or DEFAULT_READY_TIMEOUT_S
        try:
            async with asyncio.timeout(allowed):
                box = await pool.take(shape)
        except TimeoutError:
            raise SandboxCreateError(f"not ready within {allowed:g} s", where="local") from None
        sandbox = LocalSandbox(box, spec)
        sandbox.ttl = asyncio.get_running_loop().call_later(spec.ttl_s or DEFAULT_TTL_S, box.kill)
        handle = SandboxHandle(f"local-{secrets.token_hex(8)}", self.name, raw=sandbox)
        self._sandboxes[handle.sandbox_id] = handle
        await self._place_files(handle, spec)
        return handle

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
        if user not in (None, "sandbox", bubblewrap.BOX_USER, str(bubblewrap.BOX_USER)):
            raise SandboxUnsupportedError(f"there is no user {user!r} in a local sandbox", where=handle.sandbox_id)
        given = [*argv_of(command), *(text for item in (env or {}).items() for text in item)]
        if any("\0" in str(text) for text in given):
            raise SandboxError("a command and its variables cannot hold a zero byte", where=handle.sandbox_id)
        words = {"task": "command", "argv": argv_of(command), "cwd": cwd, "env": env}
        outcome = await self.run(
            handle, words, timeout_s=DEFAULT_EXEC_TIMEOUT_S if timeout_s is None else timeout_s, cpu_s=self.cpu_s
        )
        return outcome.result

    async def run(self, handle: SandboxHandle, words: Mapping[str, Any], **options: Any) -> Outcome:
        """Carry out an order of `inside/programs.py` in the sandbox; its clock starts when the program does."""
        sandbox = self.sandbox(handle)
        async with sandbox.turn, self._slots:
            return await self._execute(sandbox.box, sandbox.spec, words, **options)

    async def upload(self, handle: SandboxHandle, source: Path, target: str) -> None:
        destination = inside(target, self._workdir(handle))
        with tempfile.TemporaryFile() as packed:
            await asyncio.to_thread(archive.pack, Path(source), destination, packed)
            packed.seek(0)
            outcome = await self._operate(handle, {"task": "unpack"}, channel=packed.fileno())
        _succeeded(outcome, f"upload to {destination}", handle)

    async def download(self, handle: SandboxHandle, source: str, target: Path) -> None:
        origin = inside(source, self._workdir(handle))
        words = {"task": "pack", "path": origin}
        outcome = await self._operate(handle, words, channel_limit=self.max_transfer_bytes)
        if outcome.result.error_type == SandboxErrorKind.OUTPUT:
            raise SandboxError(f"more than {self.max_transfer_bytes} bytes", where=origin)
        _succeeded(outcome, f"download of {origin}", handle)
        with tempfile.TemporaryFile() as packed:
            packed.write(outcome.channel)
            packed.seek(0)
            await asyncio.to_thread(archive.unpack, packed, origin, Path(target), max_bytes=self.max_transfer_bytes)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        known = self._sandboxes.get(handle.sandbox_id)
        alive = known is not None and isinstance(known.raw, LocalSandbox) and known.raw.box.alive
        return SandboxStatus.RUNNING if alive else SandboxStatus.STOPPED

    async def connect(self, sandbox_id: str) -> SandboxHandle:
        """A sandbox of this provider; those of another process end with it and cannot be reached."""
        await super().connect(sandbox_id)
        return self._sandboxes[sandbox_id]

    async def close(self, handle: SandboxHandle) -> None:
        known = self._sandboxes.pop(handle.sandbox_id, None)
        if known is None or self._pool is None:
            return
        sandbox = self.sandbox(known)
        if sandbox.ttl is not None:
            sandbox.ttl.cancel()
        await self._pool.end(sandbox.box)

    async def open(self) -> Pool:
        """Find out what is possible here and get ready; called by `create`.

        Raises:
            SandboxUnsupportedError: programs cannot be isolated on this machine.
        """
        async with self._opening:
            if self._pool is None:
                (await asyncio.to_thread(probe)).require()
                bwrap = find_bwrap()
                assert bwrap is not None
                self._cgroups = await asyncio.to_thread(Cgroups.find)
                if self._cgroups is not None:
                    await asyncio.to_thread(self._cgroups.open)
                self._pool = Pool(bwrap, self._cgroups, self._shape(SandboxSpec()), self.warm)
                self._pool.fill()
        return self._pool

    async def aclose(self) -> None:
        """End every box of this provider."""
        pool, self._pool = self._pool, None
        self._sandboxes.clear()
        if pool is not None:
            await pool.close()
        cgroups, self._cgroups = self._cgroups, None
        if cgroups is not None:
            await asyncio.to_thread(cgroups.close)

    async def run_once(self, spec: SandboxSpec, words: Mapping[str, Any], **options: Any) -> Outcome:
        """Carry out one order, as `run` does, in a box that is there for nothing else and gone when this returns.

        Nothing is made before the order's turn has come: a thousand waiting ones take no memory.
        """
        shape = self._shape(spec)
        pool = await self.open()
        async with self._slots:
            box = await pool.take(shape)
            try:
                return await self._execute(box, spec, words, **options)
            finally:
                await pool.end(box)

    async def _execute(
        self,
        box: Box,
        spec: SandboxSpec,
        words: Mapping[str, Any],
        *,
        timeout_s: float,
        cpu_s: float | None = None,
        stdin: bytes = b"",
        max_output_bytes: int | None = None,
        channel: int | None = None,
        channel_limit: int | None = None,
    ) -> Outcome:
        order = Order(self.complete(box, spec, words), stdin, channel, channel_limit)
        return await execute(box, order, self.limits(spec, timeout_s, cpu_s, max_output_bytes))

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One of the places for running programs, in the order asked for."""
        async with self._slots:
            yield

    def complete(self, box: Box, spec: SandboxSpec, words: Mapping[str, Any]) -> dict[str, Any]:
        """An order with what every order has: where, with which environment and packages."""
        workdir = box.shape.workdir
        env = {"PATH": bubblewrap.search_path(), "HOME": workdir, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
        given = {**spec.env, **(words.get("env") or {})}
        return {
            **words,
            "cwd": inside(words.get("cwd") or workdir, workdir),
            "env": {**env, **{str(name): str(value) for name, value in given.items()}},
            "paths": list(self.packages),
        }

    def limits(
        self, spec: SandboxSpec, timeout_s: float, cpu_s: float | None, max_output_bytes: int | None = None
    ) -> Limits:
        """The bounds of one order in a sandbox of that spec."""
        memory_mib = spec.resources.memory_mib or self.memory_mib
        return Limits(
            timeout_s=timeout_s,
            cpu_s=cpu_s,
            memory_bytes=memory_mib << 20,
            file_bytes=self._shape(spec).disk_bytes,
            output_bytes=max_output_bytes or self.max_output_bytes,
            processes=int(spec.provider_options.get("processes", self.processes)),
        )

    def _shape(self, spec: SandboxSpec) -> Shape:
        problems = [text for name, text in _UNSUPPORTED.items() if getattr(spec, name)]
        if spec.resources.gpu:
            problems.append("a local sandbox has no GPU")
        unknown = sorted(set(spec.provider_options) - {"processes"})
        if unknown:
            problems.append(f"unknown provider_options: {', '.join(unknown)}")
        disk = self.disk_mib << 20 if spec.resources.disk_gib is None else int(spec.resources.disk_gib * (1 << 30))
        shape = Shape(spec.workdir or self.workdir, disk, self.packages)
        problem = shape.problem()
        if problem is not None:
            problems.append(problem)
        if problems:
            raise SandboxCreateError("; ".join(problems), where="local", fix="a docker sandbox, or a spec without it")
        return shape

    async def _operate(self, handle: SandboxHandle, words: Mapping[str, Any], **options: Any) -> Outcome:
        return await self.run(handle, words, timeout_s=self.operation_timeout_s, **options)

    async def _place_files(self, handle: SandboxHandle, spec: SandboxSpec) -> None:
        """Put the spec's files into a new sandbox; if that fails the sandbox is ended."""
        try:
            written = contents({inside(name, self._workdir(handle)): content for name, content in spec.files.items()})
            if written:
                outcome = await self._operate(handle, {"task": "files", "files": written})
                _succeeded(outcome, "writing the spec's files", handle)
            for target, content in spec.files.items():
                if isinstance(content, Path):
                    await self.upload(handle, content, target)
        except BaseException as error:
            await asyncio.shield(self.close(handle))
            if isinstance(error, SandboxError | OSError):
                raise SandboxCreateError(f"a file could not be placed: {error}", where=handle.sandbox_id) from error
            raise

    def sandbox(self, handle: SandboxHandle) -> LocalSandbox:
        """What is behind a handle."""
        if not isinstance(handle.raw, LocalSandbox):
            raise SandboxError("this is not a local sandbox", where=handle.sandbox_id)
        return handle.raw

    def _workdir(self, handle: SandboxHandle) -> str:
        return self.sandbox(handle).box.shape.workdir


def contents(files: Mapping[str, str | bytes | Path]) -> dict[str, bytes]:
    """Contents as an order carries them; those that are paths are uploaded instead."""
    given = {name: content for name, content in files.items() if not isinstance(content, Path)}
    return {
        name: content.encode(errors="replace") if isinstance(content, str) else content
        for name, content in given.items()
    }


def default_running() -> int:
    """How many programs run at once: more would only take the processor from each other, and time from all."""
    return max(2, os.process_cpu_count() if hasattr(os, "process_cpu_count") else len(os.sched_getaffinity(0)))


def _succeeded(outcome: Outcome, doing: str, handle: SandboxHandle) -> None:
    result = outcome.result
    if result.return_code or result.error_type:
        lines = result.stderr.strip().splitlines()
        reason = lines[-1] if lines else result.error_type or f"status {result.return_code}"
        raise SandboxError(f"{doing} failed: {reason}", where=f"local {handle.sandbox_id}")
