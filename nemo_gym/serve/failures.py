"""Failed requests: the error answer, the server it is attributed to, and the end of requests past their deadline."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from traceback import format_exception

import orjson
from aiohttp import ClientResponseError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.config.secrets import mask_text
from nemo_gym.errors import DeadlineExceeded, GymError
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.serve.blocked_loop import handlers_by_task
from nemo_gym.transport import deadlines
from nemo_gym.transport.asgi import CALLER_KEEPS_TIME
from nemo_gym.transport.call_log import phase_headers
from nemo_gym.transport.client_response import ERROR_HEADER, FAILED_HEADER, FAILED_PATH_HEADER, UPSTREAM_STATUS_HEADER

logger = logging.getLogger("nemo_gym.serve")

ATTRIBUTION_HEADERS = (FAILED_HEADER, FAILED_PATH_HEADER, ERROR_HEADER, UPSTREAM_STATUS_HEADER)
"""Headers of an error answer that every server passes on unchanged."""

_FAILED = FAILED_HEADER.encode("ascii")
_FAILED_PATH = FAILED_PATH_HEADER.encode("ascii")
_DEADLINE = DEADLINE_HEADER.encode("ascii")
_ALLOWANCE = deadlines.ALLOWANCE_HEADER.encode("ascii")

MAX_INNER_CONTENT = 64 * 1024
"""Bytes of a failed callee's body that are passed on."""


class FailureMiddleware:
    """Turn exceptions into JSON answers: 500 with the answer of a failed callee, 504 for a passed deadline.

    The headers of every error answer name the server that failed first, so that callers need not guess. Cancellation
    is not a failure and passes through. `redact` removes secrets from the text.
    """

    LAYER = "failures"

    def __init__(self, app: ASGIApp, server_name: str = "", redact: Callable[[str], str] = mask_text) -> None:
        self.app = app
        self.server_name = server_name
        self.redact = redact

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def attributing_send(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                if message["status"] >= 400:
                    message = {
                        **message,
                        "headers": _attributed_headers(message.get("headers", ()), self.server_name, scope["path"]),
                    }
            await send(message)

        task = asyncio.current_task()
        outer = handlers_by_task.get(task)
        handlers_by_task[task] = (self.server_name, scope["method"], scope["path"])
        try:
            await self.app(scope, receive, attributing_send)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # the boundary of a server; also stops `sys.exit` in a verifier
            status, text = self._answer(scope, error)
            if has_started:  # too late for another status: break the connection so that the caller notices
                raise
            headers = attribution_headers(error, self.server_name, scope["path"]) | phase_headers(error)
            await _send_json_text(send, status, self.redact(text), headers)
        finally:
            if outer is None:
                handlers_by_task.pop(task, None)
            else:
                handlers_by_task[task] = outer

    def _answer(self, scope: Scope, error: BaseException) -> tuple[int, str]:
        """Log an exception and return the status and text of its answer."""
        server = self.server_name or "this server"
        request = f"{scope['method']} {scope['path']}"
        if isinstance(error, ClientResponseError) and hasattr(error, "response_content"):
            inner = _inner_text(error.response_content)
            # Not its repr: that shows the headers of the request, cookies and keys among them.
            problem = f"{error.request_info.real_url} answered {error.status}: {inner[:2000]}"
            logger.error("%s: %s failed: %s", server, request, self._for_log(problem))
            return 500, f"Hit an exception in {server} calling an inner server: {inner}"
        if isinstance(error, DeadlineExceeded):
            logger.error("%s: %s: %s", server, request, self._for_log(str(error)))
            return 504, str(error)
        if not isinstance(error, Exception):
            logger.error("%s: %s ended by %s", server, request, type(error).__name__)
            return 500, f"An unknown error occurred in {server}: {type(error).__name__}"
        logger.error("%s: %s failed\n%s", server, request, self._for_log("".join(format_exception(error))))
        return 500, f"{type(error).__name__}({str(error)!r})" if isinstance(error, GymError) else repr(error)

    def _for_log(self, text: str) -> str:
        """Remove secrets from `text`, and lone surrogates, which no log file can hold."""
        return self.redact(text).encode("utf-8", "backslashreplace").decode("utf-8")


def attribution_headers(error: BaseException, server_name: str, path: str = "") -> dict[str, str]:
    """Return the headers that attribute a failure: server, path, exception class, status of a provider."""
    if isinstance(error, ClientResponseError):
        received: Mapping[str, str] = error.headers or {}
        if received.get(FAILED_HEADER):
            passed_on = {name: received[name] for name in ATTRIBUTION_HEADERS if received.get(name)}
            return {UPSTREAM_STATUS_HEADER: str(error.status), **passed_on}  # keep the first status of all
        return {FAILED_HEADER: server_name, FAILED_PATH_HEADER: path, UPSTREAM_STATUS_HEADER: str(error.status)}
    where = error.where if isinstance(error, GymError) else None
    at = {} if where and where != server_name else {FAILED_PATH_HEADER: path}  # the path at another server is unknown
    return {FAILED_HEADER: where or server_name, **at, ERROR_HEADER: type(error).__name__}


def _attributed_headers(
    headers: Iterable[tuple[bytes, bytes]], server_name: str, path: str
) -> list[tuple[bytes, bytes]]:
    """Add this server and the path to the headers of an error answer, unless they name a server already."""
    plain_headers = list(headers)
    if any(name == _FAILED for name, _ in plain_headers) or not server_name:
        return plain_headers
    return [*plain_headers, (_FAILED, _header_value(server_name)), (_FAILED_PATH, _header_value(path))]


def _header_value(text: str) -> bytes:
    return "".join(char if char.isprintable() else " " for char in text).encode("latin-1", errors="replace")


def _inner_text(content: object) -> str:
    if isinstance(content, bytes | bytearray):
        return bytes(content[:MAX_INNER_CONTENT]).decode("utf-8", errors="replace")
    return str(content)[:MAX_INNER_CONTENT]


async def _send_json_text(send: Send, status: int, text: str, extra: Mapping[str, str]) -> None:
    body = orjson.dumps(text.encode("utf-8", errors="replace").decode("utf-8"))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    headers += [(name.encode("ascii"), _header_value(value)) for name, value in extra.items() if value]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class DeadlineMiddleware:
    """Serve a request only as long as its caller waits for it, and keep its deadline and allowance for its own calls.

    When the time is over the handler is cancelled and `DeadlineExceeded` raised.
    """

    LAYER = "deadline"

    def __init__(self, app: ASGIApp, server_name: str = "") -> None:
        self.app = app
        self.server_name = server_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        seconds = deadlines.parse_seconds(headers.get(_DEADLINE))
        if seconds is None:
            await self.app(scope, receive, send)
            return
        with deadlines.using_allowance(deadlines.parse_allowance(headers.get(_ALLOWANCE))):
            await self._serve(seconds, scope, receive, send)

    async def _serve(self, seconds: float, scope: Scope, receive: Receive, send: Send) -> None:
        if CALLER_KEEPS_TIME in scope:
            with deadlines.time_limit(seconds):
                await self.app(scope, receive, send)
            return
        try:
            with deadlines.DeadlineAlarm(seconds) as alarm:
                await self.app(scope, receive, send)
        except TimeoutError as error:
            if not alarm.has_rung:
                raise
            raise DeadlineExceeded(
                f"{scope['method']} {scope['path']} was not done within the {seconds:.1f} s its caller allowed",
                where=self.server_name or None,
            ) from error
