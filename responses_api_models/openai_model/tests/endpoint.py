"""A provider on loopback that remembers what it was asked and misbehaves on request; for the tests of model servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.net import local
from nemo_gym.net.local_response import LocalResponse
from nemo_gym.server_utils import SimpleServer


@dataclass
class Said:
    """One answer of the provider."""

    body: Any = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    half: bool = False
    """Hang up in the middle of the body."""
    hang: bool = False
    """Say nothing at all."""

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
    """Answers each path with what `says` it should, in order; the last answer repeats."""

    def __init__(self) -> None:
        self.url = ""
        self.says: dict[str, list[Said]] = {}
        self.calls: list[Call] = []
        self.inside = self.most = 0
        self.together = 1
        """Calls that wait for each other before the first of them is answered."""
        self._arrived = asyncio.Condition()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [call.body for call in self.calls]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.read()
        body = orjson.loads(text) if text else {}
        self.calls.append(Call(request.path, dict(request.query), dict(request.headers), body))
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            async with asyncio.timeout(10), self._arrived:
                self._arrived.notify_all()
                await self._arrived.wait_for(lambda: self.most >= self.together)
            return await self._answer(request)
        finally:
            self.inside -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        answers = self.says.get(request.path) or [Said(b"no such path", 404)]
        said = answers.pop(0) if len(answers) > 1 else answers[0]
        if said.hang:
            await asyncio.Event().wait()
        if not said.half:
            headers = {"Content-Type": "application/json", **said.headers}
            return web.Response(body=said.content, status=said.status, headers=headers)
        response = web.StreamResponse(status=said.status, headers={"Content-Length": str(len(said.content))})
        await response.prepare(request)
        await response.write(said.content[: len(said.content) // 2])
        assert request.transport is not None
        request.transport.close()
        return response


@asynccontextmanager
async def listening(**says: Said | list[Said]) -> AsyncIterator[Endpoint]:
    """An endpoint whose paths are given by name: `responses`, `chat`, `completions`, `tokenize`."""
    here = Endpoint()
    paths = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "completions": "/v1/completions"}
    for name, said in says.items():
        here.says[paths.get(name, f"/{name}")] = said if isinstance(said, list) else [said]
    app = web.Application()
    app.router.add_post("/{path:.*}", here.handle)
    async with TestServer(app, shutdown_timeout=0.1) as server:
        here.url = str(server.make_url("/v1"))
        yield here


def nobody() -> str:
    """An address at which nobody listens."""
    return f"http://127.0.0.1:{unused_port()}/v1"


async def ask(
    server: SimpleServer, path: str, body: dict[str, Any], *, seconds: float = 20.0, cookies: Any = None
) -> LocalResponse:
    """Call a server as its callers do, failures included, giving it so many seconds."""
    app = server.prepare_webserver({})
    headers = {DEADLINE_HEADER: str(seconds)}
    return await local.dispatch(app, "POST", f"http://model{path}", json=body, headers=headers, cookies=cookies)
