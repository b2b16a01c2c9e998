"""Error answers of servers: exceptions as JSON, attribution headers, and cancellation of requests at their deadline."""

import logging
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb, format_exception
from typing import Any

import orjson
from aiohttp import ClientResponseError, TooManyRedirects
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.config.secret_text import mask_text
from nemo_gym.errors import (
    ConversionError,
    DeadlineExceeded,
    GymError,
    InvalidReply,
    ModelFailed,
    ServerUnreachable,
    SessionLost,
    UnsupportedRequest,
)
from nemo_gym.keys import DEADLINE_HEADER, ROLLOUT_HEADER
from nemo_gym.serve.process_status import handler_label, handler_name, own_status, run_handler
from nemo_gym.serve.repeated_failures import FailureLog
from nemo_gym.transport import deadlines, reply_log
from nemo_gym.transport.asgi import CALLER_ENFORCES_DEADLINE
from nemo_gym.transport.call_timing import current_rollout, parse_rollout, phase_headers, set_current_rollout
from nemo_gym.transport.error_causes import innermost_cause
from nemo_gym.transport.event_loop import result_or_error
from nemo_gym.transport.response_errors import (
    ERROR_HEADER,
    FAILED_HEADER,
    FAILED_PATH_HEADER,
    RAISED_AT_HEADER,
    UPSTREAM_STATUS_HEADER,
)

logger = logging.getLogger("nemo_gym.serve")

ATTRIBUTION_HEADERS = (FAILED_HEADER, FAILED_PATH_HEADER, ERROR_HEADER, UPSTREAM_STATUS_HEADER, RAISED_AT_HEADER)
"""Headers of an error answer that every server in a chain of calls copies unchanged."""

_FAILED = FAILED_HEADER.encode("ascii")
_FAILED_PATH = FAILED_PATH_HEADER.encode("ascii")
_DEADLINE = DEADLINE_HEADER.encode("ascii")
_ROLLOUT = ROLLOUT_HEADER.encode("ascii")
_ALLOWANCE = deadlines.ALLOWANCE_HEADER.encode("ascii")

_PACKAGES = re.compile(r"[/\\](?:site-packages|nemo_gym|lib/python[\d.]+)[/\\]|^<")
"""Paths of code that is not the server's own."""
_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_HEADERS = re.compile(rb"[\x00-\x08\n-\x1f\x7f]")

MAX_INNER_CONTENT = 64 * 1024
_CUT_MARGIN = 8 * 1024
"""Characters next to a cut that are searched for secrets and left out: more than the longest secret."""
"""Maximum bytes of a callee's error body that are copied into the answer."""


class HandlerExit(Exception):
    """A handler raised `SystemExit` or `KeyboardInterrupt`, the cause of this exception."""


