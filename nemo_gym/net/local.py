"""Calling a server of this process without a socket, so that nobody can tell the difference.

`mount` says which ASGI app answers at a host and port; `dispatch` calls it the way aiohttp and uvicorn together would
and gives a response with the members of `aiohttp.ClientResponse` that callers use. Two differences remain: the body of
a streaming response arrives when it is complete, and cancelling the call cancels the handler.
"""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import Morsel, SimpleCookie
from typing import Any
from urllib.parse import unquote

from aiohttp import FormData, payload
from aiohttp.client_exceptions import TooManyRedirects
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import BaseModel
from yarl import URL

from nemo_gym.errors import DeadlineExceeded, ServerUnreachable
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.net import deadline, sessions
from nemo_gym.net.client import encode_json
from nemo_gym.net.handed import LOCAL_CALL, Handed
from nemo_gym.net.local_response import LocalResponse
from nemo_gym.net.retry import SAFE_METHODS

logger = logging.getLogger("nemo_gym.net")

Message = MutableMapping[str, Any]
ASGIApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

SUPPORTED_OPTIONS = frozenset({"json", "data", "params", "headers", "cookies", "timeout", "allow_redirects"})
"""What `dispatch` understands; a call with other options goes over HTTP."""

MAX_REDIRECTS = 10
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"})

_apps: dict[tuple[str, int], ASGIApp] = {}


def _address(host: str, port: int) -> tuple[str, int]:
    # All names of this machine's loopback reach the same port, hence the same server.
    return ("localhost" if host.lower() in _LOOPBACK else host.lower(), port)


def mount(host: str, port: int, app: ASGIApp) -> None:
    """From now on, calls to this address from within the process go straight to `app`."""
    _apps[_address(host, port)] = app


def unmount(host: str, port: int) -> None:
    _apps.pop(_address(host, port), None)


def local_app(url: str | URL) -> ASGIApp | None:
    """The app mounted at the URL's address, if any."""
    if not _apps:
        return None
    address = URL(url) if isinstance(url, str) else url
    if address.scheme != "http" or address.host is None or address.port is None:
        return None
    return app_at(address.host, address.port)


def app_at(host: str, port: int) -> ASGIApp | None:
    """The app mounted at an address, if any."""
    return _apps.get(_address(host, port)) if _apps else None


async def dispatch(
    app: ASGIApp,
    method: str,
    url: str | URL,
    *,
    json: Any = None,
    data: Any = None,
    params: Any = None,
    headers: Mapping[str, str] | None = None,
    cookies: Mapping[str, str | Morsel[str]] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - aiohttp's name for it
    allow_redirects: bool = True,
    where: str | None = None,
) -> LocalResponse:
    """Call `app` in memory and return its complete response.

    Raises:
        DeadlineExceeded: neither the deadline in force nor `timeout` allows more waiting; the handler is cancelled.
        TooManyRedirects: as aiohttp.
    """
    address = URL(url) if isinstance(url, str) else url
    if params:
        address = address.extend_query(params)
    call = _Request(method.upper(), address, _request_headers(headers, cookies), b"")
    await _set_body(call, json, data)
    limit = deadline.sooner(deadline.remaining(), timeout)
    if limit is None:
        limit = sessions.settings().request_timeout_seconds
    try:
        async with asyncio.timeout(limit) as timer:
            return await _follow(app, call, allow_redirects, limit)
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise DeadlineExceeded(
            f"{call.method} {address} was not answered within {limit:.1f} s",
            where=where or f"{address.host}:{address.port}",
            fix="allow more time (request_timeout_seconds or the caller's deadline) or find out why it is slow",
        ) from error


@dataclass
class _Request:
    method: str
    url: URL
    headers: CIMultiDict[str]
    body: bytes
    model: BaseModel | None = None
    """The body before it is written; `body` is empty then."""

    def written(self) -> bytes:
        return self.body if self.model is None else encode_json(self.model.model_dump(exclude_unset=True))


def _request_headers(
    headers: Mapping[str, str] | None, cookies: Mapping[str, str | Morsel[str]] | None
) -> CIMultiDict[str]:
    sent: CIMultiDict[str] = CIMultiDict(headers or {})
    if cookies:
        jar: SimpleCookie = SimpleCookie(sent.pop("Cookie", ""))
        for name, value in cookies.items():
            jar[name] = value
        sent["Cookie"] = "; ".join(f"{name}={morsel.coded_value}" for name, morsel in jar.items())
    return sent


async def _set_body(call: _Request, json: Any, data: Any) -> None:
    """Put the body and the headers that describe it on the request, as aiohttp does."""
    if json is not None:
        if data is not None:
            raise ValueError("data and json parameters can not be used at the same time")
        call.headers.setdefault("Content-Type", "application/json")
        if isinstance(json, BaseModel):
            call.model = json
            return
        call.body = json if isinstance(json, bytes) else encode_json(json)
    elif data is not None:
        call.body, content_type = await _encoded(data)
        call.headers.setdefault("Content-Type", content_type)
    if call.body or call.method not in SAFE_METHODS:
        call.headers["Content-Length"] = str(len(call.body))
        call.headers.setdefault("Content-Type", "application/octet-stream")


