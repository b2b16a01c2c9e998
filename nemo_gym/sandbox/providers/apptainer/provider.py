"""Sandboxes as Apptainer instances, driven through the `apptainer` command; no daemon is needed."""

import asyncio
import json
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar

from nemo_gym.sandbox.providers import archive, process
from nemo_gym.sandbox.providers.engine import CommandLineProvider, exec_result, inside
from nemo_gym.sandbox.spec import (
    DEFAULT_EXEC_TIMEOUT_S,
    SandboxCreateError,
    SandboxEndpoint,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
    SandboxUnsupportedError,
    argv_of,
)
from nemo_gym.sandbox.utils import rewrite_image

DEFAULT_START_ARGUMENTS = ("--containall", "--cleanenv", "--no-home", "--writable-tmpfs")
"""Nothing of this machine's home, environment, processes or temporary files; writes are lost with the instance."""

_WRITE = 'mkdir -p "$(dirname "$1")" && cat > "$1"'
_KIND = 'if [ -d "$1" ]; then echo directory; elif [ -f "$1" ]; then echo file; else echo missing; fi'


class ApptainerProvider(CommandLineProvider):
    """Every sandbox is one instance, named after its run.

    Instances run as the calling user (`user` of a command can only be root, with `fakeroot`), carry no labels,
    share the host's network unless `start_arguments` say otherwise, and have no time to live of their own.
    """

    name: ClassVar[str] = "apptainer"

    def __init__(
        self,
        *,
        binary: str = "apptainer",
        image: str | None = None,
        image_rewrites: Sequence[Mapping[str, str]] = (),
        fakeroot: bool = False,
        binds: Sequence[str] = (),
        start_arguments: Sequence[str] = DEFAULT_START_ARGUMENTS,
        run_id: str | None = None,
        **bounds: Any,
    ) -> None:
        super().__init__(binary, **bounds)
        self.image = image
        self.image_rewrites = list(image_rewrites)
        self.fakeroot = fakeroot
        self.binds = list(binds)
        self.start_arguments = list(start_arguments)
        self.run_id = re.sub(r"[^A-Za-z0-9_.-]", "-", run_id or secrets.token_hex(8))

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        image = spec.image or self.image
        if not image:
            raise SandboxCreateError("no image is named", where=self.name, fix="SandboxSpec(image=…)")
        handle = SandboxHandle(
            f"nemo-gym-{self.run_id}-{secrets.token_hex(6)}",
            self.name,
            raw={"workdir": spec.workdir, "env": dict(spec.env)},
        )
        argv = [
            *("instance", "start", *self.start_arguments),
            *(["--fakeroot"] if self.fakeroot else []),
            *(part for bind in self.binds for part in ("--bind", bind)),
            *_limits(spec),
            *(str(part) for part in spec.provider_options.get("args", ())),
            *(_location(rewrite_image(image, self.image_rewrites)), handle.sandbox_id),
            *(spec.entrypoint or ()),
        ]
        try:
            await self._create(argv, spec, _hand_over(spec.env))
        except BaseException:
            # The client can be killed half way: whatever it made must not stay.
            await asyncio.shield(self._stop(handle))
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
        if user is not None and not (self.fakeroot and str(user) in ("root", "0")):
            raise SandboxUnsupportedError(
                f"apptainer cannot run a command as {user!r}", where=handle.sandbox_id, fix="fakeroot: true for root"
            )
        allowed = DEFAULT_EXEC_TIMEOUT_S if timeout_s is None else timeout_s
        ended = await self._inside(
            handle,
            argv_of(command),
            cwd=cwd or _remembered(handle).get("workdir"),
            env={**_remembered(handle).get("env", {}), **(env or {})},
            timeout_s=allowed,
            max_output_bytes=self.max_output_bytes,
        )
        if ended.return_code == 255 and "FATAL:" in ended.stderr:  # how the client says that it failed itself
            return SandboxExecResult(ended.stdout, ended.stderr, 255, "sandbox")
        return exec_result(ended, allowed)

    async def upload(self, handle: SandboxHandle, source: Path, target: str) -> None:
        destination = inside(target, _remembered(handle).get("workdir"))
        local = Path(source)
        if await asyncio.to_thread(local.is_dir):
            with tempfile.TemporaryFile() as packed:
                await asyncio.to_thread(archive.pack, local, destination, packed)
                packed.seek(0)
                ended = await self._transfer(handle, ["tar", "-xf", "-", "-C", "/"], stdin=packed)
        else:
            with await asyncio.to_thread(local.open, "rb") as file:
                ended = await self._transfer(handle, ["sh", "-c", _WRITE, "sh", destination], stdin=file)
        self._succeeded(ended, handle, f"upload to {destination}")

    async def download(self, handle: SandboxHandle, source: str, target: Path) -> None:
        origin = inside(source, _remembered(handle).get("workdir"))
        asked = await self._transfer(handle, ["sh", "-c", _KIND, "sh", origin])
        kind = self._succeeded(asked, handle, f"download of {origin}").strip()
        if kind not in ("file", "directory"):
            raise SandboxError("there is no such file", where=origin)
        with tempfile.TemporaryFile() as received:
            saved = process.Saved(received, self.max_transfer_bytes)
            path = PurePosixPath(origin)
            tar = ["tar", "-cf", "-", "-C", path.parent.as_posix(), path.name or "."]
            argv = ["cat", origin] if kind == "file" else tar
            self._succeeded(await self._transfer(handle, argv, stdout=saved), handle, f"download of {origin}")
            if saved.full:
                raise SandboxError(f"more than {self.max_transfer_bytes} bytes", where=origin)
            received.seek(0)
            if kind == "file":
                await asyncio.to_thread(_save, received, Path(target))
            else:
                await asyncio.to_thread(
                    archive.unpack, received, origin, Path(target), max_bytes=self.max_transfer_bytes
                )

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        argv = ["instance", "list", "--json", handle.sandbox_id]
        ended = await self._run(argv, timeout_s=self.operation_timeout_s)
        if ended.timed_out or ended.return_code:
            return SandboxStatus.UNKNOWN
        try:
            listed = json.loads(ended.stdout)["instances"]
        except (ValueError, KeyError, TypeError):
            return SandboxStatus.UNKNOWN
        here = any(entry.get("instance") == handle.sandbox_id for entry in listed or ())
        return SandboxStatus.RUNNING if here else SandboxStatus.STOPPED

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        if any(part.startswith("--net") for part in self.start_arguments):
            return await super().endpoint(handle, port)
        return SandboxEndpoint(url=f"http://127.0.0.1:{port}")

    async def close(self, handle: SandboxHandle) -> None:
        await self._stop(handle)

    async def _stop(self, handle: SandboxHandle) -> None:
        argv = ["instance", "stop", "--force", handle.sandbox_id]
        try:
            ended = await self._run(argv, timeout_s=self.operation_timeout_s)
        except SandboxError:
            return  # no program, so no instance
        if ended.timed_out:
            raise SandboxError("the instance could not be stopped in time", where=f"apptainer {handle.sandbox_id}")

    async def _transfer(
        self,
        handle: SandboxHandle,
        argv: Sequence[str],
        *,
        stdin: IO[bytes] | None = None,
        stdout: process.Sink | None = None,
    ) -> process.Ended:
        return await self._inside(handle, argv, timeout_s=self.operation_timeout_s, stdin=stdin, stdout=stdout)

    async def _inside(
        self,
        handle: SandboxHandle,
        command: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: IO[bytes] | None = None,
        stdout: process.Sink | None = None,
        max_output_bytes: int = 1 << 20,
    ) -> process.Ended:
        # No daemon stands between: what runs inside belongs to the client's process group and is killed with it.
        argv = ["exec", "--cleanenv", *(["--pwd", cwd] if cwd else []), f"instance://{handle.sandbox_id}", *command]
        return await self._run(
            argv,
            timeout_s=timeout_s,
            stdin=stdin,
            stdout=stdout,
            environ=_hand_over(env or {}),
            max_output_bytes=max_output_bytes,
        )


def _location(image: str) -> str:
    """Where Apptainer finds an image: files, directories and full addresses as they are, names in a registry."""
    if "://" in image or image.startswith(("/", "./", "../")) or image.endswith(".sif"):
        return image
    return f"docker://{image}"


def _limits(spec: SandboxSpec) -> list[str]:
    asked = spec.resources
    arguments: list[str] = []
    if asked.cpu is not None:
        arguments += ["--cpus", f"{asked.cpu:g}"]
    if asked.memory_mib is not None:
        arguments += ["--memory", f"{asked.memory_mib}M"]
    if asked.gpu:
        arguments += ["--nv"]
    return arguments


def _hand_over(env: Mapping[str, str]) -> dict[str, str]:
    """Client environment that gives `env` to the instance: values are in no argument list and need no quoting."""
    return {f"APPTAINERENV_{name}": str(value) for name, value in env.items()}


def _remembered(handle: SandboxHandle) -> Mapping[str, Any]:
    return handle.raw if isinstance(handle.raw, Mapping) else {}


def _save(received: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        while chunk := received.read(1 << 20):
            file.write(chunk)
