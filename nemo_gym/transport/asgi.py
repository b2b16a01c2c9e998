"""Conversion between ASGI and `Call`/`Reply`: scope of a call, reply of an app, reply to ASGI messages."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import unquote

from multidict import CIMultiDict
from yarl import URL

from nemo_gym.keys import DEADLINE_HEADER, ROLLOUT_HEADER
from nemo_gym.transport import call_timing, deadlines
from nemo_gym.transport.event_loop import result_or_error
from nemo_gym.transport.retries import SAFE_METHODS
from nemo_gym.wire.call_reply import Call, Reply

logger = logging.getLogger("nemo_gym.transport")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

CALLER_ENFORCES_DEADLINE = "nemo_gym.caller_enforces_deadline"
"""Scope key: the caller is in this process, and its alarm cancels the app at the deadline."""


def call_url(call: Call) -> URL:
    return URL(f"{call.base_url}{call.path}")


def request_headers(call: Call) -> CIMultiDict[str]:
    """Return the headers that aiohttp would send with a call: its own, cookies, type and length of the body."""
    headers: CIMultiDict[str] = CIMultiDict(call.headers or {})
    if call.cookies:
        jar: SimpleCookie = SimpleCookie(headers.pop("Cookie", ""))
        for name, value in call.cookies.items():
            jar[name] = value
        headers["Cookie"] = "; ".join(f"{name}={morsel.coded_value}" for name, morsel in jar.items())
    if call.body:
        headers.setdefault("Content-Type", "application/json")
        if isinstance(call.body, bytes):  # a model has no length before it is encoded
            headers["Content-Length"] = str(len(call.body))
    elif call.method not in SAFE_METHODS:  # aiohttp describes the empty body of a POST, but not that of a GET
        headers["Content-Length"] = "0"
        headers.setdefault("Content-Type", "application/octet-stream")
    return headers


def scope_of(call: Call, *, caller_enforces_deadline: bool) -> dict[str, Any]:
    """Return the ASGI scope that uvicorn would build for a call."""
    url, call_headers = call_url(call), request_headers(call)
    if call.seconds is not None:
        # If the caller has an alarm, the callee must time out before the alarm fires.
        seconds = deadlines.seconds_for_callee(call.seconds) if caller_enforces_deadline else call.seconds
        call_headers.setdefault(DEADLINE_HEADER, deadlines.format_seconds(seconds))
    if call.rollout is not None:
        call_headers.setdefault(ROLLOUT_HEADER, call_timing.format_rollout(call.rollout))
    headers = [(name.lower().encode("latin-1"), value.encode("utf-8")) for name, value in call_headers.items()]
    if "host" not in call_headers:
        headers.insert(0, (b"host", url.raw_authority.encode("latin-1")))
    if "accept" not in call_headers:
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
    return {**scope, CALLER_ENFORCES_DEADLINE: True} if caller_enforces_deadline else scope


class _ReplyCollector:
    """The `receive` and `send` of one ASGI request: `receive` returns the body, `send` collects the response."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._body_was_read = False
        self._done = asyncio.Event()
        self._chunks: list[bytes] = []
        self._status = 500
        self._headers: list[tuple[str, str]] = []
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

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
                body = b"" if self._call.method == "HEAD" else b"".join(self._chunks)
                self._finish(Reply(self._status, body, headers=self._headers))

    def _finish(self, reply: Reply) -> None:
        self._done.set()
        if not self.reply.done():
            self.reply.set_result(reply)

    async def run(self, app: ASGIApp, scope: MutableMapping[str, Any]) -> None:
        """Run the app; like uvicorn, log an exception and answer 500 unless the response was already complete."""
        try:
            result = await result_or_error(app(scope, self.receive, self.send))
            if isinstance(result, BaseException) and not self.reply.done():
                logger.error("%s %s failed", scope["method"], scope["path"], exc_info=result)
        finally:
            headers = [("Content-Type", "text/plain; charset=utf-8")]
            self._finish(Reply(500, b"Internal Server Error", headers=headers))  # ignored after a complete response


_apps_running: set["asyncio.Task[None]"] = set()
"""Tasks of running apps. An app may run after its reply; without a reference its task could be garbage-collected."""


async def collect_reply(
    app: ASGIApp, call: Call, scope: MutableMapping[str, Any], context: contextvars.Context | None = None
) -> Reply:
    """Run an app in a new task and return its complete response. Cancelling this coroutine cancels the app."""
    collector = _ReplyCollector(call)
    task = asyncio.get_running_loop().create_task(collector.run(app, scope), context=context)
    _apps_running.add(task)
    task.add_done_callback(_apps_running.discard)
    try:
        return await collector.reply
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise


async def run_app(app: ASGIApp, call: Call, *, caller_enforces_deadline: bool) -> Reply:
    """Run an app in an empty context: as over HTTP, it cannot read or change the context variables of its caller."""
    scope = scope_of(call, caller_enforces_deadline=caller_enforces_deadline)
    return await collect_reply(app, call, scope, contextvars.Context())


async def write_reply(reply: Reply, send: Send) -> None:
    """Send a reply as ASGI messages."""
    body = reply.body_bytes()
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.header_list()]
    if reply.headers is None and not isinstance(reply.body, bytes):  # `header_list` has the length of bytes only
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_request_body(receive: Receive) -> bytes:
    """Read the whole body of an ASGI request."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)
