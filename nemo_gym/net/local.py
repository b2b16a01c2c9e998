"""Calling a server of this process without a socket, so that nobody can tell the difference.

`mount` says which ASGI app answers at a host and port; `dispatch` calls it the way aiohttp and uvicorn together would
and gives a response with the members of `aiohttp.ClientResponse` that callers use. Two differences remain: the body of
a streaming response arrives when it is complete, and cancelling the call cancels the handler.

An app may know a short way for plain JSON calls (`short_way`); `call` takes it where there is one.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp.client_exceptions import TooManyRedirects
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.errors import DeadlineExceeded, ServerUnreachable
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.net import allowance, deadline, sessions
from nemo_gym.net.allowance import Span
from nemo_gym.net.handed import Handed
from nemo_gym.net.local_request import Cookies, LocalRequest, Sent, is_short, request_with
from nemo_gym.net.local_response import LocalResponse

logger = logging.getLogger("nemo_gym.net")

Message = MutableMapping[str, Any]
ASGIApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
ShortWay = Callable[[Sent, deadline.Alarm], Awaitable[LocalResponse] | None]
"""An app's own way to answer a JSON call; None if this call is not for it. Whoever takes it watches the clock."""

SUPPORTED_OPTIONS = frozenset({"json", "data", "params", "headers", "cookies", "timeout", "allow_redirects"})
"""What `dispatch` understands; a call with other options goes over HTTP."""

MAX_REDIRECTS = 10
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"})

_apps: dict[tuple[str, int], ASGIApp] = {}


def address_key(host: str, port: int) -> tuple[str, int]:
    """One key for all names of an address: those of this machine's loopback reach the same port, hence server."""
    return ("localhost" if host.lower() in _LOOPBACK else host.lower(), port)


def mount(host: str, port: int, app: ASGIApp) -> None:
    """From now on, calls to this address from within the process go straight to `app`."""
    _apps[address_key(host, port)] = app


def unmount(host: str, port: int) -> None:
    _apps.pop(address_key(host, port), None)


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
    return _apps.get(address_key(host, port)) if _apps else None


def app_with_key(key: tuple[str, int]) -> ASGIApp | None:
    """The app mounted at the address with this `address_key`, if any."""
    return _apps.get(key)


async def call(
    app: ASGIApp,
    method: str,
    base_url: str,
    path: str,
    *,
    where: str | None = None,
    span: Span | None = None,
    **options: Any,
) -> LocalResponse:
    """Call `app` in memory, the short way if it knows one for this call. `options` are those of `dispatch`.

    `span` is how long such a call may take, the deadline in force aside.

    Raises:
        DeadlineExceeded: as `dispatch`; by the name that `span` gives it when that was what ended the call.
        ServerUnreachable: the app stands for a server in another process, and that one is gone.
    """
    short_way: ShortWay | None = getattr(app, "short_way", None)
    now = time.monotonic()
    try:
        if short_way is not None and is_short(options):
            outer, ends = deadline.watching(), deadline.moment()
            left = sessions.settings().request_timeout_seconds if ends is None else max(0.0, ends - now)
            if span is not None and span[0] < left:
                left = span[0]
            sent = Sent(method, base_url, path, seconds=left, **options)
            if outer is not None and outer.moment <= now + left:  # somebody watches the clock already
                answering = short_way(sent, outer)
                answer = None if answering is None else await _followed(app, sent, await answering)
            else:
                answer = await _timed(app, short_way, sent, where, outer)
            if answer is not None:
                return answer
        with deadline.within(None if span is None else span[0]):
            return await dispatch(app, method, f"{base_url}{path}", where=where, **options)
    except DeadlineExceeded as late:
        known = allowance.named(late, now, span)
        if known is None:
            raise
        raise known from late


async def _timed(
    app: ASGIApp, short_way: ShortWay, sent: Sent, where: str | None, outer: deadline.Alarm | None
) -> LocalResponse | None:
    """The answer by the short way in the time it may take; None if the call is not for it."""
    try:
        with deadline.Alarm(sent.seconds, outer) as timer:
            answering = short_way(sent, timer)
            if answering is None:
                return None
            answer = await answering
            return answer if answer.status not in REDIRECTS else await _followed(app, sent, answer)
    except TimeoutError as error:
        if not timer.has_rung:
            raise
        raise _too_late(sent.method, sent.url, sent.seconds, timer.blamed or where) from error


