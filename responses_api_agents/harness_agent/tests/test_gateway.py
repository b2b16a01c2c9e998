"""The gateway: what it forwards, what it takes away, and what a hostile program can do to it."""

import asyncio
import gzip
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nemo_gym.transport.http_sessions import close_current_session
from responses_api_agents.harness_agent.gateway import _MAX_HELD_BYTES, Gateway

MCP_HEADERS = {"X-NeMo-Gym-Session-Token": "true"}


@asynccontextmanager
async def gateway_to(answer: Any) -> AsyncIterator[tuple[Gateway, aiohttp.ClientSession]]:
    """Yield a gateway to a server with one handler, and a client session at its socket."""
    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as name:
        await web.SockSite(runner, listener).start()
        port = listener.getsockname()[1]
        gateway = Gateway(f"http://127.0.0.1:{port}", mcp_url=f"http://127.0.0.1:{port}/tools", mcp_headers=MCP_HEADERS)
        path = Path(name, "s")
        await gateway.start(path)
        try:
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
                yield gateway, session
        finally:
            await gateway.close()
            await runner.cleanup()
            await close_current_session()


async def test_a_program_can_set_no_header_that_servers_trust() -> None:
    """A call with the rollout, the deadline or the session of another one must not be believed."""
    seen: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response({})

    forged = {"X-NeMo-Gym-Rollout": "7-7", "x-nemo-gym-deadline": "1e9", "x-nemo-gym-session-token": "forged"}
    async with gateway_to(answer) as (_, session):
        for path in ("/v1/models", "/mcp"):
            await session.post(f"http://gateway{path}", data=b"{}", headers=forged | {"Cookie": "a=b", "x-mine": "1"})

    assert [headers.get("x-nemo-gym-session-token") for headers in seen] == [None, "true"]
    for headers in seen:
        assert headers["x-mine"] == "1"
        assert not {"x-nemo-gym-rollout", "cookie"} & headers.keys()
        assert headers.get("x-nemo-gym-deadline") != "1e9"


async def test_a_compressed_request_arrives_uncompressed_and_says_so() -> None:
    """Some clients compress large requests; the model server must not unpack the body a second time."""
    seen: list[tuple[bytes, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((await request.read(), request.headers.get("content-encoding")))
        return web.json_response({})

    async with gateway_to(answer) as (_, session):
        headers = {"content-encoding": "gzip"}
        await session.post("http://gateway/v1/models", data=gzip.compress(b"{}"), headers=headers)

    assert seen == [(b"{}", None)]


async def test_requests_of_a_program_take_a_bounded_amount_of_memory() -> None:
    """A box can send the same buffer from many connections, and the agent server must survive it."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"bytes": len(await request.read())})

    async with gateway_to(answer) as (gateway, session):
        gateway._held_bytes = _MAX_HELD_BYTES - 10
        statuses = []
        for size in (10, 11):
            reply = await session.post("http://gateway/v1/models", data=b"x" * size)
            statuses.append(reply.status)

    assert statuses == [200, 413]
    assert gateway._held_bytes == _MAX_HELD_BYTES - 10


@pytest.mark.parametrize("text", [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /" + b"a" * 10_000])
async def test_requests_that_are_not_http_leave_no_log(text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A program in a loop must not fill the log of the run."""
    with tempfile.TemporaryDirectory() as name:
        gateway = await Gateway("http://127.0.0.1:1").start(Path(name, "s"))
        reader, writer = await asyncio.open_unix_connection(Path(name, "s"))
        writer.write(text)
        reply = await asyncio.wait_for(reader.readline(), 20)
        writer.close()
        await gateway.close()

    assert reply.startswith(b"HTTP/1.0 400")
    assert not caplog.records