class ExitGuard:
    """ASGI app around the router: raises `HandlerExit` for exceptions that would end the event loop from a new task.

    Some middleware and all streaming responses run handlers in new tasks.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except (SystemExit, KeyboardInterrupt) as error:
            raise HandlerExit from error


async def _next_chunk(iterator: AsyncIterator[Any]) -> Any:
    return await anext(iterator)


def contain_stream(response: Response) -> Response:
    """Return the response; if it is a stream, its body raises `HandlerExit` as `ExitGuard` does.

    While code of the stream runs, the shared memory names its request.
    """

    label = bytes(own_status.label)  # starlette runs the stream in another task, which would have no label

    async def chunks(body: AsyncIterable[Any]) -> AsyncIterator[Any]:
        iterator = aiter(body)
        try:
            while True:
                try:
                    chunk = await run_handler(_next_chunk(iterator), label)
                except StopAsyncIteration:
                    return
                yield chunk
        except (SystemExit, KeyboardInterrupt) as error:
            raise HandlerExit from error

    if isinstance(response, StreamingResponse):
        response.body_iterator = chunks(response.body_iterator)
    return response


class FailureMiddleware:
    """Turn exceptions into JSON answers.

    The status is 504 for an exceeded deadline, 410 for a lost session, 400 for an incomplete or unsupported request,
    422 if a nested call to a server of the run was answered with 422, and 500 for all other exceptions. The answer to
    a failed nested call contains the body of the callee's error. The headers of every error answer name the server
    that failed first.
    Cancellation is not caught. `redact` removes secrets from the text. `shape` replaces status and body for a path and
    an exception, if it does not return None. `failure_log` is that of the server, if other code uses it too.
    """

    LAYER = "failures"

    def __init__(
        self,
        app: ASGIApp,
        server_name: str = "",
        redact: Callable[[str], str] = mask_text,
        shape: "Callable[[str, BaseException], tuple[int, dict[str, Any]] | None] | None" = None,
        failure_log: FailureLog | None = None,
    ) -> None:
        self.app = app
        self.server_name = server_name
        self.redact = redact
        self.shape = shape
        self.failure_log = FailureLog() if failure_log is None else failure_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; answer an exception of any class as JSON if the response has not started."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def attributing_send(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                _check_response_start(message)
                has_started = True
                if message["status"] >= 400:
                    message = {
                        **message,
                        "headers": _attributed_headers(message.get("headers", ()), self.server_name, scope["path"]),
                    }
            await send(message)

        for header, value in scope.get("headers", ()):
            if header == _ROLLOUT:
                set_current_rollout(parse_rollout(value.decode("latin-1")))
        name = handler_name(self.server_name, scope["method"], scope["path"])
        work = result_or_error(self.app(scope, receive, attributing_send))
        label = handler_label(name, current_rollout())
        error = await run_handler(work, label)
        if isinstance(error, BaseException):
            if isinstance(error, HandlerExit):
                error = error.__cause__ or error
            with own_status.showing(label):  # the text of an exception is made by code of the server
                status, text, headers = self._error_answer(scope, error)
            if has_started:  # the status is already sent: close the connection, so that the caller gets an error
                # Not a `SystemExit`, which would end the event loop.
                raise error if isinstance(error, Exception) else RuntimeError(text) from error
            shaped = None if self.shape is None else self.shape(scope["path"], error)
            status, body = (
                (status, _error_body(error, text)) if shaped is None else (shaped[0], orjson.dumps(shaped[1]))
            )
            await _send_json(send, status, body, headers)

    def _error_answer(self, scope: Scope, error: BaseException) -> tuple[int, str, dict[str, str]]:
        """Log an exception; return the status, text and headers of the answer, also if `str` of the exception fails."""
        try:
            headers = attribution_headers(error, self.server_name, scope["path"]) | phase_headers(error)
            status, text = self._status_and_text(scope, error)
            return status, self.redact(text[:MAX_INNER_CONTENT]), headers
        except BaseException:  # `str` and `repr` of an exception may raise anything, for example on a deep value
            name = type(error).__name__
            logger.error("%s: %s %s failed with %s", self.server_name, scope["method"], scope["path"], name)
            return 500, name, {FAILED_HEADER: self.server_name, FAILED_PATH_HEADER: scope["path"], ERROR_HEADER: name}

    def _status_and_text(self, scope: Scope, error: BaseException) -> tuple[int, str]:
        """Log an exception; return the status and text of the answer."""
        server = self.server_name or "this server"
        request = f"{scope['method']} {scope['path']}"
        if isinstance(error, ClientResponseError) and hasattr(error, "response_content"):
            inner = _inner_text(error.response_content)
            # Not the repr of the error, which contains the request headers with cookies and keys.
            problem = (
                f"{error.request_info.real_url} answered {error.status}: {self.redact(innermost_cause(inner))[:2000]}"
            )
            # A server of the run that failed has reported it; a second report would say the same in other words.
            level = logging.DEBUG if error.headers is not None and FAILED_HEADER in error.headers else logging.ERROR
            self._report(level, f"{server}: {request} failed: {problem}")
            # The content of the request comes from the row: trying again is useless.
            is_bad_row = _is_refused_here(error) and _passes_row_on(scope["path"])
            return 422 if is_bad_row else 500, f"Hit an exception in {server} calling an inner server: {inner}"
        if isinstance(error, TooManyRedirects):
            problem = f"{error.request_info.real_url} redirects again and again"
            self._report(logging.ERROR, f"{server}: {request} failed: {problem}")
            return 500, problem  # its repr contains the request headers, too
        if isinstance(error, UnsupportedRequest):
            self._report(logging.WARNING, f"{server}: {request}: 400: {error}")
            return 400, str(error)
        if isinstance(error, ClientDisconnect):
            closed = "the client closed the connection before its request was complete"
            self._report(logging.WARNING, f"{server}: {request}: {closed}")
            return 400, "the request is not complete"
        if isinstance(error, DeadlineExceeded | SessionLost):
            self._report(logging.ERROR, f"{server}: {request}: {error}")
            return 504 if isinstance(error, DeadlineExceeded) else 410, str(error)
        if not isinstance(error, Exception):
            logger.error("%s: %s ended by %s", server, request, type(error).__name__)
            return 500, f"An unknown error occurred in {server}: {type(error).__name__}"
        message = self._without_secrets(str(error))
        cause = (
            message if isinstance(error, GymError) else f"{type(error).__name__}: {message} ({raise_location(error)})"
        )
        # The stack of a failed model, or of a server that broke off, is always that of the client that called it.
        is_remote = isinstance(error, ModelFailed | ServerUnreachable)
        trace = "" if is_remote else "\n" + "".join(format_exception(error))
        self._report(logging.ERROR, f"{server}: {request} failed: {' '.join(cause.split())}", trace)
        return 500, f"{type(error).__name__}({str(error)!r})" if isinstance(error, GymError) else repr(error)

    def _report(self, level: int, text: str, details: str = "") -> None:
        self.failure_log.report(level, self._for_log(text), self._for_log(details))

    def _for_log(self, text: str) -> str:
        """Return `text` shortened, without secrets, and with lone surrogates escaped: no log file can contain them."""
        return self._without_secrets(text).encode("utf-8", "backslashreplace").decode("utf-8")

    def _without_secrets(self, text: str) -> str:
        """Return the start and the end of a text without secrets.

        An exception may quote a whole data set, and searching all of it for secrets takes time. What is searched is
        longer at each cut than what is returned, so that no part of a secret that is cut there remains.
        """
        if len(text) <= MAX_INNER_CONTENT:
            return self.redact(text)
        searched = MAX_INNER_CONTENT // 2 + _CUT_MARGIN
        start, end = self.redact(text[:searched]), self.redact(text[-searched:])
        return f"{start[:-_CUT_MARGIN]} … {end[_CUT_MARGIN:]}"


def _check_response_start(message: Message) -> None:
    """Check that status and headers can be sent over HTTP, so that a server answers the same over every carrier.

    Raises:
        ValueError: they cannot.
    """
    if not isinstance(message["status"], int) or not 200 <= message["status"] < 600:
        raise ValueError(f"the response has the status {message['status']!r}, which is not one of HTTP")
    for name, value in message.get("headers", ()):
        is_length = name.lower() == b"content-length"
        if not _HEADER_NAME.fullmatch(name) or _NOT_IN_HEADERS.search(value) or (is_length and not value.isdigit()):
            raise ValueError(f"the response has the header {name!r}: {value!r}, which is not one of HTTP")


def _is_refused_here(error: ClientResponseError) -> bool:
    """Return whether a server of the run refused the content of a request with 422."""
    return error.status == 422 and error.headers is not None and FAILED_HEADER in error.headers


def _passes_row_on(path: str) -> bool:
    """Return whether the handler of a path sends the content of a row to other servers: an agent or a model server.

    The requests of any other handler, such as a tool or `/verify`, are made by the server itself.
    """
    return path.endswith("/run") or "/v1/" in path


def attribution_headers(error: BaseException, server_name: str, path: str = "") -> dict[str, str]:
    """Return the headers that attribute a failure: server, path, and exception class or upstream status."""
    if isinstance(error, ClientResponseError):
        if _is_refused_here(error) and not _passes_row_on(path):
            return {FAILED_HEADER: server_name, FAILED_PATH_HEADER: path, ERROR_HEADER: type(error).__name__}
        received: Mapping[str, str] = error.headers or {}
        # A response of another type than expected is an error without an error status.
        status = (
            {UPSTREAM_STATUS_HEADER: str(error.status)} if error.status >= 300 else {ERROR_HEADER: type(error).__name__}
        )
        if received.get(FAILED_HEADER):
            copied = {name: received[name] for name in ATTRIBUTION_HEADERS if received.get(name)}
            return {**status, **copied}  # an upstream status in `copied` has priority
        return {FAILED_HEADER: server_name, FAILED_PATH_HEADER: path, **status}
    is_located_in_body = isinstance(error, ConversionError)  # its location is a JSON path, not a server
    where = error.where if isinstance(error, GymError) and not is_located_in_body else None
    if isinstance(error, InvalidReply) and where:
        return {FAILED_HEADER: where, FAILED_PATH_HEADER: error.path, ERROR_HEADER: type(error).__name__}
    failed_path = {} if where and where != server_name else {FAILED_PATH_HEADER: path}  # unknown at another server
    raised_at = {} if isinstance(error, GymError) else {RAISED_AT_HEADER: raise_location(error)}
    return {FAILED_HEADER: where or server_name, **failed_path, ERROR_HEADER: type(error).__name__, **raised_at}


def raise_location(error: BaseException) -> str:
    """Return `folder/file.py:line` of the last line outside of packages that was running; empty without a traceback."""
    frames = [
        f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno}"
        for frame in extract_tb(error.__traceback__)
        if not _PACKAGES.search(frame.filename)
    ]
    return frames[-1] if frames else ""


def _attributed_headers(
    headers: Iterable[tuple[bytes, bytes]], server_name: str, path: str
) -> list[tuple[bytes, bytes]]:
    """Return the headers with this server and path added, unless they already name a failed server."""
    header_list = list(headers)
    if any(name == _FAILED for name, _ in header_list) or not server_name:
        return header_list
    return [*header_list, (_FAILED, _header_value(server_name)), (_FAILED_PATH, _header_value(path))]


def _header_value(text: str) -> bytes:
    return "".join(char if char.isprintable() else " " for char in text).encode("latin-1", errors="replace")


def _error_body(error: BaseException, text: str) -> bytes:
    """Return the body of an error answer: the text as a JSON string, or an object with it and what was generated."""
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    try:
        return orjson.dumps(reply_log.error_body(error, text))
    except TypeError:  # the response of a model contains what JSON cannot
        return orjson.dumps(text)


def _inner_text(content: object) -> str:
    """Return the error body of a callee as text; of a model server's error, only the message if it has no code."""
    if isinstance(content, bytes) and content.startswith(b'{"error":'):
        with suppress(ValueError, AttributeError):
            error = orjson.loads(content)["error"]
            if error.get("code") is None and isinstance(error.get("message"), str):
                return str(error["message"])[:MAX_INNER_CONTENT]
    if isinstance(content, bytes | bytearray):
        if content.startswith(reply_log.BODY_WITH_RESPONSE):  # the response stays with the rollout that generated it
            with suppress(ValueError):
                content = orjson.dumps(reply_log.parse_error_body(bytes(content))[0])
        return bytes(content[:MAX_INNER_CONTENT]).decode("utf-8", errors="replace")
    return str(content)[:MAX_INNER_CONTENT]


