"""Boxes for programs that call a model: a loopback interface, forwarded ports, limits that a JIT compiler survives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import AsyncSandbox
from nemo_gym.sandbox.programs import SOCKET_FOLDER, program_path, program_spec, require_local, with_forwarded_ports
from nemo_gym.sandbox.providers.local import probe
from nemo_gym.sandbox.spec import SandboxCreateError, SandboxSpec

pytestmark = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")

SOCKET = f"{SOCKET_FOLDER}/echo.sock"
ECHO = """
import socket
connection = socket.create_connection(("127.0.0.1", 9000))
connection.sendall(b"hi")
connection.shutdown(socket.SHUT_WR)
print(connection.recv(9))
"""
CONNECT = "import socket; socket.create_connection(('127.0.0.1', {port}), 5)"


@asynccontextmanager
async def echo_socket(folder: Path) -> AsyncIterator[Path]:
    """Serve a Unix socket that sends back what it receives."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    path = folder / "echo.sock"
    async with await asyncio.start_unix_server(echo, path):
        await asyncio.to_thread(path.chmod, 0o666)
        yield path


async def test_a_port_of_the_box_reaches_the_socket_of_the_host(tmp_path: Path) -> None:
    """A program that only knows URLs must reach the model server."""
    async with echo_socket(tmp_path) as path, AsyncSandbox({"local": {}}, program_spec(mounts={SOCKET: path})) as box:
        result = await box.exec(with_forwarded_ports(["python3", "-c", ECHO], {9000: SOCKET}), timeout_s=30)

    assert (result.stdout, result.stderr, result.return_code) == ("b'hi'\n", "", 0)


async def test_no_port_of_the_host_can_be_reached(tmp_path: Path) -> None:
    """The loopback interface of a box is not that of the host, where the servers of the run listen."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncSandbox({"local": {}}, program_spec(mounts={})) as box:
            result = await box.exec(["python3", "-c", CONNECT.format(port=port)], timeout_s=30)

    assert "ConnectionRefusedError" in result.stderr


async def test_other_boxes_still_have_no_network_sockets() -> None:
    """The exception for programs must not weaken the boxes of model-written code."""
    async with AsyncSandbox({"local": {}}, SandboxSpec()) as box:
        result = await box.exec(["python3", "-c", CONNECT.format(port=1)], timeout_s=30)

    assert result.error_type == "forbidden"


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (["sh", "-c", "exit 3"], 3, ""),
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["no-such-program"], 127, "no-such-program: not found\n"),
        (["/etc/passwd"], 126, "/etc/passwd: Permission denied\n"),
    ],
)
async def test_the_status_is_that_of_the_program(command: list[str], status: int, text: str) -> None:
    """The forwarder must be invisible in the result."""
    async with AsyncSandbox({"local": {}}, program_spec(mounts={})) as box:
        result = await box.exec(with_forwarded_ports(command, {}), timeout_s=30)

    assert (result.return_code, result.stderr) == (status, text)


async def test_a_program_may_reserve_address_space_beyond_its_memory() -> None:
    """JavaScript engines reserve tens of gigabytes; the memory limit stays that of what is used."""
    reserve = "import mmap; mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | 0x4000); print('ok')"
    use = "x = bytearray(400 << 20)"
    async with AsyncSandbox({"local": {}}, program_spec(mounts={}, memory_mib=256)) as box:
        reserved = await box.exec(["python3", "-c", reserve], timeout_s=30)
        used = await box.exec(["python3", "-c", use], timeout_s=30)

    assert reserved.stdout == "ok\n"
    assert used.error_type == "memory"


async def test_a_mount_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """An installation that was removed meanwhile must not look like an error of bubblewrap."""
    with pytest.raises(SandboxCreateError, match=r"do not exist: .*missing"):
        async with AsyncSandbox({"local": {}}, program_spec(mounts={"/opt/x": tmp_path / "missing"})):
            pass


def test_only_the_local_provider_runs_programs() -> None:
    """Another provider would ignore the forwarded sockets and give the program another network."""
    require_local({"local": {}})
    with pytest.raises(ConfigError, match="must be `local`, not 'docker'"):
        require_local({"docker": {}})
    assert program_path(["/opt/x/bin"]).startswith("/opt/x/bin:")
