"""Sandboxes on this machine: bubblewrap, seccomp, Landlock, rlimits and control groups. No image, no daemon."""

import asyncio
import io
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, ClassVar, Unpack

from nemo_gym.sandbox.providers.archive import MAX_ENTRIES, ArchiveProvider, path_inside, regular_files
from nemo_gym.sandbox.providers.local import bubblewrap
from nemo_gym.sandbox.providers.local.box import Box, find_bwrap, launch, launch_without_isolation
from nemo_gym.sandbox.providers.local.bubblewrap import BoxShape
from nemo_gym.sandbox.providers.local.cgroups import Cgroups
from nemo_gym.sandbox.providers.local.execution import ActionResult, execute
from nemo_gym.sandbox.providers.local.isolation_probe import probe
from nemo_gym.sandbox.providers.local.limits import DEFAULT_OPEN_FILES, BoxLimits
from nemo_gym.sandbox.providers.local.pool import BoxPool
from nemo_gym.sandbox.spec import (
    DEFAULT_READY_TIMEOUT_S,
    DEFAULT_TTL_S,
    ExecOptions,
    SandboxConfigError,
    SandboxCreateError,
    SandboxError,
    SandboxErrorKind,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
    SandboxUnsupportedError,
    command_argv,
    exec_timeout,
)

logger = logging.getLogger("nemo_gym.sandbox")

_UNSUPPORTED = {
    "image": "a local sandbox has no image: it uses this machine's system, read-only",
    "entrypoint": "a local sandbox has no entrypoint",
    "ports": "a local sandbox has no network",
}
_ARCHIVE_BYTES_PER_FILE = 3072
"""Headers and padding of a file in a tar archive, with a path of usual length."""
_OPTIONS = frozenset({"processes", "open_files", "limit_address_space", "loopback", "mounts"})
"""The `provider_options` of a spec; `sandbox.programs` describes them."""


