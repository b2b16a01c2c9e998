"""Sandboxes as Docker containers, driven through the `docker` command."""

import asyncio
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nemo_gym.sandbox.providers import archive, process
from nemo_gym.sandbox.providers.engine import CommandLineProvider, exec_result, inside
from nemo_gym.sandbox.spec import (
    DEFAULT_EXEC_TIMEOUT_S,
    DEFAULT_TTL_S,
    SandboxCreateError,
    SandboxEndpoint,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
    argv_of,
)
from nemo_gym.sandbox.utils import rewrite_image

LABEL_PREFIX = "nemo-gym"

_STATUS = {
    "created": SandboxStatus.STARTING,
    "restarting": SandboxStatus.STARTING,
    "running": SandboxStatus.RUNNING,
    "paused": SandboxStatus.RUNNING,
    "removing": SandboxStatus.STOPPED,
    "exited": SandboxStatus.STOPPED,
    "dead": SandboxStatus.ERROR,
}

# Variables the client itself obeys: handing these over through its environment would change the client.
_CLIENT_VARIABLE = re.compile(r"PATH|HOME|TMPDIR|(DOCKER|BUILDKIT|LD|XDG|SSH|GO)_?.*|.*_proxy", re.IGNORECASE)

# The shell says its process id before it becomes the command, so a timeout can end the whole group inside.
_ANNOUNCE = 'echo "$0:$$" >&2; exec "$@"'


@dataclass(kw_only=True)
class DockerCreateConfig:
    """How containers are made. The defaults give a container no new privileges and a bounded number of processes."""

    network: str | None = None
    """None is the engine's default network; `none` cuts the sandbox off."""
    pull: str = "missing"
    platform: str | None = None
    runtime: str | None = None
    user: str | None = None
    pids_limit: int | None = 4096
    shm_size_mib: int | None = None
    read_only: bool = False
    privileged: bool = False
    no_new_privileges: bool = True
    init: bool = True
    cap_add: list[str] = field(default_factory=list)
    cap_drop: list[str] = field(default_factory=list)
    tmpfs: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    extra_args: list[str] = field(default_factory=list)

    def arguments(self) -> list[str]:
        """The part of `docker run` that depends on nothing else."""
        single = {
            "--network": self.network,
            "--pull": self.pull,
            "--platform": self.platform,
            "--runtime": self.runtime,
            "--user": self.user,
            "--pids-limit": self.pids_limit,
            "--shm-size": None if self.shm_size_mib is None else f"{self.shm_size_mib}m",
        }
        flags = {"--read-only": self.read_only, "--privileged": self.privileged, "--init": self.init}
        many = {
            "--cap-add": self.cap_add,
            "--cap-drop": self.cap_drop,
            "--tmpfs": self.tmpfs,
            "--volume": self.volumes,
            "--security-opt": ["no-new-privileges"] if self.no_new_privileges else [],
        }
        return [
            *(part for name, value in single.items() if value is not None for part in (name, str(value))),
            *(name for name, wanted in flags.items() if wanted),
            *(part for name, values in many.items() for value in values for part in (name, value)),
            *self.extra_args,
        ]


