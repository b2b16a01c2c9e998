"""Sandboxes as Docker containers, driven through the `docker` command."""

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Unpack

from nemo_gym.sandbox.providers.container_engine import (
    BoundedOutput,
    CommandLineProvider,
    StartConfig,
    exec_result,
    option_arguments,
    read_block,
)
from nemo_gym.sandbox.spec import (
    DEFAULT_TTL_S,
    ExecOptions,
    SandboxEndpoint,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
    command_argv,
)

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

# Variables that would change the behaviour of the docker client if they were set in its environment.
_CLIENT_VARIABLE = re.compile(r"PATH|HOME|TMPDIR|(DOCKER|BUILDKIT|LD|XDG|SSH|GO)_?.*|.*_proxy", re.IGNORECASE)

# The shell prints its process id before it executes the command, so that the whole process group can be killed.
_PRINT_PID = 'echo "$0:$$" >&2; exec "$@"'


@dataclass(kw_only=True)
class DockerCreateConfig(StartConfig):
    """Options of `docker run`. The defaults give a container no new privileges and a bounded number of processes."""

    network: str | None = None
    """None: the engine's default network; `none`: no network."""
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
        """Return these options as arguments of `docker run`."""
        options = {
            "--network": self.network,
            "--pull": self.pull,
            "--platform": self.platform,
            "--runtime": self.runtime,
            "--user": self.user,
            "--pids-limit": self.pids_limit,
            "--shm-size": None if self.shm_size_mib is None else f"{self.shm_size_mib}m",
            "--read-only": self.read_only,
            "--privileged": self.privileged,
            "--init": self.init,
            "--cap-add": self.cap_add,
            "--cap-drop": self.cap_drop,
            "--tmpfs": self.tmpfs,
            "--volume": self.volumes,
            "--security-opt": "no-new-privileges" if self.no_new_privileges else None,
        }
        return [*option_arguments(options), *self.extra_args, *self.extra_run_args, *self.extra_start_args]


