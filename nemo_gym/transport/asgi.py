"""Between ASGI and calls: the scope of a call, the reply of an app, and a reply written to a connection."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import unquote

from multidict import CIMultiDict
from yarl import URL

from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.transport import deadlines
from nemo_gym.transport.retries import SAFE_METHODS
from nemo_gym.wire.call_reply import Call, Reply

logger = logging.getLogger("nemo_gym.transport")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

CALLER_KEEPS_TIME = "nemo_gym.caller_keeps_time"
"""In a scope: the caller is in this process, and its alarm cancels the app."""


def call_url(call: Call) -> URL:
    return URL(f"{call.base_url}{call.path}")


def request_headers(call: Call) -> CIMultiDict[str]:
    """Return the headers aiohttp would send with a call."""
    headers: CIMultiDict[str] = CIMultiDict(call.headers or {})
    if call.cookies:
        jar: SimpleCookie = SimpleCookie(headers.pop("Cookie", ""))
        for name, value in call.cookies.items():
            jar[name] = value
        headers["Cookie"] = "; ".join(f"{name}={morsel.coded_value}" for name, morsel in jar.items())
    if call.body:
        headers.setdefault("Content-Type", "application/json")
        if isinstance(call.body, bytes):
            headers["Content-Length"] = str(len(call.body))
    elif call.method not in SAFE_METHODS:
        headers["Content-Length"] = "0"
        headers.setdefault("Content-Type", "application/octet-stream")
    return headers


def scope_of(call: Call, *, caller_keeps_time: bool) -> dict[str, Any]:
    """Return the scope uvicorn would make of a call."""
    url, sent = call_url(call), request_headers(call)
    if call.seconds is not None:
        seconds = deadlines.seconds_for_callee(call.seconds) if caller_keeps_time else call.seconds
        sent.setdefault(DEADLINE_HEADER, deadlines.format_seconds(seconds))
    headers = [(name.lower().encode("latin-1"), value.encode("utf-8")) for name, value in sent.items()]
    if "host" not in sent:
        headers.insert(0, (b"host", url.raw_authority.encode("latin-1")))
    if "accept" not in sent:
        headers.append((b"accept", b"*/*"))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": url.scheme,
        "path": unquote(url.raw_path),
        "raw_path": url.raw_path.encode("ascii"),
        "query_string": url.raw_query_string.encode("ascii"),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": (url.host, url.port),
    }
    return {**scope, CALLER_KEEPS_TIME: True} if caller_keeps_time else scope


class _ReplyCollector:
    """The server's side of one request: give the body once, collect the response."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._body_was_read = False
        self._done = asyncio.Event()
        self._chunks: list[bytes] = []
        self._status = 500
        self._headers: list[tuple[str, str]] = []
        self._is_complete = False

    async def receive(self) -> Message:
        if not self._body_was_read:
            self._body_was_read = True
            return {"type": "http.request", "body": self._call.body_bytes(), "more_body": False}
        await self._done.wait()  # a task that listens for disconnects waits until the response is complete
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in message.get("headers", ())]
        elif message["type"] == "http.response.body":
            self._chunks.append(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                self._is_complete = True
                self._done.set()

    async def run(self, app: ASGIApp, scope: MutableMapping[str, Any]) -> Reply:
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            # The boundary of a server: like uvicorn, log and answer 500 unless a response was already complete.
            if not self._is_complete:
                logger.exception("%s %s failed", scope["method"], scope["path"])
        finally:
            self._done.set()
        if not self._is_complete:
            return Reply(500, b"Internal Server Error", headers=[("Content-Type", "text/plain; charset=utf-8")])
        body = b"" if self._call.method == "HEAD" else b"".join(self._chunks)
        return Reply(self._status, body, headers=self._headers)


async def collect_reply(app: ASGIApp, call: Call, scope: MutableMapping[str, Any]) -> Reply:
    """Run an app to the end of its response and return that; an exception becomes a 500, as under uvicorn."""
    return await _ReplyCollector(call).run(app, scope)


async def run_app(app: ASGIApp, call: Call, *, caller_keeps_time: bool) -> Reply:
    """Call an app in a task with an empty context; cancelling the caller cancels it.

    A handler must not see or change the context variables of its caller, because over HTTP it could not.
    """
    work = collect_reply(app, call, scope_of(call, caller_keeps_time=caller_keeps_time))
    return await asyncio.get_running_loop().create_task(work, context=contextvars.Context())


async def write_reply(reply: Reply, send: Send) -> None:
    """Send a reply over a connection."""
    body = reply.body_bytes()
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.header_list()]
    if reply.headers is None and not isinstance(reply.body, bytes):
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive) -> bytes:
    """Read the whole body of a request."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)
