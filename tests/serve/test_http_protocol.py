"""Limits on connections, with a real server: bodies and heads that are too large, requests that do not arrive."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nemo_gym.launch.app_listener import AppListener
from nemo_gym.serve import http_protocol
from nemo_gym.serve.app import create_app
from nemo_gym.serve.http_protocol import GuardedHttpProtocol
from nemo_gym.serve.webserver import listen, serve_in_thread, uvicorn_options
from nemo_gym.transport.large_bodies import limits

LIMIT = 300_000
TIMEOUT = 20.0


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "body", LIMIT)


class Server:
    """The address of a server, and the bodies that its handlers received."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.release = asyncio.Event()
        self.port = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """Serve an app with one plain JSON endpoint and one that waits."""
    server, app = Server(), create_app()

    @app.post("/echo")
    async def echo(body: dict[str, Any]) -> dict[str, int]:
        server.bodies.append(body)
        return {"fields": len(body)}

    @app.post("/wait")
    async def wait(body: dict[str, Any]) -> dict[str, int]:
        server.bodies.append(body)
        await server.release.wait()
        return {"fields": len(body)}

    listener = listen("127.0.0.1", 0)
    server.port = listener.getsockname()[1]
    app_listener = AppListener(app, listener, uvicorn_options({}))
    await app_listener.open()
    try:
        yield server
    finally:
        app_listener.stop_accepting()
        await app_listener.close()


def request(body: bytes = b"{}", path: str = "/echo", **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [
        f"{name.replace('_', '-')}: {value}" for name, value in ({"Content_Length": str(len(body))} | headers).items()
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """Read until the end of one answer with a length, or of the connection."""
    async with asyncio.timeout(TIMEOUT):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        return head + await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))


async def works(server: Server) -> bool:
    reader, writer = await server.connect()
    writer.write(request())
    answer = await read_answer(reader)
    writer.close()
    return answer.startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_read() -> None:
    """Waiting for half a gigabyte to refuse it would already have taken the memory."""
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(request(Content_Length=str(LIMIT + 1))[:-2])
        answer = await read_answer(reader)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"max_body_bytes" in answer
        assert server.bodies == []
        assert await works(server)


async def test_a_body_of_unknown_length_is_refused_while_it_is_read() -> None:
    """A chunked body has no length to look at; the bytes that arrive must be counted."""
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(TIMEOUT):
                answer = asyncio.create_task(read_answer(reader))
                while True:  # the client sends without end; the server must close the connection
                    writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                    await writer.drain()
        assert (await answer).startswith(b"HTTP/1.1 413 ")
        assert server.bodies == []
        assert await works(server)


async def test_a_client_that_sends_the_whole_body_first_can_still_read_the_refusal() -> None:
    """Closing the connection at once would reset it, and the client would see no reason."""
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(request(b"x" * (20 * LIMIT)))
        async with asyncio.timeout(TIMEOUT):
            await writer.drain()
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_a_refused_request_behind_another_one_does_not_damage_its_answer() -> None:
    """Two requests in one piece: the answer to the first must not be mixed with the refusal of the second."""
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(request(path="/wait") + request(Content_Length=str(LIMIT + 1))[:-2])
        assert await read_answer(reader) == b""
        writer.close()
        server.release.set()
        assert await works(server)


async def test_a_body_at_the_limit_is_accepted() -> None:
    """The limit must not refuse what it allows."""
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(request(b'{"a": "' + b"x" * (LIMIT - 9) + b'"}'))
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_an_endless_head_is_refused() -> None:
    """The parser keeps headers without a bound."""
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(b"POST /echo HTTP/1.1\r\n" + b"x-a: b\r\n" * (http_protocol.MAX_HEAD_BYTES // 4))
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 431 ")
        writer.close()


DRIBBLES = {
    "nothing": (b"", b""),
    "empty lines": (b"\r\n", b"\r\n"),
    "a head": (b"POST /echo HTTP/1.1\r\n", b"x-a: b\r\n"),
    "a body": (request(Content_Length="200000")[:-2] + b'{"a": "', b"x"),
    "a chunked body": (request(b"", Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b""), b"1\r\nx\r\n"),
    "a second head": (request() + b"POST /ec", b"h"),
}


@pytest.mark.parametrize("kind", DRIBBLES)
async def test_a_request_that_arrives_too_slowly_ends_its_connection(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few thousand such connections use up the open files of a server, and then no request is served."""
    monkeypatch.setattr(GuardedHttpProtocol, "head_seconds", 0.3)
    monkeypatch.setattr(GuardedHttpProtocol, "body_seconds", 0.5)
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 0.1)
    start, drop = DRIBBLES[kind]
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(start)
        end = asyncio.create_task(reader.read())
        async with asyncio.timeout(TIMEOUT):
            while not end.done():
                writer.write(drop)
                await asyncio.wait([end], timeout=0.05)
        received = b"" if end.exception() else end.result()
        writer.close()
        assert kind == "nothing" or not received or b"HTTP/1.1 408 " in received
        assert await works(server)


async def test_time_of_the_server_does_not_count_against_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model call takes minutes; the connection that waits for it must stay open."""
    monkeypatch.setattr(GuardedHttpProtocol, "head_seconds", 0.1)
    monkeypatch.setattr(GuardedHttpProtocol, "body_seconds", 0.1)
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(request(path="/wait"))
        assert not (await asyncio.wait([asyncio.create_task(reader.read(1))], timeout=0.6))[0]
        server.release.set()
        writer.close()


async def test_a_slow_but_steady_body_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large body over a slow network is not an attack."""
    monkeypatch.setattr(GuardedHttpProtocol, "head_seconds", 0.2)
    monkeypatch.setattr(GuardedHttpProtocol, "body_seconds", 0.2)
    monkeypatch.setattr(http_protocol, "MIN_BODY_BYTES", 1000)
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(request(Content_Length="100000")[:-2] + b'{"a": "')
        for _ in range(19):
            writer.write(b"x" * 5000)
            await asyncio.sleep(0.04)
        writer.write(b"x" * (100_000 - 95_000 - 9) + b'"}')
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 200 ")
        writer.close()


def test_the_server_in_a_thread_has_the_same_limits() -> None:
    """The head of `ServerClient` scripts is served this way."""
    app = create_app()

    @app.post("/echo")
    async def echo(body: dict[str, Any]) -> dict[str, int]:
        return {"fields": len(body)}

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server, thread = serve_in_thread(app, host="127.0.0.1", port=port)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
            connection.sendall(request(Content_Length=str(LIMIT + 1))[:-2])
            assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)
