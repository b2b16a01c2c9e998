"""The in-process carrier: call a server of this process without a socket, with the same result as over HTTP.

`mount` registers the app for a host and port. An app with a `handle` method (`GymApp`, and `RemoteInstance` of
`cell_link`) receives the `Call`; any other app is run through ASGI, as uvicorn would run it. Two differences from HTTP
remain: a streaming response is returned when it is complete, and cancelling the call cancels the handler.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from aiohttp import FormData, payload
from aiohttp.client_exceptions import TooManyRedirects
from yarl import URL

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.transport import deadlines, http_sessions
from nemo_gym.transport.asgi import ASGIApp, call_url, run_app
from nemo_gym.transport.client_response import LocalResponse
from nemo_gym.transport.response_errors import name_failed_server
from nemo_gym.transport.run_token import address_key
from nemo_gym.wire.call_reply import REDIRECT_STATUSES, Call, Cookies, Reply, json_body
from nemo_gym.wire.stored_rollout import RolloutId

Handle = Callable[[Call, deadlines.Alarm | None], Awaitable[Reply]]
"""Function that answers a call. With an alarm the caller enforces the deadline, without one the callee does."""

SUPPORTED_OPTIONS = frozenset({"json", "data", "params", "headers", "cookies", "timeout", "allow_redirects"})
"""Request options of aiohttp that this carrier supports; a call with other options is sent over HTTP."""

MAX_REDIRECTS = 10

AddressKey = tuple[str, int]

_apps: dict[AddressKey, ASGIApp] = {}
_linked_apps: dict[AddressKey, tuple[asyncio.AbstractEventLoop, ASGIApp]] = {}


def mount(host: str, port: int, app: ASGIApp) -> None:
    """Register `app` for an address: calls of this process to the address are answered by `app`."""
    _apps[address_key(host, port)] = app


def mount_on_loop(host: str, port: int, app: ASGIApp) -> None:
    """Register `app` for calls that are made on the running event loop; calls of other loops use HTTP."""
    _linked_apps[address_key(host, port)] = (asyncio.get_running_loop(), app)


def unmount(host: str, port: int) -> None:
    key = address_key(host, port)
    _apps.pop(key, None)
    _linked_apps.pop(key, None)


def app_for_url(url: str | URL) -> ASGIApp | None:
    """Return the app mounted at the address of `url`; None without one."""
    if not _apps and not _linked_apps:
        return None
    address = URL(url) if isinstance(url, str) else url
    if address.scheme != "http" or address.host is None or address.port is None:
        return None
    return app_for_key(address_key(address.host, address.port))


def app_for_key(key: AddressKey) -> ASGIApp | None:
    """Return the app mounted under an `address_key`, for calls on the running loop; None without one."""
    app = _apps.get(key)
    if app is not None or not _linked_apps:
        return app
    loop, linked_app = _linked_apps.get(key, (None, None))
    return linked_app if loop is not None and loop is asyncio.get_running_loop() else None


def answer_call(app: ASGIApp, call: Call, alarm: deadlines.Alarm | None = None) -> Awaitable[Reply]:
    """Return the reply of an app to a call: from its `handle` method, or through ASGI if it has no such method."""
    handle: Handle | None = getattr(app, "handle", None)
    if handle is not None:
        return handle(call, alarm)
    return run_app(app, call, caller_enforces_deadline=alarm is not None)


async def request(
    app: ASGIApp,
    method: str,
    base_url: str,
    path: str,
    *,
    json: Any = None,
    data: Any = None,
    params: Any = None,
    headers: Mapping[str, str] | None = None,
    cookies: Cookies | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - aiohttp's name
    allow_redirects: bool = True,
    callee: str | None = None,
    limit: float | None = None,
    rollout: RolloutId | None = None,
) -> LocalResponse:
    """Call `app` and return its complete response. Arguments up to `allow_redirects` are request options of aiohttp.

    `callee` is the name of the server in errors; `limit` is the timeout of the rollout for this kind of call.

    Raises:
        DeadlineExceeded: the deadline, `limit` or `timeout` passed; the handler was cancelled.
        ServerUnreachable: the app is a `RemoteInstance`, and its process exited.
        TooManyRedirects: the server answered with `MAX_REDIRECTS` redirects in a row.
    """
    if params:
        path = URL(f"{base_url}{path}").extend_query(params).raw_path_qs
    body = json_body(json)
    if data is not None:
        if json is not None:
            raise ValueError("data and json parameters can not be used at the same time")
        body, content_type = await _encode_data(data)
        if not any(name.lower() == "content-type" for name in headers or ()):
            headers = {**(headers or {}), "Content-Type": content_type}
    now = time.monotonic()
    moment = deadlines.deadline_moment()
    if moment is None:
        moment = now + http_sessions.settings().request_timeout_seconds
    if limit is not None and now + limit < moment:
        moment = now + limit
    if timeout is not None and now + timeout < moment:
        moment = now + timeout
    left = max(0.0, moment - now)
    call = Call(method.upper(), base_url, path, body, headers, cookies, callee, rollout, left)
    handle: Handle = getattr(app, "handle", None) or partial(answer_call, app)
    outer = deadlines.current_alarm()
    if outer is not None and outer.moment <= moment:  # the alarm of an enclosing call fires early enough
        response = LocalResponse(call, await handle(call, outer))
        is_final = response.status not in REDIRECT_STATUSES or not allow_redirects
        return response if is_final else await _follow_redirects(app, call, outer, response)
    try:
        with deadlines.Alarm(left, outer) as alarm:
            response = LocalResponse(call, await handle(call, alarm))
            is_final = response.status not in REDIRECT_STATUSES or not allow_redirects
            return response if is_final else await _follow_redirects(app, call, alarm, response)
    except TimeoutError as error:
        if not alarm.has_fired:
            raise
        raise _deadline_exceeded(call, alarm.awaited_server) from error


async def dispatch(app: ASGIApp, method: str, url: str | URL, **options: Any) -> LocalResponse:
    """Call `app` with a complete URL; `options` are those of `request`."""
    address = URL(url) if isinstance(url, str) else url
    return await request(app, method, str(address.origin()), address.raw_path_qs, **options)


async def _encode_data(data: Any) -> tuple[bytes, str]:
    """Encode the option `data` as aiohttp does; return the body and its content type."""
    if isinstance(data, bytes):
        return data, "application/octet-stream"
    try:
        encoded = payload.PAYLOAD_REGISTRY.get(data() if isinstance(data, FormData) else data, disposition=None)
    except payload.LookupError:
        encoded = FormData(data)()
    return await encoded.as_bytes(), encoded.headers.get("Content-Type", "application/octet-stream")


async def _follow_redirects(app: ASGIApp, call: Call, alarm: deadlines.Alarm, response: LocalResponse) -> LocalResponse:
    """Follow redirects to apps of this process by the rules of aiohttp; return a redirect to any other address."""
    history: list[LocalResponse] = []
    while response.status in REDIRECT_STATUSES:
        target = response.headers.get("Location") or response.headers.get("URI")
        if not target:
            break
        history.append(response)
        if len(history) >= MAX_REDIRECTS:
            error = TooManyRedirects(response.request_info, (), status=response.status)
            if call.server:
                name_failed_server(error, call.server, call.path)
            raise error
        url = call_url(call).join(URL(target))
        next_app = app_for_url(url)
        if next_app is None and url.origin() != call_url(call).origin():
            history.pop()
            break  # the target is outside this process
        app, call = next_app or app, _redirected_call(call, response.status, url)
        response = LocalResponse(call, await answer_call(app, call, alarm))
    response.history = tuple(history)
    return response


def _redirected_call(call: Call, status: int, url: URL) -> Call:
    """Return the call that follows a redirect: 303, and 301 or 302 after POST, become GET."""
    becomes_get = (status == 303 and call.method != "HEAD") or (status in (301, 302) and call.method == "POST")
    headers = call.headers
    if becomes_get and headers:
        headers = {n: v for n, v in headers.items() if n.lower() not in ("content-length", "content-type")}
    return Call(
        "GET" if becomes_get else call.method,
        str(url.origin()),
        url.raw_path_qs,
        body=b"" if becomes_get else call.body,
        headers=headers,
        cookies=call.cookies,
        server=call.server,
        rollout=call.rollout,
        seconds=call.seconds,
    )


def _deadline_exceeded(call: Call, awaited_server: str | None) -> DeadlineExceeded:
    """Return the error for a call whose deadline passed; it names the innermost server that was waited for."""
    url = call_url(call)
    return DeadlineExceeded(
        f"{call.method} {url} was not answered within {call.seconds:.1f} s",
        where=awaited_server or call.server or f"{url.host}:{url.port}",
        fix="allow more time (request_timeout_seconds or the caller's deadline) or find out why it is slow",
    )
