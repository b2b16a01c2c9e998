"""What a request that fails is answered with, and to whom the failure is attributed."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from traceback import format_exception

import orjson
from aiohttp import ClientResponseError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.config.secrets import mask_text
from nemo_gym.errors import DeadlineExceeded, GymError
from nemo_gym.net.phases import error_headers
from nemo_gym.net.status import ERROR_HEADER, FAILED_HEADER, FAILED_PATH_HEADER, UPSTREAM_STATUS_HEADER

logger = logging.getLogger("nemo_gym.serve")

TOLD = (FAILED_HEADER, FAILED_PATH_HEADER, ERROR_HEADER, UPSTREAM_STATUS_HEADER)
"""Headers of an error answer that are passed on unchanged, hop after hop."""

_FAILED = FAILED_HEADER.encode("ascii")
_FAILED_PATH = FAILED_PATH_HEADER.encode("ascii")

LONGEST_INNER_CONTENT = 64 * 1024
"""More of a failed callee's body than this is cut off."""


class FailureMiddleware:
    """Turn exceptions into JSON answers: a failed call of ours 500 with what the callee said, a passed deadline 504.

    Every error answer says in its headers who failed first, so that nobody further up has to guess. Cancellation is
    not a failure and passes through. `redact` takes secrets out of the text.
    """

    LETS_BODIES_PASS = True
    SHORT_WAY = "failures"

    def __init__(self, app: ASGIApp, server_name: str = "", redact: Callable[[str], str] = mask_text) -> None:
        self.app = app
        self.server_name = server_name
        self.redact = redact

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if message["status"] >= 400:
                    message = {
                        **message,
                        "headers": _attributed(message.get("headers", ()), self.server_name, scope["path"]),
                    }
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # the boundary of a server; also stops `sys.exit` in a verifier
            status, text = self._answer(scope, error)
            if started:  # too late for another status: break the connection so that the caller notices
                raise
            told = told_headers(error, self.server_name, scope["path"]) | error_headers(error)
            await _send_json_text(send, status, self.redact(text), told)

    def _answer(self, scope: Scope, error: BaseException) -> tuple[int, str]:
        """Status and text for an exception, which is logged here and nowhere else."""
        server = self.server_name or "this server"
        request = f"{scope['method']} {scope['path']}"
        if isinstance(error, ClientResponseError) and hasattr(error, "response_content"):
            inner = _inner_text(error.response_content)
            # Not its repr: that shows the headers of the request, cookies and keys among them.
            said = f"{error.request_info.real_url} answered {error.status}: {inner[:2000]}"
            logger.error("%s: %s failed: %s", server, request, self._shown(said))
            return 500, f"Hit an exception in {server} calling an inner server: {inner}"
        if isinstance(error, DeadlineExceeded):
            logger.error("%s: %s: %s", server, request, self._shown(str(error)))
            return 504, str(error)
        if not isinstance(error, Exception):
            logger.error("%s: %s ended by %s", server, request, type(error).__name__)
            return 500, f"An unknown error occurred in {server}: {type(error).__name__}"
        logger.error("%s: %s failed\n%s", server, request, self._shown("".join(format_exception(error))))
        return 500, f"{type(error).__name__}({str(error)!r})" if isinstance(error, GymError) else repr(error)

    def _shown(self, text: str) -> str:
        """`text` without secrets and without what no log file can hold (lone surrogates)."""
        return self.redact(text).encode("utf-8", "backslashreplace").decode("utf-8")


def told_headers(error: BaseException, server_name: str, path: str = "") -> dict[str, str]:
    """Who failed first, at what, by which exception, and what a provider said, as far as the exception knows."""
    if isinstance(error, ClientResponseError):
        heard: Mapping[str, str] = error.headers or {}
        if heard.get(FAILED_HEADER):
            told = {name: heard[name] for name in TOLD if heard.get(name)}
            return {UPSTREAM_STATUS_HEADER: str(error.status), **told}  # whether it was refused or broke, for good
        return {FAILED_HEADER: server_name, FAILED_PATH_HEADER: path, UPSTREAM_STATUS_HEADER: str(error.status)}
    where = error.where if isinstance(error, GymError) else None
    at = {} if where and where != server_name else {FAILED_PATH_HEADER: path}  # what another was asked is not known
    return {FAILED_HEADER: where or server_name, **at, ERROR_HEADER: type(error).__name__}


def _attributed(headers: Iterable[tuple[bytes, bytes]], server_name: str, path: str) -> list[tuple[bytes, bytes]]:
    """The headers of an error answer, with this server's name and the path unless another's are there."""
    known = list(headers)
    if any(name == _FAILED for name, _ in known) or not server_name:
        return known
    return [*known, (_FAILED, _header_value(server_name)), (_FAILED_PATH, _header_value(path))]


def _header_value(text: str) -> bytes:
    return "".join(char if char.isprintable() else " " for char in text).encode("latin-1", errors="replace")


def _inner_text(content: object) -> str:
    if isinstance(content, bytes | bytearray):
        return bytes(content[:LONGEST_INNER_CONTENT]).decode("utf-8", errors="replace")
    return str(content)[:LONGEST_INNER_CONTENT]


async def _send_json_text(send: Send, status: int, text: str, told: Mapping[str, str]) -> None:
    body = orjson.dumps(text.encode("utf-8", errors="replace").decode("utf-8"))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    headers += [(name.encode("ascii"), _header_value(value)) for name, value in told.items() if value]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
