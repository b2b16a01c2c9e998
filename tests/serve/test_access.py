"""Servers answer the user who runs them and the processes of their run; web pages and other users get a refusal."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from fastapi import Request

from nemo_gym.launch.app_listener import AppListener, close_listeners
from nemo_gym.serve import peer_user
from nemo_gym.serve.access import AccessPolicy
from nemo_gym.serve.app import create_app
from nemo_gym.serve.webserver import uvicorn_options

TOKEN = "t0ken-of-this-run"
OTHER_USER = 65534


def build_app(calls: list[str]) -> Any:
    app = create_app()

    @app.get("/config")
    async def config(request: Request) -> dict[str, str]:
        calls.append("/config")
        return dict(request.headers)

    @app.post("/v1/responses")
    async def responses(body: dict[str, Any]) -> dict[str, Any]:
        calls.append("/v1/responses")
        return body

    return app


class WebSocketProtocol(asyncio.Protocol):
    """Stands for a WebSocket library: accepts every connection that uvicorn passes to it."""

    def __init__(self, **_: Any) -> None:
        """Take what uvicorn passes to such a protocol."""

    def connection_made(self, transport: Any) -> None:
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        transport.close()


@asynccontextmanager
async def serving(calls: list[str], host: str = "127.0.0.1", **options: Any) -> AsyncIterator[int]:
    """Serve the app on a free port with a policy of these options."""
    policy = AccessPolicy(**{"token": TOKEN.encode(), **options})
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        uvicorn_settings = {**uvicorn_options({}), "ws": WebSocketProtocol}
        server = AppListener(build_app(calls), listener, uvicorn_settings, policy=policy)
        await server.open()
        yield listener.getsockname()[1]
        await close_listeners([server], grace=10)


async def send_raw(port: int, *lines: str, host: str = "127.0.0.1", body: bytes = b"") -> tuple[int, bytes]:
    """Send a request with exactly these lines and return status and body of the answer."""
    reader, writer = await asyncio.open_connection(host, port)
    head = "\r\n".join([*lines, "Connection: close", f"Content-Length: {len(body)}", "", ""])
    writer.write(head.encode() + body)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head_bytes, _, content = answer.partition(b"\r\n\r\n")
    return int(head_bytes.split()[1]), content


async def get(port: int, *headers: str, path: str = "/config") -> tuple[int, bytes]:
    names = {header.partition(":")[0].lower() for header in headers}
    host = [] if "host" in names else [f"Host: 127.0.0.1:{port}"]
    return await send_raw(port, f"GET {path} HTTP/1.1", *host, *headers)


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def as_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every client of this process one of another user."""
    monkeypatch.setattr(peer_user.os, "geteuid", lambda: os.getuid() + 1)


@pytest.mark.parametrize(
    "host", ["localhost:{port}", "LOCALHOST", "127.0.0.1:{port}", "127.9.8.7", "[::1]:{port}", "gpu7.lan:{port}"]
)
async def test_the_names_of_the_server_are_answered(calls: list[str], host: str) -> None:
    """curl, trainers and harnesses of the user keep working without a token."""
    async with serving(calls, hosts=frozenset({"gpu7.lan"})) as port:
        status, _ = await get(port, "Host: " + host.format(port=port))

    assert (status, calls) == (200, ["/config"])


@pytest.mark.parametrize("mode", ["same-user", "open"])
@pytest.mark.parametrize(
    "host",
    [
        "rebind.example",
        "rebind.example:{port}",
        "127.0.0.1.rebind.example:{port}",
        "localhost.rebind.example",
        "localhost@rebind.example",
        "8.8.8.8:{port}",
        "[fe80::1]",
        "127.0.0.1 rebind.example",
        "",
    ],
)
async def test_another_host_name_is_refused(calls: list[str], host: str, mode: str) -> None:
    """With DNS rebinding a web page gives our address its own name; the browser runs as the user."""
    async with serving(calls, mode=mode) as port:
        status, body = await get(port, "Host: " + host.format(port=port))

    assert (status, calls) == (421, [])
    assert "is not a name of this server" in orjson.loads(body)["detail"]


