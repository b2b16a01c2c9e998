"""Reading responses: JSON, errors that keep the answer, bodies up to a limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import aiohttp
import pytest
from aiohttp import web

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.transport.client_response import get_response_json, raise_for_status, read_at_most
from nemo_gym.transport.http import send
from nemo_gym.transport.large_bodies import ResponseTooLong


def reads(value):
    async def read():
        return value

    return read


STAND_INS = {
    "only read()": SimpleNamespace(read=reads(b'{"a": 1}')),
    "only json()": SimpleNamespace(json=reads({"a": 1})),
    "json() that is not a coroutine": SimpleNamespace(json=lambda: {"a": 1}),
    "only content.read()": SimpleNamespace(content=SimpleNamespace(read=reads(b'{"a": 1}'))),
    "a mock with json": MagicMock(json=AsyncMock(return_value={"a": 1})),
    "a mock with read": MagicMock(read=AsyncMock(return_value=b'{"a": 1}')),
    "an async mock with text": AsyncMock(read=AsyncMock(return_value='{"a": 1}')),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("response", STAND_INS.values(), ids=STAND_INS.keys())
async def test_json_is_found_in_any_stand_in(response):
    """160 test files mock the client in about as many ways."""
    assert await get_response_json(response) == {"a": 1}
    await raise_for_status(response)


@pytest.mark.asyncio
async def test_an_error_keeps_what_the_server_said(scripted_server, say):
    """The text of a failed call is all a person has to find out why."""
    async with scripted_server(say(500, b'"out of memory"')) as server:
        response = await send("GET", server.url)

        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await raise_for_status(response)

    assert caught.value.status == 500
    assert caught.value.response_content == b'"out of memory"'


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "response",
    [
        SimpleNamespace(status=418, read=reads(b"tea")),
        MagicMock(ok=False, status=418, read=AsyncMock(return_value=b"tea")),
        SimpleNamespace(ok=False, status=418, content=SimpleNamespace(read=reads(b"tea"))),
    ],
)
async def test_a_stand_in_with_a_bad_status_raises_too(response):
    """Tests of server folders use such objects to check how errors are handled."""
    with pytest.raises(aiohttp.ClientResponseError) as caught:
        await raise_for_status(response)

    assert (caught.value.status, caught.value.response_content) == (418, b"tea")


@pytest.mark.asyncio
async def test_a_body_that_stops_half_way_ends_with_the_deadline(scripted_server):
    """The deadline covers the body, not only the headers."""
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
    async with scripted_server(half) as server:
        response = await send("GET", server.url, timeout=1)

        with pytest.raises(DeadlineExceeded, match="did not end in time"):
            await get_response_json(response)


@pytest.mark.asyncio
async def test_a_stand_in_without_any_body_is_a_clear_mistake():
    """The author of a test must learn what the mock lacks."""
    with pytest.raises(TypeError, match="no JSON body"):
        await get_response_json(MagicMock())


MOST = 100_000


@asynccontextmanager
async def serve_bytes(size: int, *, announced: bool) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that sends `size` bytes, with or without saying so, and notes how many it could send."""
    sent = [0]

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if announced:
            response.content_length = size
        await response.prepare(request)
        while sent[0] < size:
            piece = b"x" * min(50_000, size - sent[0])
            await response.write(piece)
            sent[0] += len(piece)
            await asyncio.sleep(0)
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/", sent
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("announced", [True, False])
async def test_an_answer_at_the_limit_is_read_whole(announced: bool) -> None:
    """An off-by-one would refuse or cut a valid answer."""
    async with serve_bytes(MOST, announced=announced) as (url, _), aiohttp.ClientSession() as session:
        reply = await session.get(url)

        assert len(await read_at_most(reply, MOST, callee="tools /big")) == MOST


@pytest.mark.parametrize("announced", [True, False])
async def test_a_longer_one_is_named_and_not_fetched(announced: bool) -> None:
    """A hundred megabytes from one tool must not pass through the memory of the server that asked."""
    async with serve_bytes(100_000_000, announced=announced) as (url, sent), aiohttp.ClientSession() as session:
        reply = await session.get(url)

        with pytest.raises(ResponseTooLong, match="tools /big: the answer is longer than 100,000 bytes"):
            await read_at_most(reply, MOST, callee="tools /big")

        assert reply.closed
    assert sent[0] < 100_000_000
