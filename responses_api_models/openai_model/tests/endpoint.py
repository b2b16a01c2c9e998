"""A fake provider on loopback for tests of model servers: it records requests and sends faulty replies on request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.server_utils import SimpleServer
from nemo_gym.transport import in_process
from nemo_gym.transport.client_response import LocalResponse


@dataclass
class Reply:
    """One reply of the provider."""

    body: Any = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    half: bool = False
    """Close the connection in the middle of the body."""
    hang: bool = False
    """Never reply."""

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else orjson.dumps(self.body)


@dataclass
class Call:
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]


class Endpoint:
    """Sends the replies of each path in order; the last one repeats."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: dict[str, list[Reply]] = {}
        self.calls: list[Call] = []
        self.running = self.most = 0
        self.together = 1
        """Number of calls that must arrive before the first one is answered."""
        self._arrived = asyncio.Condition()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [call.body for call in self.calls]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.read()
        body = orjson.loads(text) if text else {}
        self.calls.append(Call(request.path, dict(request.query), dict(request.headers), body))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with asyncio.timeout(10), self._arrived:
                self._arrived.notify_all()
                await self._arrived.wait_for(lambda: self.most >= self.together)
            return await self._reply(request)
        finally:
            self.running -= 1

    async def _reply(self, request: web.Request) -> web.StreamResponse:
        queue = self.replies.get(request.path) or [Reply(b"no such path", 404)]
        reply = queue.pop(0) if len(queue) > 1 else queue[0]
        if reply.hang:
            await asyncio.Event().wait()
        if not reply.half:
            headers = {"Content-Type": "application/json", **reply.headers}
            return web.Response(body=reply.content, status=reply.status, headers=headers)
        response = web.StreamResponse(status=reply.status, headers={"Content-Length": str(len(reply.content))})
        await response.prepare(request)
        await response.write(reply.content[: len(reply.content) // 2])
        assert request.transport is not None
        request.transport.close()
        return response


@asynccontextmanager
async def listening(**replies: Reply | list[Reply]) -> AsyncIterator[Endpoint]:
    """Run an endpoint with replies by path name: `responses`, `chat`, `completions`, `tokenize`."""
    endpoint = Endpoint()
    paths = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "completions": "/v1/completions"}
    for name, reply in replies.items():
        endpoint.replies[paths.get(name, f"/{name}")] = reply if isinstance(reply, list) else [reply]
    app = web.Application()
    app.router.add_post("/{path:.*}", endpoint.handle)
    async with TestServer(app, shutdown_timeout=0.1) as server:
        endpoint.url = str(server.make_url("/v1"))
        yield endpoint


def unused_url() -> str:
    """Return the URL of a port without a listener."""
    return f"http://127.0.0.1:{unused_port()}/v1"


async def ask(
    server: SimpleServer, path: str, body: dict[str, Any], *, seconds: float = 20.0, cookies: Any = None
) -> LocalResponse:
    """Call a server in process with a deadline; failures become replies, as for any caller."""
    app = server.prepare_webserver({})
    headers = {DEADLINE_HEADER: str(seconds)}
    return await in_process.dispatch(app, "POST", f"http://model{path}", json=body, headers=headers, cookies=cookies)