async def _followed(app: ASGIApp, sent: Sent, answer: LocalResponse) -> LocalResponse:
    """The answer to a call by the short way, or where it points."""
    if answer.status not in REDIRECTS:
        return answer
    return await _follow(app, sent.request(), True, sent.seconds, answer)


async def dispatch(
    app: ASGIApp,
    method: str,
    url: str | URL,
    *,
    json: Any = None,
    data: Any = None,
    params: Any = None,
    headers: Mapping[str, str] | None = None,
    cookies: Cookies | None = None,
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
    request = await request_with(method, address, headers, cookies, json, data)
    limit = deadline.sooner(deadline.remaining(), timeout)
    if limit is None:
        limit = sessions.settings().request_timeout_seconds
    try:
        with deadline.Alarm(limit) as timer:
            return await _follow(app, request, allow_redirects, limit)
    except TimeoutError as error:
        if not timer.has_rung:
            raise
        raise _too_late(request.method, address, limit, where) from error


def _too_late(method: str, url: URL, limit: float, where: str | None) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{method} {url} was not answered within {limit:.1f} s",
        where=where or f"{url.host}:{url.port}",
        fix="allow more time (request_timeout_seconds or the caller's deadline) or find out why it is slow",
    )


async def _follow(
    app: ASGIApp, request: LocalRequest, allow_redirects: bool, limit: float, first: LocalResponse | None = None
) -> LocalResponse:
    """Call, and follow redirects that stay on the same server the way aiohttp follows them.

    `first` is the answer to the request, if it was made already.
    """
    history: list[LocalResponse] = []
    while True:
        response = first or await _call(app, request, limit)
        first = None
        target = response.headers.get("Location") or response.headers.get("URI")
        if not allow_redirects or response.status not in REDIRECTS or not target:
            response.history = tuple(history)
            return response
        history.append(response)
        if len(history) >= MAX_REDIRECTS:
            raise TooManyRedirects(response.request_info, (), status=response.status)
        next_url = request.url.join(URL(target))
        next_app = local_app(next_url)
        if next_app is None and next_url.origin() != request.url.origin():
            response.history = tuple(history[:-1])
            return response  # leaves this process: the caller decides
        app = next_app or app
        request = request.redirected(response.status, next_url)


async def _call(app: ASGIApp, request: LocalRequest, limit: float) -> LocalResponse:
    left = deadline.sooner(deadline.remaining(), limit)
    request.headers.setdefault(DEADLINE_HEADER, deadline.passed_on(left if left is not None else limit))
    handed = Handed(request.model, is_welcome=getattr(app, "hands_models", False))
    # A task of its own with an empty context: a handler must not see (or change) its caller's context variables,
    # as it would not over HTTP. Cancelling the awaiting caller cancels it.
    handler: Coroutine[Any, Any, LocalResponse] = answered(app, request, request.scope(handed), handed)
    return await asyncio.get_running_loop().create_task(handler, context=contextvars.Context())


async def answered(
    app: ASGIApp, request: LocalRequest, scope: MutableMapping[str, Any], handed: Handed | None = None
) -> LocalResponse:
    """The complete response of `app` to a request, whose scope is given."""
    exchange = _Exchange(request.written)
    await _run(app, scope, exchange)
    if request.method == "HEAD":
        exchange.chunks.clear()
    return LocalResponse(
        status=exchange.status,
        reason=reason_of(exchange.status),
        headers=CIMultiDictProxy(exchange.headers),
        body=b"".join(exchange.chunks),
        model=handed.answer if handed is not None and exchange.status == 200 else None,
        url=request.url,
        method=request.method,
        request_headers=CIMultiDictProxy(request.headers),
    )


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


def reason_of(status: int) -> str:
    """The words that go with a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


__all__ = [
    "SUPPORTED_OPTIONS",
    "LocalResponse",
    "address_key",
    "answered",
    "app_at",
    "app_with_key",
    "call",
    "dispatch",
    "local_app",
    "mount",
    "reason_of",
    "unmount",
]
