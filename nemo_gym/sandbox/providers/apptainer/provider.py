"""Sandboxes as Apptainer instances, driven through the `apptainer` command; no daemon is needed."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import IO, Any, ClassVar

from nemo_gym.sandbox.providers.container_engine import (
    BoundedOutput,
    CommandLineProvider,
    FinishedProcess,
    exec_result,
    handle_state,
)
from nemo_gym.sandbox.spec import (
    DEFAULT_EXEC_TIMEOUT_S,
    SandboxEndpoint,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
    SandboxUnsupportedError,
    command_argv,
)

DEFAULT_START_ARGUMENTS = ("--containall", "--cleanenv", "--no-home", "--writable-tmpfs")
"""Hide this machine's home, environment, processes and temporary files; discard writes with the instance."""

_PACK = """
if [ -d "$1" ]; then exec tar -cf - -C "$1" .
elif [ -f "$1" ]; then exec tar -chf - -C "$(dirname "$1")" "./$(basename "$1")"
else echo "$1: no such file or directory" >&2; exit 1
fi
"""


class ApptainerProvider(CommandLineProvider):
    """Runs every sandbox as one instance, named after its run.

    Instances run as the calling user (`user` of a command can only be root, with `fakeroot`), carry no labels,
    share the host's network unless `start_arguments` change that, and have no time to live. Files are moved with the
    image's `tar`.
    """

    name: ClassVar[str] = "apptainer"

    def __init__(
        self,
        *,
        binary: str = "apptainer",
        fakeroot: bool = False,
        binds: Sequence[str] = (),
        start_arguments: Sequence[str] = DEFAULT_START_ARGUMENTS,
        **options: Any,
    ) -> None:
        super().__init__(binary, **options)
        self.fakeroot = fakeroot
        self.binds = list(binds)
        self.start_arguments = list(start_arguments)
        self.run_id = re.sub(r"[^A-Za-z0-9_.-]", "-", self.run_id)

    def _sandbox_name(self) -> str:
        return f"nemo-gym-{self.run_id}-{secrets.token_hex(6)}"

    def _create_command(self, name: str, image: str, spec: SandboxSpec) -> tuple[list[str], dict[str, str]]:
        argv = [
            *("instance", "start", *self.start_arguments),
            *(["--fakeroot"] if self.fakeroot else []),
            *(part for bind in self.binds for part in ("--bind", bind)),
            *_limit_arguments(spec),
            *(str(part) for part in spec.provider_options.get("args", ())),
            *(_image_location(image), name),
            *(spec.entrypoint or ()),
        ]
        return argv, _client_environment(spec.env)

    def _remove_command(self, name: str) -> list[str]:
        return ["instance", "stop", "--force", name]

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
                f"apptainer cannot run a command as {user!r}",
                where=handle.sandbox_id,
                fix="for root, set fakeroot: true",
            )
        timeout_s = DEFAULT_EXEC_TIMEOUT_S if timeout_s is None else timeout_s
        finished = await self._run_inside(
            handle,
            command_argv(command),
            cwd=cwd or self._workdir(handle),
            environ=_client_environment({**handle_state(handle).get("env", {}), **(env or {})}),
            timeout_s=timeout_s,
            stdout=BoundedOutput(self.max_output_bytes),
            stderr=BoundedOutput(self.max_output_bytes),
        )
        if (
            finished.return_code == 255 and "FATAL:" in finished.stderr
        ):  # an error of the apptainer client, not of the command
            return SandboxExecResult(finished.stdout, finished.stderr, 255, "sandbox")
        return exec_result(finished, timeout_s)

    async def _send_archive(self, handle: SandboxHandle, packed: IO[bytes], operation: str) -> None:
        finished = await self._run_inside(handle, ["tar", "-xf", "-", "-C", "/"], stdin=packed)
        self._require_success(finished, handle, operation)

    async def _receive_archive(self, handle: SandboxHandle, origin: str, packed: IO[bytes]) -> bool:
        output = BoundedOutput(self.max_transfer_bytes, packed)
        finished = await self._run_inside(handle, ["sh", "-c", _PACK, "sh", origin], stdout=output)
        self._require_success(finished, handle, f"download of {origin}")
        return not output.is_cut

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        finished = await self._run(["instance", "list", "--json", handle.sandbox_id])
        if finished.return_code != 0:
            return SandboxStatus.UNKNOWN
        try:
            instances = json.loads(finished.stdout)["instances"]
        except (ValueError, KeyError, TypeError):
            return SandboxStatus.UNKNOWN
        is_running = any(entry.get("instance") == handle.sandbox_id for entry in instances or ())
        return SandboxStatus.RUNNING if is_running else SandboxStatus.STOPPED

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        if any(part.startswith("--net") for part in self.start_arguments):
            return await super().endpoint(handle, port)
        return SandboxEndpoint(url=f"http://127.0.0.1:{port}")

    async def _run_inside(
        self, handle: SandboxHandle, command: Sequence[str], *, cwd: str | None = None, **options: Any
    ) -> FinishedProcess:
        """Run a command in the instance."""
        # Without a daemon, the processes inside belong to the client's process group and are killed with it.
        argv = ["exec", "--cleanenv", *(["--pwd", cwd] if cwd else []), f"instance://{handle.sandbox_id}", *command]
        return await self._run(argv, **options)


def _image_location(image: str) -> str:
    """Return an image in the syntax of Apptainer: paths and URLs unchanged, other names with `docker://`."""
    if "://" in image or image.startswith(("/", "./", "../")) or image.endswith(".sif"):
        return image
    return f"docker://{image}"


def _limit_arguments(spec: SandboxSpec) -> list[str]:
    """Return the arguments of `apptainer instance start` for the spec's resource limits."""
    resources = spec.resources
    arguments: list[str] = []
    if resources.cpu is not None:
        arguments += ["--cpus", f"{resources.cpu:g}"]
    if resources.memory_mib is not None:
        arguments += ["--memory", f"{resources.memory_mib}M"]
    if resources.gpu:
        arguments += ["--nv"]
    return arguments


def _client_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the client that set `env` in the instance; values stay out of the process list."""
    return {f"APPTAINERENV_{name}": str(value) for name, value in env.items()}