class DockerProvider(CommandLineProvider):
    """Every sandbox is one container, labelled with its run and gone by itself when its time to live is over."""

    name: ClassVar[str] = "docker"

    def __init__(
        self,
        *,
        binary: str = "docker",
        create: DockerCreateConfig | Mapping[str, Any] | None = None,
        image: str | None = None,
        image_rewrites: Sequence[Mapping[str, str]] = (),
        run_id: str | None = None,
        **bounds: Any,
    ) -> None:
        super().__init__(binary, **bounds)
        self.create_config = create if isinstance(create, DockerCreateConfig) else DockerCreateConfig(**(create or {}))
        self.image = image
        self.image_rewrites = list(image_rewrites)
        self.run_id = run_id or secrets.token_hex(8)

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        image = spec.image or self.image
        if not image:
            raise SandboxCreateError("no image is named", where=self.name, fix="SandboxSpec(image=…)")
        handle = SandboxHandle(f"nemo-gym-{secrets.token_hex(8)}", self.name, raw={"workdir": spec.workdir})
        names, environ = _hand_over(spec.env)
        argv = [
            *("run", "--detach", "--rm", "--name", handle.sandbox_id),
            *self._labels(spec),
            *self.create_config.arguments(),
            *_limits(spec),
            *(["--workdir", spec.workdir] if spec.workdir else []),
            *names,
            *(part for port in spec.ports for part in ("--publish", f"127.0.0.1::{port}")),
            *(str(part) for part in spec.provider_options.get("args", ())),
            *_process(rewrite_image(image, self.image_rewrites), spec),
        ]
        try:
            await self._create(argv, spec, environ)
        except BaseException:
            # The client can be killed after the engine took the order: whatever it made must not stay.
            await asyncio.shield(self._remove(handle))
            raise
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
        allowed = DEFAULT_EXEC_TIMEOUT_S if timeout_s is None else timeout_s
        mark = f"ng-{secrets.token_hex(8)}"
        names, environ = _hand_over(env or {})
        argv = [
            "exec",
            *(["--workdir", cwd] if cwd else []),
            *(["--user", str(user)] if user is not None else []),
            *names,
            *(handle.sandbox_id, "sh", "-c", _ANNOUNCE, mark),
            *argv_of(command),
        ]
        said = process.Kept(self.max_output_bytes + len(mark) + 32)
        try:
            ended = await self._run(
                argv, timeout_s=allowed, environ=environ, stderr=said, max_output_bytes=self.max_output_bytes
            )
        except asyncio.CancelledError:
            await asyncio.shield(self._kill_inside(handle, _announced(said.text(), mark)[0]))
            raise
        pid, stderr = _announced(ended.stderr, mark)
        if ended.timed_out:
            await self._kill_inside(handle, pid)
        if pid is None and not ended.timed_out:
            # The shell never spoke, so the command never ran: what is on stderr is the engine's own complaint.
            return SandboxExecResult(ended.stdout, stderr, ended.return_code or 1, "sandbox")
        return exec_result(ended, allowed, stderr=stderr)

    async def upload(self, handle: SandboxHandle, source: Path, target: str) -> None:
        destination = inside(target, _workdir(handle))
        with tempfile.TemporaryFile() as packed:
            await asyncio.to_thread(archive.pack, Path(source), destination, packed)
            packed.seek(0)
            argv = ["cp", "-", f"{handle.sandbox_id}:/"]
            ended = await self._run(argv, timeout_s=self.operation_timeout_s, stdin=packed)
        self._succeeded(ended, handle, f"upload to {destination}")

    async def download(self, handle: SandboxHandle, source: str, target: Path) -> None:
        origin = inside(source, _workdir(handle))
        with tempfile.TemporaryFile() as packed:
            saved = process.Saved(packed, self.max_transfer_bytes)
            argv = ["cp", "--follow-link", f"{handle.sandbox_id}:{origin}", "-"]
            ended = await self._run(argv, timeout_s=self.operation_timeout_s, stdout=saved)
            self._succeeded(ended, handle, f"download of {origin}")
            if saved.full:
                raise SandboxError(f"more than {self.max_transfer_bytes} bytes", where=origin)
            packed.seek(0)
            await asyncio.to_thread(archive.unpack, packed, origin, Path(target), max_bytes=self.max_transfer_bytes)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        argv = ["inspect", "--type", "container", "--format", "{{.State.Status}}", handle.sandbox_id]
        ended = await self._run(argv, timeout_s=self.operation_timeout_s)
        if ended.timed_out:
            return SandboxStatus.UNKNOWN
        if ended.return_code:
            gone = "no such" in ended.stderr.lower()
            return SandboxStatus.STOPPED if gone else SandboxStatus.UNKNOWN
        return _STATUS.get(ended.stdout.strip(), SandboxStatus.UNKNOWN)

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        said = await self._operate(["port", handle.sandbox_id, f"{port}/tcp"], handle, f"looking up port {port}")
        address = said.strip().splitlines()[0] if said.strip() else ""
        if not re.fullmatch(r"[\w.\[\]:]+:\d+", address):
            raise SandboxError(
                f"port {port} is not published", where=handle.sandbox_id, fix=f"SandboxSpec(ports=[{port}])"
            )
        return SandboxEndpoint(url=f"http://{address}")

    async def close(self, handle: SandboxHandle) -> None:
        await self._remove(handle)

    async def _remove(self, handle: SandboxHandle) -> None:
        try:
            ended = await self._run(
                ["rm", "--force", "--volumes", handle.sandbox_id], timeout_s=self.operation_timeout_s
            )
        except SandboxError:
            return  # no engine, so no container
        if ended.timed_out:
            raise SandboxError("the container could not be removed in time", where=f"docker {handle.sandbox_id}")

    async def _kill_inside(self, handle: SandboxHandle, pid: int | None) -> None:
        """End what an abandoned command started: the engine's client is gone, its children are not."""
        if pid is None:
            return
        script = f"kill -9 -{pid}"  # no `--`: dash does not know it here
        argv = ["exec", "--user", "0", handle.sandbox_id, "sh", "-c", script]
        await self._run(argv, timeout_s=min(10.0, self.operation_timeout_s))

    def _labels(self, spec: SandboxSpec) -> list[str]:
        labels = {"run": self.run_id, **spec.metadata}
        return [
            part for name, value in sorted(labels.items()) for part in ("--label", f"{LABEL_PREFIX}.{name}={value}")
        ]


def _process(image: str, spec: SandboxSpec) -> list[str]:
    """The image and the process that keeps the container alive; the default one ends it after its time to live."""
    if spec.entrypoint:
        first, *rest = spec.entrypoint
        return ["--entrypoint", first, image, *rest]
    return ["--entrypoint", "sleep", image, str(int(spec.ttl_s or DEFAULT_TTL_S))]


def _limits(spec: SandboxSpec) -> list[str]:
    asked = spec.resources
    arguments: list[str] = []
    if asked.cpu is not None:
        arguments += ["--cpus", f"{asked.cpu:g}"]
    if asked.memory_mib is not None:
        arguments += ["--memory", f"{asked.memory_mib}m", "--memory-swap", f"{asked.memory_mib}m"]
    if asked.disk_gib is not None:
        arguments += ["--storage-opt", f"size={asked.disk_gib:g}G"]
    if asked.gpu:
        arguments += ["--gpus", str(asked.gpu)]
    return arguments


def _hand_over(env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Arguments and client environment that give `env` to a container without showing values in the process list."""
    names: list[str] = []
    environ: dict[str, str] = {}
    for name, value in env.items():
        if _CLIENT_VARIABLE.fullmatch(name):
            names += ["--env", f"{name}={value}"]
        else:
            names += ["--env", name]
            environ[name] = str(value)
    return names, environ


def _announced(stderr: str, mark: str) -> tuple[int | None, str]:
    """The process id the shell announced, and stderr without that line."""
    found = re.search(rf"^{mark}:(\d+)\n", stderr, re.MULTILINE)
    if found is None:
        return None, stderr
    return int(found.group(1)), stderr[: found.start()] + stderr[found.end() :]


def _workdir(handle: SandboxHandle) -> str | None:
    return handle.raw.get("workdir") if isinstance(handle.raw, Mapping) else None