async def _encoded(data: Any) -> tuple[bytes, str]:
    if isinstance(data, bytes):
        return data, "application/octet-stream"
    try:
        encoded = payload.PAYLOAD_REGISTRY.get(data() if isinstance(data, FormData) else data, disposition=None)
    except payload.LookupError:
        encoded = FormData(data)()
    return await encoded.as_bytes(), encoded.headers.get("Content-Type", "application/octet-stream")


async def _follow(app: ASGIApp, call: _Request, allow_redirects: bool, limit: float) -> LocalResponse:
    """Call, and follow redirects that stay on the same server the way aiohttp follows them."""
    history: list[LocalResponse] = []
    while True:
        response = await _call(app, call, limit)
        target = response.headers.get("Location") or response.headers.get("URI")
        if not allow_redirects or response.status not in (301, 302, 303, 307, 308) or not target:
            response.history = tuple(history)
            return response
        history.append(response)
        if len(history) >= MAX_REDIRECTS:
            raise TooManyRedirects(response.request_info, (), status=response.status)
        next_url = call.url.join(URL(target))
        next_app = local_app(next_url)
        if next_app is None and next_url.origin() != call.url.origin():
            response.history = tuple(history[:-1])
            return response  # leaves this process: the caller decides
        app = next_app or app
        call = _redirected(call, response.status, next_url)


def _redirected(call: _Request, status: int, url: URL) -> _Request:
    becomes_get = (status == 303 and call.method != "HEAD") or (status in (301, 302) and call.method == "POST")
    headers = call.headers.copy()
    if not becomes_get:
        return _Request(call.method, url, headers, call.body, call.model)
    for name in ("Content-Length", "Content-Type"):
        headers.pop(name, None)
    return _Request("GET", url, headers, b"")


@dataclass
class _Exchange:
    """The server's side of one request: gives the body once, collects the response."""

    written: Callable[[], bytes]
    given: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0
    headers: CIMultiDict[str] = field(default_factory=CIMultiDict)
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False

    async def receive(self) -> Message:
        if not self.given:
            self.given = True
            return {"type": "http.request", "body": self.written(), "more_body": False}
        await self.done.wait()  # a listener for disconnects waits until the response is complete
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message.get("headers", ()):
                self.headers.add(name.decode("latin-1"), value.decode("latin-1"))
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if body:
                self.chunks.append(bytes(body))
            if not message.get("more_body", False):
                self.complete = True
                self.done.set()


async def _call(app: ASGIApp, call: _Request, limit: float) -> LocalResponse:
    left = deadline.sooner(deadline.remaining(), limit)
    call.headers.setdefault(DEADLINE_HEADER, deadline.format_seconds(left if left is not None else limit))
    exchange = _Exchange(call.written)
    handed = Handed(call.model, is_welcome=getattr(app, "hands_models", False))
    # A task of its own with an empty context: a handler must not see (or change) its caller's context variables,
    # as it would not over HTTP. Cancelling the awaiting caller cancels it.
    handler = asyncio.get_running_loop().create_task(
        _run(app, _scope(call, handed), exchange), context=contextvars.Context()
    )
    await handler
    if call.method == "HEAD":
        exchange.chunks.clear()
    return LocalResponse(
        status=exchange.status,
        reason=_reason(exchange.status),
        headers=CIMultiDictProxy(exchange.headers),
        body=b"".join(exchange.chunks),
        model=handed.answer if exchange.status == 200 else None,
        url=call.url,
        method=call.method,
        request_headers=CIMultiDictProxy(call.headers),
    )


async def _run(app: ASGIApp, scope: MutableMapping[str, Any], exchange: _Exchange) -> None:
    """Run the app to the end of its response; what it raises becomes what uvicorn would make of it."""
    try:
        await app(scope, exchange.receive, exchange.send)
    except ServerUnreachable:
        raise  # the app stands for a server elsewhere, and that one is gone
    except Exception:
        # The boundary of a server: like uvicorn, log and answer 500 unless an answer was already given.
        if not exchange.complete:
            logger.exception("%s %s failed", scope["method"], scope["path"])
    finally:
        exchange.done.set()
    if not exchange.complete:
        exchange.status = 500
        exchange.headers = CIMultiDict({"Content-Type": "text/plain; charset=utf-8"})
        exchange.chunks = [b"Internal Server Error"]


def _scope(call: _Request, handed: Handed) -> dict[str, Any]:
    raw_path = call.url.raw_path
    host = call.url.raw_authority
    names = {name.lower() for name in call.headers}
    headers = [(name.lower().encode("latin-1"), value.encode("utf-8")) for name, value in call.headers.items()]
    if "host" not in names:
        headers.insert(0, (b"host", host.encode("latin-1")))
    if "accept" not in names:
        headers.append((b"accept", b"*/*"))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": call.url.scheme,
        "path": unquote(raw_path),
        "raw_path": raw_path.encode("ascii"),
        "query_string": call.url.raw_query_string.encode("ascii"),
        "root_path": "",
        "headers": headers,
        LOCAL_CALL: handed,
        "client": ("127.0.0.1", 0),
        "server": (call.url.host, call.url.port),
    }


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


__all__ = ["SUPPORTED_OPTIONS", "LocalResponse", "app_at", "dispatch", "local_app", "mount", "unmount"]
