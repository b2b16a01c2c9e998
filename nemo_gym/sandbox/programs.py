"""Run a program that calls a model, such as a coding agent, in a box of the provider `local`.

Such programs need more than the code of a model: installed packages, many threads, address space for a JIT compiler,
and a network. The network is the loopback interface of the box; a port of it is forwarded to a Unix socket of the
host, and no other address can be reached.

    spec = program_spec(mounts={"/run/gym/model.sock": folder / "model.sock"})
    async with AsyncSandbox({"local": {}}, spec) as sandbox:
        command = with_forwarded_ports(["agent", "http://127.0.0.1:8080/v1"], {8080: "/run/gym/model.sock"})
        await sandbox.exec(command, timeout_s=600)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.providers.local.bubblewrap import FORWARDER, WORKDIR, interpreter_path, search_path
from nemo_gym.sandbox.spec import SandboxResources, SandboxSpec

SOCKET_FOLDER = "/run/gym"
"""The folder in a box for sockets of the host."""
_OPEN_FILES = 4096


def program_spec(
    *,
    mounts: Mapping[str, str | Path],
    env: Mapping[str, str] | None = None,
    memory_mib: int = 3072,
    disk_mib: int = 1024,
    processes: int = 512,
    ttl_s: float | None = None,
) -> SandboxSpec:
    """Return the description of a box for a program. `mounts` maps paths in the box to paths of the host, read-only."""
    options = {
        "processes": processes,
        "open_files": _OPEN_FILES,
        "limit_address_space": False,
        "loopback": True,
        "mounts": {target: str(source) for target, source in mounts.items()},
    }
    resources = SandboxResources(memory_mib=memory_mib, disk_gib=disk_mib / 1024)
    return SandboxSpec(env=dict(env or {}), resources=resources, provider_options=options, ttl_s=ttl_s)


def with_forwarded_ports(command: Sequence[str], ports: Mapping[int, str]) -> list[str]:
    """Return a command that runs `command` while loopback ports are forwarded to Unix sockets (paths in the box)."""
    pairs = [f"{port}={path}" for port, path in ports.items()]
    return [interpreter_path(), "-I", "-S", "-B", FORWARDER, *pairs, "--", *command]


def program_path(folders: Sequence[str | Path] = ()) -> str:
    """Return `PATH` for a program: `folders`, then the standard folders of every box."""
    return ":".join([*map(str, folders), search_path()])


def require_local(provider: Mapping[str, object]) -> None:
    """Check that a provider can run programs that call a model.

    Raises:
        ConfigError: it is not the provider `local`.
    """
    if set(provider) != {"local"}:
        problem = f"the sandbox provider must be `local`, not {', '.join(map(repr, provider))}"
        raise ConfigError(problem, where="sandbox", fix="{local: {}}; other providers have no forwarded sockets yet")


__all__ = ["SOCKET_FOLDER", "WORKDIR", "program_path", "program_spec", "require_local", "with_forwarded_ports"]
