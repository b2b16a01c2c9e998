"""Sandboxes as Apptainer instances, driven through the `apptainer` command; no daemon is needed."""

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from nemo_gym.sandbox.providers.container_engine import (
    BoundedOutput,
    CommandLineProvider,
    StartConfig,
    exec_result,
    handle_state,
    option_arguments,
    read_block,
)
from nemo_gym.sandbox.spec import (
    ExecOptions,
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


def _require_apptainer(binary: str) -> str:
    """Return the path of the program, or its name if it is not installed: then the first command reports that."""
    return shutil.which(binary) or binary


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
        bin_path: str | None = None,
        create: StartConfig | Mapping[str, Any] | None = None,
        fakeroot: bool = False,
        binds: Sequence[str] = (),
        start_arguments: Sequence[str] = DEFAULT_START_ARGUMENTS,
        **options: Any,
    ) -> None:
        super().__init__(_require_apptainer(bin_path or binary) or binary, **options)
        self.create_config = read_block(StartConfig, create, "sandbox apptainer.create")
        self.start_timeout_s = self.create_config.start_timeout_s
        self.fakeroot = fakeroot
        self.binds = [*binds, *self.exec_config.default_binds]
        extra_arguments = (*self.create_config.extra_start_args, *self.create_config.extra_run_args)
        self.start_arguments = [*start_arguments, *extra_arguments]

    def _create_command(self, name: str, image: str, spec: SandboxSpec) -> tuple[list[str], dict[str, str]]:
        memory_mib = spec.resources.memory_mib
        options = {
            "--fakeroot": self.fakeroot,
            "--bind": self.binds,
            "--cpus": spec.resources.cpu,
            "--memory": None if memory_mib is None else f"{memory_mib}M",
            "--nv": bool(spec.resources.gpu),
        }
        argv = [
            *("instance", "start", *self.start_arguments),
            *option_arguments(options),
            *(str(part) for part in spec.provider_options.get("args", ())),
            *(_image_location(image), name),
            *(spec.entrypoint or ()),
        ]
        return argv, _client_environment(spec.env)

    def _remove_command(self, name: str) -> list[str]:
        return ["instance", "stop", "--force", name]

    def _unpack_command(self, name: str) -> list[str]:
        return _exec_command(name, ["tar", "-xf", "-", "-C", "/"])

    def _pack_command(self, name: str, path: str) -> list[str]:
        return _exec_command(name, ["sh", "-c", _PACK, "sh", path])

    async def exec(
        self, handle: SandboxHandle, command: str | Sequence[str], **options: Unpack[ExecOptions]
    ) -> SandboxExecResult:
        """Run a command in the instance; raise SandboxUnsupportedError for a user that apptainer cannot change to."""
        user = options.get("user")
        if user is not None and not (self.fakeroot and str(user) in ("root", "0")):
            problem = f"apptainer cannot run a command as {user!r}"
            raise SandboxUnsupportedError(problem, where=handle.sandbox_id, fix="for root, set fakeroot: true")
        timeout_s = self._exec_timeout(options)
        env = {**handle_state(handle).get("env", {}), **(options.get("env") or {})}
        arguments = ["exec", *self.exec_config.extra_exec_args]
        cwd = options.get("cwd") or self._workdir(handle)
        async with self._slots:
            finished = await self._run(
                [*arguments, *_exec_command(handle.sandbox_id, command_argv(command), cwd=cwd)[1:]],
                timeout_s=timeout_s,
                environ=_client_environment(env),
                stdout=BoundedOutput(self.max_output_bytes),
                stderr=BoundedOutput(self.max_output_bytes),
            )
        if finished.return_code == 255 and "FATAL:" in finished.stderr:
            # An error of the apptainer client, not of the command.
            return SandboxExecResult(finished.stdout, finished.stderr, 255, "sandbox")
        return exec_result(finished, timeout_s)

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
        if any(argument.startswith("--net") for argument in self.start_arguments):  # not the host's network
            return await super().endpoint(handle, port)
        return SandboxEndpoint(f"http://127.0.0.1:{port}")


def _exec_command(name: str, command: Sequence[str], *, cwd: str | None = None) -> list[str]:
    """Return the arguments that run a command in an instance.

    Because there is no daemon, the command belongs to the client's process group and is killed with the client.
    """
    return ["exec", "--cleanenv", *option_arguments({"--pwd": cwd}), f"instance://{name}", *command]


def _image_location(image: str) -> str:
    """Return an image in the syntax of Apptainer: paths and URLs unchanged, other names with `docker://`."""
    if "://" in image or image.startswith(("/", "./", "../")) or image.endswith(".sif"):
        return image
    return f"docker://{image}"


def _client_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the client that set `env` in the instance; values stay out of the process list."""
    return {f"APPTAINERENV_{name}": str(value) for name, value in env.items()}