@dataclass
class LocalSandbox:
    """The state of one sandbox; `lock` lets it run one command at a time."""

    box: Box
    spec: SandboxSpec
    ttl_timer: asyncio.TimerHandle
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LocalProvider(ArchiveProvider):
    """Runs boxes on this machine. At most `max_running` programs run at once; the others wait.

    `warm` boxes are kept ready. The limits apply unless a spec sets its own; `processes` includes threads, and files in
    a box count as its memory. `packages` are folders of Python packages that programs may import.

    `shell`, `default_timeout_s`, `concurrency` (the same as `max_running`) and `workspace_root` (without effect) are
    keys of NeMo Gym 0.7, where a local sandbox is no box: commands run on the host, with its files and network.
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
        shell: str = "sh",
        default_timeout_s: float | None = None,
        concurrency: int | None = None,
        workspace_root: str | os.PathLike[str] | None = None,
    ) -> None:
        bounds = {"memory_mib": memory_mib, "disk_mib": disk_mib, "processes": processes, "warm": warm + 1}
        optional = {"max_running": max_running, "concurrency": concurrency}
        bounds |= {name: value for name, value in optional.items() if value is not None}
        invalid = [name for name, value in bounds.items() if value < 1]  # `warm` may be 0, the others may not
        invalid += ["default_timeout_s"] if default_timeout_s is not None and default_timeout_s <= 0 else []
        if invalid:
            raise SandboxConfigError(f"must be positive: {', '.join(sorted(invalid))}", where="sandbox local")
        max_running = concurrency if max_running is None else max_running
        if workspace_root is not None:
            logger.warning(
                "sandbox local: workspace_root has no effect: commands run in %s of an isolated box", workdir
            )
        self.shell = shell
        self.default_timeout_s = default_timeout_s
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
        self.slots = asyncio.Semaphore(max_running or default_max_running())
        self._opening = asyncio.Lock()
        self._pool: BoxPool | None = None
        self._cgroups: Cgroups | None = None
        self._sandboxes: dict[str, SandboxHandle] = {}

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Take a box from the pool, start its time to live, and write the spec's files into it."""
        shape = self._shape(spec)
        pool = await self.open()
        timeout_s = spec.ready_timeout_s or DEFAULT_READY_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                box = await pool.take(shape)
        except TimeoutError:
            raise SandboxCreateError(f"not ready within {timeout_s:g} s", where="local") from None
        ttl_timer = asyncio.get_running_loop().call_later(spec.ttl_s or DEFAULT_TTL_S, box.kill)
        handle = SandboxHandle(f"local-{secrets.token_hex(8)}", self.name, raw=LocalSandbox(box, spec, ttl_timer))
        self._sandboxes[handle.sandbox_id] = handle
        await self._write_spec_files(handle, spec)
        return handle

    async def exec(
        self, handle: SandboxHandle, command: str | Sequence[str], **options: Unpack[ExecOptions]
    ) -> SandboxExecResult:
        """Run a command as the user of the box; no other user is supported."""
        user, env = options.get("user"), options.get("env") or {}
        if user not in (None, "sandbox", bubblewrap.BOX_USER, str(bubblewrap.BOX_USER)):
            raise SandboxUnsupportedError(f"unknown user {user!r} in a local sandbox", where=handle.sandbox_id)
        argv = [self.shell, "-c", command] if isinstance(command, str) else command_argv(command)
        timeout_s = self.default_timeout_s if options.get("timeout_s") is None else options["timeout_s"]
        if any("\0" in str(text) for text in (*argv, *env, *env.values())):
            raise SandboxError("a command and its variables cannot contain a zero byte", where=handle.sandbox_id)
        request = {"action": "command", "argv": argv, "cwd": options.get("cwd"), "env": env}
        limit = exec_timeout({"timeout_s": timeout_s})
        return (await self.run(handle, request, timeout_s=limit, cpu_s=self.cpu_s)).result

    async def run(self, handle: SandboxHandle, request: Mapping[str, Any], **options: Any) -> ActionResult:
        """Run the action of a request (see `execution`) in a sandbox, after its earlier actions have ended."""
        sandbox = self.sandbox(handle)
        async with sandbox.lock, self.slots:
            return await self._execute(sandbox.box, sandbox.spec, request, **options)

    async def run_once(self, spec: SandboxSpec, request: Mapping[str, Any], **options: Any) -> ActionResult:
        """Run the action of a request in a new box and kill the box.

        The box is taken when the request gets a slot, so that waiting requests use no memory.
        """
        shape = self._shape(spec)
        pool = await self.open()
        async with self.slots:
            box = await pool.take(shape)
            try:
                return await self._execute(box, spec, request, **options)
            finally:
                await pool.end(box)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        current = self._sandboxes.get(handle.sandbox_id)
        is_alive = current is not None and self.sandbox(current).box.alive
        return SandboxStatus.RUNNING if is_alive else SandboxStatus.STOPPED

    async def connect(self, descriptor: str | Mapping[str, Any]) -> SandboxHandle:
        """Return the handle of a sandbox of this provider object; sandboxes of other processes cannot be reached."""
        return self._sandboxes[(await super().connect(descriptor)).sandbox_id]

    async def close(self, handle: SandboxHandle) -> None:
        current = self._sandboxes.pop(handle.sandbox_id, None)
        if current is None or self._pool is None:
            return
        sandbox = self.sandbox(current)
        sandbox.ttl_timer.cancel()
        await self._pool.end(sandbox.box)

    async def open(self) -> BoxPool:
        """Return the pool; the first call checks the isolation of this machine and starts the pool.

        Raises:
            SandboxUnsupportedError: this machine cannot isolate programs.
        """
        async with self._opening:
            if self._pool is None:
                self._pool = BoxPool(await self._prepare_launcher(), self._shape(SandboxSpec()), self.warm)
                self._pool.fill()
        return self._pool

    async def _prepare_launcher(self) -> Callable[..., Box]:
        """Check the isolation and open the control groups; return a function that starts a box."""
        (await asyncio.to_thread(probe)).require()
        bwrap = find_bwrap()
        assert bwrap is not None
        self._cgroups = await asyncio.to_thread(Cgroups.find)
        if self._cgroups is not None:
            await asyncio.to_thread(self._cgroups.open)
        return partial(launch, bwrap, self._cgroups)

    async def aclose(self) -> None:
        """Kill every box of this provider and remove its control groups."""
        pool, self._pool = self._pool, None
        self._sandboxes.clear()
        if pool is not None:
            await pool.close()
        cgroups, self._cgroups = self._cgroups, None
        if cgroups is not None:
            await asyncio.to_thread(cgroups.close)

    async def _execute(
        self,
        box: Box,
        spec: SandboxSpec,
        request: Mapping[str, Any],
        *,
        timeout_s: float,
        cpu_s: float | None = None,
        max_output_bytes: int | None = None,
        **options: Any,
    ) -> ActionResult:
        """Run the action of a request in a box, with the limits of the spec and of this provider."""
        limits = self.limits(spec, timeout_s, cpu_s, max_output_bytes)
        return await execute(box, self.complete_request(box, spec, request), limits, **options)

    def complete_request(self, box: Box, spec: SandboxSpec, request: Mapping[str, Any]) -> dict[str, Any]:
        """Add working directory, environment and package folders to a request."""
        default_env = {
            "PATH": bubblewrap.search_path(),
            "HOME": box.workdir,
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp" if box.is_isolated else box.workdir,
        }
        env = {**default_env, **spec.env, **(request.get("env") or {})}
        return {
            **request,
            "cwd": path_inside(request.get("cwd") or box.workdir, box.workdir),
            "env": {str(name): str(value) for name, value in env.items()},
            "paths": list(self.packages),
        }

    def limits(
        self, spec: SandboxSpec, timeout_s: float, cpu_s: float | None, max_output_bytes: int | None = None
    ) -> BoxLimits:
        """Return the limits of one action in a sandbox with this spec."""
        memory_mib = spec.resources.memory_mib or self.memory_mib
        return BoxLimits(
            timeout_s=timeout_s,
            cpu_s=cpu_s,
            memory_bytes=memory_mib << 20,
            file_bytes=self._shape(spec).disk_bytes,
            output_bytes=max_output_bytes or self.max_output_bytes,
            processes=int(spec.provider_options.get("processes", self.processes)),
            open_files=int(spec.provider_options.get("open_files", DEFAULT_OPEN_FILES)),
            limits_address_space=bool(spec.provider_options.get("limit_address_space", True)),
        )

    def sandbox(self, handle: SandboxHandle) -> LocalSandbox:
        """Return the state of the sandbox that a handle refers to."""
        if not isinstance(handle.raw, LocalSandbox):
            raise SandboxError("this is not a local sandbox", where=handle.sandbox_id)
        return handle.raw

    def _shape(self, spec: SandboxSpec) -> BoxShape:
        """Return the shape of a box for this spec.

        Raises:
            SandboxCreateError: the spec has a setting that local sandboxes do not support.
        """
        problems = [text for name, text in _UNSUPPORTED.items() if getattr(spec, name)]
        if spec.resources.gpu:
            problems.append("a local sandbox has no GPU")
        unknown = sorted(set(spec.provider_options) - _OPTIONS)
        if unknown:
            problems.append(f"unknown provider_options: {', '.join(unknown)}")
        mounts = tuple((str(source), target) for target, source in spec.provider_options.get("mounts", {}).items())
        has_loopback = bool(spec.provider_options.get("loopback"))
        disk = self.disk_mib << 20 if spec.resources.disk_gib is None else int(spec.resources.disk_gib * (1 << 30))
        shape = BoxShape(spec.workdir or self.workdir, disk, self.packages, mounts, has_loopback)
        problems += filter(None, [shape.problem()])
        if problems:
            fix = "use a docker sandbox, or remove the setting"
            raise SandboxCreateError("; ".join(problems), where="local", fix=fix)
        return shape

    async def _send_archive(self, handle: SandboxHandle, packed: IO[bytes], operation: str) -> None:
        await self._run_operation(handle, {"action": "unpack"}, operation, channel=packed.fileno())

    async def _receive_archive(self, handle: SandboxHandle, origin: str, packed: IO[bytes]) -> bool:
        """Write an archive of `origin` to `packed`; return False if it is cut at `max_transfer_bytes`."""
        request, operation = {"action": "pack", "path": origin}, f"download of {origin}"
        download = await self._run_operation(handle, request, operation, channel_limit=self.max_transfer_bytes)
        packed.write(download.channel)
        return download.result.error_type != SandboxErrorKind.OUTPUT

    async def read_files(
        self, handle: SandboxHandle, source: str, *, ignored: Sequence[str], max_bytes: int
    ) -> dict[str, bytes]:
        """Return the contents of regular files; only their bytes leave the box. A missing directory has none."""
        origin = path_inside(source, self._workdir(handle))
        limits = {"max_bytes": max_bytes, "max_entries": MAX_ENTRIES}
        request = {"action": "pack_files", "path": origin, "ignored": list(ignored), **limits}
        channel_limit = max_bytes + MAX_ENTRIES * _ARCHIVE_BYTES_PER_FILE
        download = await self._run_operation(handle, request, f"reading {origin}", channel_limit=channel_limit)
        if download.result.error_type == SandboxErrorKind.OUTPUT:
            raise SandboxError(f"more than {max_bytes:,} bytes", where=origin)
        packed = io.BytesIO(download.channel)
        return await asyncio.to_thread(regular_files, packed, origin, root="", ignored=ignored, max_bytes=max_bytes)

    async def _run_operation(
        self, handle: SandboxHandle, request: Mapping[str, Any], operation: str, **options: Any
    ) -> ActionResult:
        """Run a request and raise SandboxError if it fails. Exceeding `channel_limit` is left to the caller."""
        action_result = await self.run(handle, request, timeout_s=self.operation_timeout_s, **options)
        result = action_result.result
        is_cut = "channel_limit" in options and result.error_type == SandboxErrorKind.OUTPUT
        if (result.return_code or result.error_type) and not is_cut:
            lines = result.stderr.strip().splitlines()
            reason = lines[-1] if lines else result.error_type or f"status {result.return_code}"
            raise SandboxError(f"{operation} failed: {reason}", where=f"local {handle.sandbox_id}")
        return action_result

    def _workdir(self, handle: SandboxHandle) -> str:
        return self.sandbox(handle).box.workdir


class UnsandboxedProvider(LocalProvider):
    """Runs programs as ordinary processes with rlimits, if `allow_unsandboxed` is set on a machine without isolation.

    Not registered by name, so a configuration cannot select it. Its results have `isolated: false`.
    """

    name: ClassVar[str] = "unsandboxed"

    async def _prepare_launcher(self) -> Callable[..., Box]:
        return launch_without_isolation


def default_max_running() -> int:
    """Return the number of usable processors, at least 2; more programs would slow each other down."""
    return max(2, os.process_cpu_count() if hasattr(os, "process_cpu_count") else len(os.sched_getaffinity(0)))
