"""A fake provider on loopback for tests of model servers: it records requests and sends faulty replies on request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

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
    events: list[dict[str, Any]] | None = None
    """Stream these events, with their `type` as name, instead of the body."""
    waits_before: int | None = None
    """Wait for `Endpoint.resume` before the event with this number."""

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
        self.resume, self.has_paused, self.was_left = asyncio.Event(), asyncio.Event(), asyncio.Event()

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
        if reply.events is not None:
            return await self._stream(request, reply)
        if not reply.half:
            headers = {"Content-Type": "application/json", **reply.headers}
            return web.Response(body=reply.content, status=reply.status, headers=headers)
        response = web.StreamResponse(status=reply.status, headers={"Content-Length": str(len(reply.content))})
        await response.prepare(request)
        await response.write(reply.content[: len(reply.content) // 2])
        assert request.transport is not None
        request.transport.close()
        return response

    async def _stream(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        """Stream events; if the client leaves, set `was_left`."""
        response = web.StreamResponse(status=reply.status, headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for number, event in enumerate(reply.events or []):
                if number == reply.waits_before:
                    self.has_paused.set()
                    await self.resume.wait()
                await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.was_left.set()
            raise
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
    async with TestServer(app, shutdown_timeout=0.1, handler_cancellation=True) as server:
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


class OpenStream:
    """A client that reads the answer of a server while it is generated; `async with OpenStream(server, path, body)`."""

    def __init__(self, server: SimpleServer, path: str, body: dict[str, Any]) -> None:
        self._app = server.prepare_webserver({})
        self._scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(b"content-type", b"application/json"), (b"host", b"model")], "server": ("model", 80),
            "client": ("127.0.0.1", 1),
        }  # fmt: skip
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": orjson.dumps(body), "more_body": False})
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.status = 0
        self.body = b""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._app(self._scope, self._inbox.get, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})
        async with asyncio.timeout(10):
            await asyncio.wait([self._task])

    async def _send(self, message: dict[str, Any]) -> None:
        self._outbox.put_nowait(message)

    async def read_until(self, text: bytes) -> bytes:
        """Return what was received so far, as soon as it contains `text`."""
        while text not in self.body:
            await self._read()
        return self.body

    async def read_all(self) -> bytes:
        """Return the whole answer."""
        while await self._read():
            pass
        return self.body

    async def _read(self) -> bool:
        async with asyncio.timeout(10):
            message = await self._outbox.get()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return True
        self.body += message.get("body", b"")
        return bool(message.get("more_body", False))