@pytest.mark.parametrize("hosts", [[], ["Host: localhost", "Host: rebind.example"]])
async def test_a_request_without_exactly_one_host_is_malformed(calls: list[str], hosts: list[str]) -> None:
    """A second Host could be the one that a proxy or the app reads."""
    async with serving(calls) as port:
        status, _ = await send_raw(port, "GET /config HTTP/1.1", *hosts)

    assert (status, calls) == (400, [])


@pytest.mark.parametrize(
    "header",
    ["Origin: https://page.example", "Origin: null", "Origin: http://127.0.0.1:1", "Sec-Fetch-Site: cross-site"],
)
async def test_a_page_of_another_origin_is_refused(calls: list[str], header: str) -> None:
    """A page may send simple POST requests to loopback without rebinding anything, and each costs money."""
    async with serving(calls) as port:
        lines = ["POST /v1/responses HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json", header]
        status, _ = await send_raw(port, *lines, body=b"{}")

    assert (status, calls) == (403, [])


async def test_the_servers_own_page_is_answered(calls: list[str]) -> None:
    """The interactive API pages of FastAPI are such a page."""
    async with serving(calls) as port:
        own = [f"Host: localhost:{port}", f"Origin: http://localhost:{port}", "Sec-Fetch-Site: same-origin"]
        status, _ = await get(port, *own)

    assert (status, calls) == (200, ["/config"])


@pytest.mark.usefixtures("as_other_user")
async def test_another_user_needs_the_token(calls: list[str]) -> None:
    """Loopback is shared by all users of a machine."""
    async with serving(calls) as port:
        refused, body = await get(port)
        wrong, _ = await get(port, f"x-nemo-gym-run-token: {TOKEN[:-1]}")
        assert calls == []
        accepted, _ = await get(port, f"x-nemo-gym-run-token: {TOKEN}")

    assert (refused, wrong, accepted) == (401, 401, 200)
    assert "x-nemo-gym-run-token" in orjson.loads(body)["detail"]


REQUEST = """
import os, socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1]))) if sys.argv[2] == "root-socket" else None
os.setgroups([]); os.setgid({user}); os.setuid({user})
client = client or socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(b"GET /config HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nConnection: close\\r\\n\\r\\n")
if sys.argv[2] == "abandon":
    os._exit(0)
print(client.recv(100).split()[1].decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize(("how", "status"), [("own-socket", b"401"), ("root-socket", b"200"), ("abandon", b"")])
async def test_the_user_of_the_peer_is_that_of_its_socket(calls: list[str], how: str, status: bytes) -> None:
    """A real process of another user is refused, also if it exits at once: some kernels show its socket as root's."""
    async with serving(calls) as port:
        code = "import encodings.idna\n" + REQUEST.format(user=OTHER_USER)
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(port), how, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(client.communicate(), 30)
        await get(port, f"x-nemo-gym-run-token: {TOKEN}", path="/nowhere")  # the earlier request was read before

    assert output.strip() == status
    assert calls == (["/config"] if status == b"200" else [])


@pytest.mark.parametrize(
    "header", ["authorization: Bearer {}", "authorization: bearer {}", "x-api-key: {}", "api-key: {}"]
)
async def test_a_client_of_a_model_api_sends_the_token_as_its_key(calls: list[str], header: str) -> None:
    """Harnesses in a container have an API key setting, but often no setting for other headers."""
    async with serving(calls, mode="token") as port:
        accepted, seen = await get(port, header.format(TOKEN))
        refused, _ = await get(port, header.format("sk-other"))

    assert (accepted, refused) == (200, 401)
    assert TOKEN.encode() not in seen, "handlers, and what they log or store, never see the token"


