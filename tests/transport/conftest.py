"""Servers for the tests of outgoing calls: scripted ones that misbehave on purpose, and real ones."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn

from nemo_gym.transport import http, http_sessions


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests() -> Iterator[None]:
    http.health.clear()
    http_sessions.configure(None)
    yield
    http.health.clear()
    http_sessions.configure(None)


@dataclass
class Script:
    """The actions of a scripted server for its requests, in order; the last one repeats."""

    actions: list[bytes | str]
    requests: list[bytes] = field(default_factory=list)
    url: str = ""
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    def next(self) -> bytes | str:
        return self.actions.pop(0) if len(self.actions) > 1 else self.actions[0]


def answer(status: int, body: bytes = b"{}", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head + (await reader.readexactly(length) if length else b"")


@asynccontextmanager
async def scripted_http_server(*actions: bytes | str) -> AsyncIterator[Script]:
    """A server that answers with bytes, hangs up (`"close"`) or never answers (`"hang"`)."""
    script = Script(list(actions))
    open_writers: list[asyncio.StreamWriter] = []
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        open_writers.append(writer)
        try:
            while True:
                script.requests.append(await _read_request(reader))
                action = script.next()
                if action == "close":
                    break
                if action == "hang":
                    script.hanging.set()
                    await reader.read()
                    break
                assert isinstance(action, bytes)
                writer.write(action)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield script
    finally:
        server.close()
        for writer in open_writers:
            writer.close()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def scripted_server() -> Callable[..., AbstractAsyncContextManager[Script]]:
    return scripted_http_server


@pytest.fixture
def say() -> Callable[..., bytes]:
    return answer


@pytest.fixture
def closed_address() -> Iterator[str]:
    """An address without a listener: the port is bound, so no other test can take it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


class _QuietServer(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        pass


@pytest.fixture(scope="module")
def uvicorn_at() -> Iterator[Callable[[Any], str]]:
    """Serve apps by uvicorn in threads; the address can be called at once because the socket already listens."""
    running: list[tuple[uvicorn.Server, threading.Thread, socket.socket]] = []

    def start(app: Any) -> str:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        server = _QuietServer(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        running.append((server, thread, listening))
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for server, thread, listening in running:
        server.should_exit = True
        thread.join(timeout=10)
        listening.close()
