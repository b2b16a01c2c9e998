"""Answers are read up to a limit: over the network no further, in memory no differently."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from nemo_gym.net.bounded import AnswerTooLong, read_at_most

MOST = 100_000


@asynccontextmanager
async def served(size: int, *, announced: bool) -> AsyncIterator[tuple[str, list[int]]]:
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
    async with served(MOST, announced=announced) as (url, _), aiohttp.ClientSession() as session:
        reply = await session.get(url)

        assert len(await read_at_most(reply, MOST, where="tools /big")) == MOST


@pytest.mark.parametrize("announced", [True, False])
async def test_a_longer_one_is_named_and_not_fetched(announced: bool) -> None:
    """A hundred megabytes from one tool must not pass through the memory of the server that asked."""
    async with served(100_000_000, announced=announced) as (url, sent), aiohttp.ClientSession() as session:
        reply = await session.get(url)

        with pytest.raises(AnswerTooLong, match="tools /big: the answer is longer than 100,000 bytes"):
            await read_at_most(reply, MOST, where="tools /big")

        assert reply.closed
    assert sent[0] < 100_000_000
