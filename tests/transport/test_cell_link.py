"""Calls from one process of a run to another get the answer the app itself would give."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import HTTPException, Request, Response
from fastapi.responses import PlainTextResponse

from nemo_gym.errors import DeadlineExceeded, ServerUnreachable
from nemo_gym.launch.ports import listen_on_unix_socket, unix_name
from nemo_gym.serve.app import create_app
from nemo_gym.serve.failures import DeadlineMiddleware, FailureMiddleware
from nemo_gym.serve.session import SessionMiddleware
from nemo_gym.transport import cell_link, deadlines, in_process
from nemo_gym.transport.cell_link import CellLink, CellListener, FrameProtocol, RemoteInstance
from nemo_gym.wire.call_reply import Call, Reply

BASE = "http://127.0.0.1:1"


def build(*, is_direct: bool = True) -> Any:
    app = create_app()
    app.add_middleware(SessionMiddleware, key="App___one")
    app.add_middleware(DeadlineMiddleware, server_name="one")
    app.add_middleware(FailureMiddleware, server_name="one")
    if not is_direct:
        app.router.middleware_stack = app.router.app

    @app.post("/add")
    async def add(request: Request, body: dict[str, int]) -> dict[str, Any]:
        request.session["sum"] = request.session.get("sum", 0) + body["a"]
        return {"sum": request.session["sum"], "extra": request.headers.get("x-extra")}

    @app.post("/refuse")
    async def refuse(body: dict[str, int]) -> None:
        raise HTTPException(409, "busy", headers={"x-why": "busy"})

    @app.post("/break")
    async def fail(body: dict[str, int]) -> None:
        raise RuntimeError("broken")

    @app.post("/own")
    async def own(body: dict[str, int]) -> Response:
        return PlainTextResponse("größe", headers={"x-own": "1"})

    @app.post("/größe/{name}")
    async def echo_name(name: str) -> str:
        return name

    @app.post("/wait")
    async def wait(body: dict[str, int]) -> None:
        app.state.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            app.state.stopped.set()

    app.state.entered, app.state.stopped = asyncio.Event(), asyncio.Event()
    return app


@asynccontextmanager
async def link_to(app: Any) -> AsyncIterator[RemoteInstance]:
    listener: socket.socket = listen_on_unix_socket()
    server = await asyncio.get_running_loop().create_unix_server(
        CellListener({"one": app}, "token").protocol, sock=listener
    )
    link = CellLink(unix_name(listener), "token", "cell 0")
    try:
        yield RemoteInstance("one", [link])
    finally:
        link.close()
        server.close()
        await asyncio.sleep(0)


async def shape(response: Any) -> dict[str, Any]:
    headers = {k.lower(): v for k, v in response.headers.items() if k.lower() not in ("content-length", "set-cookie")}
    return {
        "status": response.status,
        "reason": response.reason,
        "headers": headers,
        "cookies": list(response.cookies),
        "body": await response.read(),
        "url": str(response.url),
    }


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("path", ["/add", "/refuse", "/break", "/own", "/größe/ü x", "/nowhere"])
async def test_the_answer_over_a_link_is_that_of_a_local_call(path: str, is_direct: bool) -> None:
    """Whether the endpoint is called directly at the other end or through the ASGI stack."""
    options = {"json": {"a": 1}, "headers": {"X-Extra": "1"}, "cookies": {"other": "x"}}
    here = await shape(await in_process.dispatch(build(), "POST", f"{BASE}{path}", **options))

    async with link_to(build(is_direct=is_direct)) as app:
        there = await shape(await in_process.request(app, "POST", BASE, path, **options))

    assert there == here


async def test_a_session_is_kept_over_a_link() -> None:
    """Cookies travel with the calls of an episode."""
    async with link_to(build()) as app:
        first = await in_process.request(app, "POST", BASE, "/add", json={"a": 2})
        second = await in_process.request(app, "POST", BASE, "/add", json={"a": 3}, cookies=first.cookie_values)

    assert (await second.json())["sum"] == 5


async def test_cancelling_a_call_cancels_its_handler_in_the_cell() -> None:
    """A cancelled rollout must not leave work behind in another process."""
    app = build()
    async with link_to(app) as other:
        call = asyncio.create_task(in_process.request(other, "POST", BASE, "/wait", json={}))
        await app.state.entered.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(10):
            await app.state.stopped.wait()


async def test_a_late_call_ends_on_both_sides() -> None:
    """Usually the cell gives up first, on a busy machine the caller may. Both name the late server."""
    app = build()
    async with link_to(app) as other:
        try:
            with deadlines.time_limit(0.05):
                answer = await in_process.request(other, "POST", BASE, "/wait", json={}, callee="one")
            outcome = answer.status, answer.headers.get("x-nemo-gym-failed")
        except DeadlineExceeded as error:
            outcome = 504, error.where
        async with asyncio.timeout(10):
            await app.state.stopped.wait()

    assert outcome == (504, "one")


async def test_the_cell_enforces_the_deadline_even_if_its_caller_does_not() -> None:
    """A caller that hangs must not keep a handler running."""
    app = build()
    async with link_to(app) as other:
        reply = await other.handle(Call("POST", BASE, "/wait", body=b"{}", seconds=0.02))

    assert app.state.stopped.is_set()
    assert reply.status == 504
    assert b"was not done within" in reply.body_bytes()
    assert ("x-nemo-gym-failed", "one") in reply.header_list()


async def test_hundreds_of_concurrent_calls_get_their_own_replies() -> None:
    """They are started over several rounds of the loop, and none is lost or mixed up."""
    async with link_to(build()) as app:
        answers = await asyncio.gather(
            *[in_process.request(app, "POST", BASE, "/add", json={"a": number}) for number in range(300)]
        )
        sums = [(await answer.json())["sum"] for answer in answers]

    assert sums == list(range(300))


async def test_an_unknown_instance_is_404_and_a_closed_link_is_unreachable() -> None:
    """Both must end the call at once instead of hanging until the deadline."""
    hosted = build()
    async with link_to(hosted) as app:
        unknown = RemoteInstance("two", app._links)
        answer = await in_process.request(unknown, "POST", BASE, "/add", json={})
        assert answer.status == 404
        waiting = asyncio.create_task(in_process.request(app, "POST", BASE, "/wait", json={}))
        await hosted.state.entered.wait()
        app._links[0].close()
        with pytest.raises(ServerUnreachable):
            await waiting


async def test_calls_are_counted_before_the_connection_is_made() -> None:
    """Calls are spread over cells by this count, and thousands are sent before the first connection exists."""
    listener: socket.socket = listen_on_unix_socket()
    apps = [build(), build()]
    server = await asyncio.get_running_loop().create_unix_server(
        CellListener({"one": apps[0]}, "token").protocol, sock=listener
    )
    chosen: list[CellLink] = []

    class RecordingLink(CellLink):
        async def send(self, instance: str, call: Call) -> Reply:
            chosen.append(self)
            return await super().send(instance, call)

    links = [RecordingLink(unix_name(listener), "token", f"cell {number}") for number in range(2)]
    other = RemoteInstance("one", links)
    await asyncio.gather(*(in_process.request(other, "POST", BASE, "/add", json={"a": 1}) for _ in range(20)))

    assert [chosen.count(link) for link in links] == [10, 10]
    assert [link.in_flight for link in links] == [0, 0]
    for link in links:
        link.close()
    server.close()
    await asyncio.sleep(0)


async def test_frames_of_one_round_are_one_write_and_arrive_before_a_close() -> None:
    """A wake-up of the other process per frame costs more than the frame."""
    arrived: list[tuple[dict[str, Any], bytes]] = []
    ended = asyncio.Event()
    listener: socket.socket = listen_on_unix_socket()
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(
        lambda: FrameProtocol(lambda head, body: arrived.append((head, body)), ended.set), sock=listener
    )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    connection.connect(unix_name(listener))
    transport, protocol = await loop.create_unix_connection(
        lambda: FrameProtocol(lambda *_: None, lambda: None), sock=connection
    )
    written = Mock(wraps=transport.write)
    protocol.connection_made(Mock(wraps=transport, write=written))

    for number in range(5):
        protocol.send({"id": number}, b"%d" % number)
    await asyncio.sleep(0)
    assert written.call_count == 1

    protocol.send({"id": 5}, b"last")
    protocol.close()
    async with asyncio.timeout(10):
        await ended.wait()

    assert [head["id"] for head, _ in arrived] == [0, 1, 2, 3, 4, 5]
    assert [body for _, body in arrived] == [b"0", b"1", b"2", b"3", b"4", b"last"]
    server.close()


@asynccontextmanager
async def raw_connection(loop_app: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to a cell without sending the token."""
    listener: socket.socket = listen_on_unix_socket()
    server = await asyncio.get_running_loop().create_unix_server(
        CellListener({"one": loop_app}, "token").protocol, sock=listener
    )
    client = socket.socket(socket.AF_UNIX)
    client.connect(unix_name(listener))
    reader, writer = await asyncio.open_unix_connection(sock=client)
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
        await asyncio.sleep(0)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(10):
            return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "first",
    [
        cell_link.LENGTHS.pack(13, 900_000_000) + b'{"token":"x"}' + b"x" * 100_000,
        cell_link.LENGTHS.pack(900_000_000, 0) + b"x" * 100_000,
        cell_link._encode_frame({"token": "wrong"}) + cell_link._encode_frame({"token": "token"}),
        cell_link._encode_frame({"token": "töken"}),
        cell_link.LENGTHS.pack(2, 0) + b"[]" + b" " * 100,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_before_the_token_nothing_is_kept_or_parsed(first: bytes) -> None:
    """Every local user can connect; a gigabyte announced by a stranger must not be awaited."""
    async with raw_connection(build()) as (reader, writer):
        writer.write(first)
        assert await is_closed(reader)


async def test_a_connection_without_the_token_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent connections would use up the descriptors of a cell."""
    monkeypatch.setattr(cell_link, "TOKEN_SECONDS", 0.01)
    async with raw_connection(build()) as (reader, writer):
        writer.write(cell_link._encode_frame({"token": "token"})[:-1])
        assert await is_closed(reader)


async def test_another_user_is_refused_even_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel knows the user of a Unix connection; a leaked token alone opens nothing."""
    monkeypatch.setattr(cell_link.os, "geteuid", lambda: 4242)
    async with raw_connection(build()) as (reader, writer):
        writer.write(cell_link._encode_frame({"token": "token"}))
        assert await is_closed(reader)


async def test_the_token_is_not_sent_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger who listens at the address of a cell must not learn the token."""
    listener: socket.socket = listen_on_unix_socket()
    monkeypatch.setattr(cell_link.os, "geteuid", lambda: 4242)
    with listener, pytest.raises(ServerUnreachable, match="another user"):
        async with asyncio.timeout(10):
            await CellLink(unix_name(listener), "token", "cell 0").send("one", Call("POST", BASE, "/add"))


async def test_a_token_that_arrives_in_parts_is_accepted() -> None:
    """A socket may deliver any number of bytes at a time, and calls follow the token at once."""
    call = cell_link._encode_frame({"id": 1, "call": "one", "method": "POST", "url": BASE, "path": "/add"}, b'{"a":3}')
    data = cell_link._encode_frame({"token": "token"}) + call
    async with raw_connection(build()) as (reader, writer):
        for part in (data[:3], data[3:12], data[12:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            head_size, body_size = cell_link.LENGTHS.unpack(await reader.readexactly(cell_link.LENGTHS.size))
            answer = await reader.readexactly(head_size + body_size)

    assert b'"sum":3' in answer