async def test_in_token_mode_the_user_needs_the_token_too(calls: list[str]) -> None:
    """For machines where other programs of the same user are not trusted."""
    async with serving(calls, mode="token") as port:
        refused, _ = await get(port)
        accepted, seen = await get(port, f"x-nemo-gym-run-token: {TOKEN}", "Host: any.name.example")

    assert (refused, accepted, calls) == (401, 200, ["/config"])
    assert TOKEN.encode() not in seen


@pytest.mark.usefixtures("as_other_user")
async def test_in_open_mode_a_server_on_the_network_answers_everyone(calls: list[str]) -> None:
    """The documented switch for clusters whose network is closed."""
    async with serving(calls, mode="open", is_loopback_only=False) as port:
        status, _ = await get(port, "Host: service.cluster.example")

    assert (status, calls) == (200, ["/config"])


async def test_a_run_without_a_token_accepts_no_token(calls: list[str]) -> None:
    """An empty expectation must not match an empty header."""
    async with serving(calls, mode="token", token=b"") as port:
        answers = [
            await get(port, header) for header in ("x-nemo-gym-run-token:", "authorization: Bearer ", "x-api-key:")
        ]

    assert [status for status, _ in answers] == [401, 401, 401]
    assert calls == []


@pytest.mark.parametrize(("headers", "status"), [(["Origin: http://page.example"], 403), ([], 101)])
async def test_a_web_socket_is_checked_like_a_request(calls: list[str], headers: list[str], status: int) -> None:
    """Browsers let any page open a web socket to any address."""
    async with serving(calls) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        upgrade = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        lines = ["GET /socket HTTP/1.1", f"Host: 127.0.0.1:{port}", *upgrade, key, *headers, "", ""]
        writer.write("\r\n".join(lines).encode())
        async with asyncio.timeout(10):
            answer = await reader.readline()
        writer.close()

    assert int(answer.split()[1]) == status


async def test_every_request_of_a_connection_is_checked(calls: list[str]) -> None:
    """A proxy may send the requests of several clients over one connection; the lookup of the user is not repeated."""
    async with serving(calls) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        statuses = []
        for host in ("localhost", "rebind.example"):
            writer.write(f"GET /nowhere HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split()[0])
            await reader.readexactly(size)
            statuses.append(int(head.split()[1]))
        writer.close()

    assert statuses == [404, 421]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_tables_of_the_kernel_are_read_where_it_cannot_be_queried(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Some containers have no netlink; there the user's own clients must work as well."""

    def refuse(*_: Any) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(peer_user, "_query_kernel", refuse)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        address = listener.getsockname()[:2]
        with socket.create_connection(address) as client:
            peer = client.getsockname()[:2]
            assert peer_user.is_same_user(peer, address)
            monkeypatch.setattr(peer_user.os, "geteuid", lambda: os.getuid() + 1)
            assert not peer_user.is_same_user(peer, address)
        assert not peer_user.is_same_user(peer, (address[0], 1))


def test_a_client_of_another_machine_is_nobody_here() -> None:
    """A remote address with the port of a local socket must not match it."""
    assert not peer_user.is_same_user(("192.0.2.7", 40000), ("192.0.2.1", 11000))


def test_the_policy_does_not_show_its_token() -> None:
    """Policies appear in tracebacks and debuggers."""
    assert TOKEN not in repr(AccessPolicy(token=TOKEN.encode()))


def test_the_hosts_of_a_configuration_are_names_of_its_servers() -> None:
    """A server on a configured address is called by that name."""
    block = {"resources_servers": {"sums": {"host": "Node3.Cluster", "port": 5, "entrypoint": "app.py"}}}
    policy = AccessPolicy.from_config({"head_server": {"host": "127.0.0.1", "port": 1}, "env": block}, None)

    assert {"node3.cluster", "127.0.0.1", socket.gethostname().lower()} == policy.hosts
    assert not policy.is_loopback_only