class DockerProvider(CommandLineProvider):
    """Runs every sandbox as one container, labelled with its run id, that exits after its time to live."""

    name: ClassVar[str] = "docker"

    def __init__(
        self, *, binary: str = "docker", create: DockerCreateConfig | Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(binary, **options)
        self.create_config = read_block(DockerCreateConfig, create, "sandbox docker.create")
        self.start_timeout_s = self.create_config.start_timeout_s

    def _create_command(self, name: str, image: str, spec: SandboxSpec) -> tuple[list[str], dict[str, str]]:
        """Return the arguments of `docker run` and the additional environment of the client."""
        variables, environ = _pass_environment(spec.env)
        labels = sorted({"run": self.run_id, **spec.metadata}.items())
        resources = spec.resources
        memory = None if resources.memory_mib is None else f"{resources.memory_mib}m"
        # The default process ends the container after its time to live.
        entrypoint = spec.entrypoint or ["sleep", str(int(spec.ttl_s or DEFAULT_TTL_S))]
        options = {
            "--label": [f"{LABEL_PREFIX}.{label}={value}" for label, value in labels],
            "--cpus": resources.cpu,
            "--memory": memory,
            "--memory-swap": memory,  # memory and swap together: no swap
            "--storage-opt": None if resources.disk_gib is None else f"size={resources.disk_gib:g}G",
            "--gpus": resources.gpu or None,
            "--workdir": spec.workdir or None,
            "--publish": [f"127.0.0.1::{port}" for port in spec.ports],
        }
        argv = [
            *("run", "--detach", "--rm", "--name", name),
            *self.create_config.arguments(),
            *option_arguments(options),
            *variables,
            *(str(part) for part in spec.provider_options.get("args", ())),
            *("--entrypoint", entrypoint[0], image, *entrypoint[1:]),
        ]
        return argv, environ

    def _remove_command(self, name: str) -> list[str]:
        return ["rm", "--force", "--volumes", name]

    def _unpack_command(self, name: str) -> list[str]:
        return ["cp", "-", f"{name}:/"]

    def _pack_command(self, name: str, path: str) -> list[str]:
        return ["cp", "--follow-link", f"{name}:{path}", "-"]

    async def exec(
        self, handle: SandboxHandle, command: str | Sequence[str], **options: Unpack[ExecOptions]
    ) -> SandboxExecResult:
        """Run a command through a shell that prints its process id to stderr, and remove that line from the result."""
        timeout_s = self._exec_timeout(options)
        mark = f"ng-{secrets.token_hex(8)}"
        variables, environ = _pass_environment(options.get("env") or {})
        argv = [
            "exec",
            *option_arguments({"--workdir": options.get("cwd") or None, "--user": options.get("user")}),
            *variables,
            *self.exec_config.extra_exec_args,
            *(handle.sandbox_id, "sh", "-c", _PRINT_PID, mark),
            *command_argv(command),
        ]
        stdout_output = BoundedOutput(self.max_output_bytes)
        stderr_output = BoundedOutput(self.max_output_bytes + len(mark) + 32)  # more, for the line with the process id
        try:
            async with self._slots:
                finished = await self._run(
                    argv, timeout_s=timeout_s, environ=environ, stdout=stdout_output, stderr=stderr_output
                )
        except asyncio.CancelledError:
            await asyncio.shield(self._kill_in_container(handle, _split_pid_line(stderr_output.text(), mark)[0]))
            raise
        pid, stderr = _split_pid_line(finished.stderr, mark)
        if finished.timed_out:
            await self._kill_in_container(handle, pid)
        elif pid is None:
            # The shell did not start, so the command did not run: stderr is the error of the engine.
            return SandboxExecResult(finished.stdout, stderr, finished.return_code or 1, "sandbox")
        return exec_result(finished, timeout_s, stderr=stderr)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        argv = ["inspect", "--type", "container", "--format", "{{.State.Status}}", handle.sandbox_id]
        finished = await self._run(argv)
        if finished.return_code and "no such" in finished.stderr.lower():
            return SandboxStatus.STOPPED
        return _STATUS.get(finished.stdout.strip(), SandboxStatus.UNKNOWN)

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        """Return the URL of the host port on which docker publishes a port of the sandbox."""
        finished = await self._run(["port", handle.sandbox_id, f"{port}/tcp"])
        lines = self._require_success(finished, handle, f"looking up port {port}").strip().splitlines()
        if not lines or not re.fullmatch(r"[\w.\[\]:]+:\d+", lines[0]):
            fix = f"set SandboxSpec(ports=[{port}])"
            raise SandboxError(f"port {port} is not published", where=handle.sandbox_id, fix=fix)
        return SandboxEndpoint(f"http://{lines[0]}")

    async def _kill_in_container(self, handle: SandboxHandle, pid: int | None) -> None:
        """Kill the process group `pid` in the container: killing the docker client does not kill the command."""
        if pid is not None:
            script = f"kill -9 -{pid}"  # without `--`, which dash rejects
            argv = ["exec", "--user", "0", handle.sandbox_id, "sh", "-c", script]
            await self._run(argv, timeout_s=min(10.0, self.operation_timeout_s))


def _pass_environment(env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and variables of the client that set `env` in the container."""
    arguments: list[str] = []
    environ: dict[str, str] = {}
    for name, value in env.items():
        if _CLIENT_VARIABLE.fullmatch(name):  # the only values that the process list shows
            arguments += ["--env", f"{name}={value}"]
        else:
            arguments += ["--env", name]
            environ[name] = str(value)
    return arguments, environ


def _split_pid_line(stderr: str, mark: str) -> tuple[int | None, str]:
    """Split stderr into the process id that the shell printed (None if missing) and the other lines."""
    match = re.search(rf"^{mark}:(\d+)\n", stderr, re.MULTILINE)
    if match is None:
        return None, stderr
    return int(match[1]), stderr[: match.start()] + stderr[match.end() :]
