"""Calls from one process of a run to another: what comes back is what the app would have said itself."""

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
from nemo_gym.launch.link import Door, FrameProtocol, Link, LinkedApp
from nemo_gym.launch.ports import listen_privately, unix_name
from nemo_gym.net import deadline, local
from nemo_gym.serve.app import create_app
from nemo_gym.serve.deadlines import DeadlineMiddleware
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.session import SessionMiddleware

BASE = "http://127.0.0.1:1"


def build(*, short: bool = True) -> Any:
    app = create_app()
    app.add_middleware(SessionMiddleware, key="App___one")
    app.add_middleware(DeadlineMiddleware, server_name="one")
    app.add_middleware(FailureMiddleware, server_name="one")
    if not short:
        app.router.middleware_stack = app.router.app

    @app.post("/add")
    async def add(request: Request, body: dict[str, int]) -> dict[str, Any]:
        request.session["sum"] = request.session.get("sum", 0) + body["a"]
        return {"sum": request.session["sum"], "extra": request.headers.get("x-extra")}

    @app.post("/refuse")
    async def refuse(body: dict[str, int]) -> None:
        raise HTTPException(409, "busy", headers={"x-why": "busy"})

    @app.post("/break")
    async def broken(body: dict[str, int]) -> None:
        raise RuntimeError("broken")

    @app.post("/own")
    async def own(body: dict[str, int]) -> Response:
        return PlainTextResponse("größe", headers={"x-own": "1"})

    @app.post("/größe/{name}")
    async def sized(name: str) -> str:
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
async def linked(app: Any) -> AsyncIterator[LinkedApp]:
    door: socket.socket = listen_privately()
    server = await asyncio.get_running_loop().create_unix_server(Door({"one": app}, "token").protocol, sock=door)
    link = Link(unix_name(door), "token", "cell 0")
    try:
        yield LinkedApp("one", lambda: link)
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


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("path", ["/add", "/refuse", "/break", "/own", "/größe/ü x", "/nowhere"])
async def test_the_answer_is_the_apps_own(path: str, short: bool) -> None:
    """Whether the call takes the short way at the other end or not."""
    options = {"json": {"a": 1}, "headers": {"X-Extra": "1"}, "cookies": {"other": "x"}}
    here = await shape(await local.dispatch(build(), "POST", f"{BASE}{path}", **options))

    async with linked(build(short=short)) as app:
        there = await shape(await local.call(app, "POST", BASE, path, **options))

    assert there == here


async def test_a_session_is_kept_over_a_link() -> None:
    async with linked(build()) as app:
        first = await local.call(app, "POST", BASE, "/add", json={"a": 2})
        second = await local.call(app, "POST", BASE, "/add", json={"a": 3}, cookies=first.cookie_values)

    assert (await second.json())["sum"] == 5


async def test_a_call_that_is_given_up_is_cancelled_over_there() -> None:
    app = build()
    async with linked(app) as other:
        call = asyncio.create_task(local.call(other, "POST", BASE, "/wait", json={}))
        await app.state.entered.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(10):
            await app.state.stopped.wait()


async def test_a_call_that_takes_too_long_ends_on_both_sides() -> None:
    """The other side gives up first, as a rule; on a busy machine it may be the caller. Both name who was late."""
    app = build()
    async with linked(app) as other:
        try:
            with deadline.within(0.05):
                answer = await local.call(other, "POST", BASE, "/wait", json={}, where="one")
            told = answer.status, answer.headers.get("x-nemo-gym-failed")
        except DeadlineExceeded as error:
            told = 504, error.where
        async with asyncio.timeout(10):
            await app.state.stopped.wait()

    assert told == (504, "one")


async def test_the_door_keeps_the_time_itself_when_its_caller_does_not() -> None:
    """A caller that hangs must not keep a handler for ever."""
    app = build()
    async with linked(app) as other:
        link = other._choose()
        head = {"call": "one", "method": "POST", "url": BASE, "path": "/wait", "seconds": 0.02}
        answer, body = await link.call(head, b"{}")

    assert app.state.stopped.is_set()
    assert answer["status"] == 504
    assert b"was not done within" in body
    assert ["x-nemo-gym-failed", "one"] in answer["headers"]


async def test_hundreds_at_once_come_back_each_to_its_caller() -> None:
    """They are begun a few at a time, and none is lost or mixed up."""
    async with linked(build()) as app:
        answers = await asyncio.gather(
            *[local.call(app, "POST", BASE, "/add", json={"a": number}) for number in range(300)]
        )
        sums = [(await answer.json())["sum"] for answer in answers]

    assert sums == list(range(300))


async def test_an_instance_that_is_not_there_and_a_cell_that_is_gone_are_told() -> None:
    async with linked(build()) as app:
        unknown = LinkedApp("two", app._choose)
        answer = await local.call(unknown, "POST", BASE, "/add", json={})
        assert answer.status == 404
        waiting = asyncio.create_task(local.call(app, "POST", BASE, "/wait", json={}))
        await asyncio.sleep(0.01)
        app._choose().close()
        with pytest.raises(ServerUnreachable):
            await waiting


async def test_calls_are_counted_before_there_is_a_connection() -> None:
    """Whoever shares calls among cells goes by that; thousands are sent before the first connection is made."""
    door: socket.socket = listen_privately()
    apps = [build(), build()]
    server = await asyncio.get_running_loop().create_unix_server(Door({"one": apps[0]}, "token").protocol, sock=door)
    links = [Link(unix_name(door), "token", f"cell {number}") for number in range(2)]
    chosen: list[Link] = []

    def idlest() -> Link:
        chosen.append(min(links, key=lambda link: link.in_flight))
        return chosen[-1]

    other = LinkedApp("one", idlest)
    await asyncio.gather(*(local.call(other, "POST", BASE, "/add", json={"a": 1}) for _ in range(20)))

    assert [chosen.count(link) for link in links] == [10, 10]
    assert [link.in_flight for link in links] == [0, 0]
    for link in links:
        link.close()
    server.close()
    await asyncio.sleep(0)


async def test_frames_of_one_round_are_written_at_once_and_what_was_sent_before_hanging_up_arrives() -> None:
    arrived: list[tuple[dict[str, Any], bytes]] = []
    ended = asyncio.Event()
    door: socket.socket = listen_privately()
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(
        lambda: FrameProtocol(lambda head, body: arrived.append((head, body)), ended.set), sock=door
    )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    connection.connect(unix_name(door))
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