async def _send_json(send: Send, status: int, body: bytes, extra: Mapping[str, str]) -> None:
    """Send a response with a JSON body and extra headers."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    headers += [(name.encode("ascii"), _header_value(value)) for name, value in extra.items() if value]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def request_deadline_exceeded(method: str, path: str, seconds: float, where: str | None) -> DeadlineExceeded:
    """Return the error for a request whose deadline passed; `where` is the server that was waited for."""
    return DeadlineExceeded(f"{method} {path} was not done within the {seconds:.1f} s its caller allowed", where=where)


class DeadlineMiddleware:
    """Set the deadline and the allowance of a request while it is served, for its nested calls.

    At the deadline the handler is cancelled and `DeadlineExceeded` is raised.
    """

    LAYER = "deadline"

    def __init__(self, app: ASGIApp, server_name: str = "") -> None:
        self.app = app
        self.server_name = server_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the deadline and allowance headers and serve the request with them."""
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        seconds = deadlines.parse_seconds(headers.get(_DEADLINE))
        if seconds is None:
            await self.app(scope, receive, send)
            return
        with deadlines.using_allowance(deadlines.parse_allowance(headers.get(_ALLOWANCE))):
            await self._serve(seconds, scope, receive, send)

    async def _serve(self, seconds: float, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with a deadline; enforce the deadline unless the caller does."""
        if CALLER_ENFORCES_DEADLINE in scope:
            with deadlines.time_limit(seconds):  # only sets the deadline of nested calls
                await self.app(scope, receive, send)
            return
        try:
            with deadlines.DeadlineAlarm(seconds) as alarm:
                await self.app(scope, receive, send)
        except TimeoutError as error:
            if not alarm.has_fired:
                raise
            raise request_deadline_exceeded(
                scope["method"], scope["path"], seconds, self.server_name or None
            ) from error
