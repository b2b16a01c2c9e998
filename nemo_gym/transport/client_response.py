"""Client responses: an aiohttp-like view of a `Reply`, functions that read bodies, and errors with the response body.

The reading functions also accept the mock responses of server folders' tests: objects with only some of `.ok`,
`.status`, `.read()`, `.json()` and `.content.read()`.
"""

import inspect
import json as standard_json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from types import TracebackType
from typing import Any, Self, TypeVar

import orjson
from aiohttp import ClientResponse, ClientResponseError, ContentTypeError, RequestInfo
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import BaseModel
from yarl import URL

from nemo_gym.errors import ServerUnreachable, SessionLost
from nemo_gym.transport.asgi import call_url, request_headers
from nemo_gym.transport.large_bodies import LARGE_BYTES, MAX_ERROR_BYTES, limits, too_long
from nemo_gym.transport.response_errors import (
    ERROR_HEADER,
    FAILED_HEADER,
    ServerResponse,
    invalid_reply,
    naming_callee,
    raise_named_error,
)
from nemo_gym.wire.call_reply import Call, Reply, parse_lenient_json

ModelT = TypeVar("ModelT", bound=BaseModel)

Reserve = Callable[[int], Awaitable[None]]
"""Called once before the rest of a body of more than `LARGE_BYTES` is read, with its size (unknown: the maximum)."""

_JSON_TYPES = (dict, list, str, int, float, bool, type(None))


def reply_header(response: Any, name: str) -> str | None:
    """Return a header of a response; None if it is missing, or the response is a mock without headers."""
    reply = getattr(response, "reply", None)
    if isinstance(reply, Reply) and reply.headers is None:  # an ordinary JSON answer; building the headers is slow
        return None
    headers: Any = getattr(response, "headers", None)
    value = headers.get(name) if hasattr(headers, "get") else None
    return value if isinstance(value, str) else None


def note_callee(response: Any, callee: str) -> Any:
    """Record the server that sent a response over HTTP; return the response."""
    if isinstance(response, ServerResponse | LocalResponse):  # not the response of a test
        response.callee = callee
    return response


class LocalContent:
    """A body in memory with the reading methods of `aiohttp.StreamReader`."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    def at_eof(self) -> bool:
        return self._position >= len(self._body)

    async def read(self, n: int = -1) -> bytes:
        end = len(self._body) if n < 0 else self._position + n
        chunk = self._body[self._position : end]
        self._position += len(chunk)
        return chunk

    async def readany(self) -> bytes:
        return await self.read()

    async def readline(self) -> bytes:
        newline = self._body.find(b"\n", self._position)
        return await self.read(-1 if newline < 0 else newline + 1 - self._position)

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        while not self.at_eof():
            yield await self.read(n)

    async def iter_any(self) -> AsyncIterator[bytes]:
        while not self.at_eof():
            yield await self.read()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self.at_eof():
            yield await self.readline()


class LocalResponse:
    """A complete response with the members of `aiohttp.ClientResponse` that callers use, computed on first access."""

    history: "tuple[LocalResponse, ...]" = ()
    closed = False
    _encoded: bytes | None = None

    def __init__(self, call: Call, reply: Reply) -> None:
        self._call = call
        self.reply = reply
        self.status = reply.status

    @property
    def callee(self) -> str | None:
        """Instance name of the server that answered."""
        return self._call.server

    @callee.setter
    def callee(self, name: str) -> None:
        self._call.server = name

    @property
    def model(self) -> BaseModel | None:
        """The pydantic model that the handler returned; None if the body is bytes."""
        body = self.reply.body
        return None if isinstance(body, bytes) else body

    @property
    def _body(self) -> bytes:
        if self._encoded is None:  # not a cached_property: its lock costs more than encoding most bodies
            try:
                self._encoded = self.reply.body_bytes()
            except Exception as error:
                raise invalid_reply(self, f"cannot be encoded as JSON ({type(error).__name__})") from error
        return self._encoded

    @property
    def reason(self) -> str:
        try:
            return HTTPStatus(self.status).phrase
        except ValueError:
            return ""

    @property
    def method(self) -> str:
        return self._call.method

    @property
    def url(self) -> URL:
        return call_url(self._call)

    real_url = url

    @cached_property
    def headers(self) -> CIMultiDictProxy[str]:
        return CIMultiDictProxy(CIMultiDict(self.reply.header_list()))

    @cached_property
    def content(self) -> LocalContent:
        return LocalContent(self._body)

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def host(self) -> str | None:
        return self.url.host

    @cached_property
    def cookies(self) -> SimpleCookie:
        """Cookies of the `Set-Cookie` headers."""
        cookies = SimpleCookie()
        for header in self.headers.getall("Set-Cookie", ()):
            with suppress(CookieError):  # aiohttp ignores an invalid cookie, too
                cookies.load(header)
        return cookies

    @property
    def cookie_values(self) -> dict[str, str]:
        """Names and values of the cookies set by this response, without cookie attributes."""
        reply = self.reply
        if reply.cookie is not None:
            return {reply.cookie[0]: reply.cookie[1]}
        if reply.headers is None:
            return {}
        return {name: morsel.value for name, morsel in self.cookies.items()}

    @property
    def request_info(self) -> RequestInfo:
        return RequestInfo(self.url, self.method, CIMultiDictProxy(request_headers(self._call)), self.url)

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "application/octet-stream").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str | None:
        for parameter in self.headers.get("Content-Type", "").split(";")[1:]:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "charset":
                return value.strip(" \"'") or None
        return None

    @property
    def content_length(self) -> int | None:
        value = self.headers.get("Content-Length")
        return int(value) if value is not None and value.isdigit() else None

    async def read(self) -> bytes:
        return self._body

    def get_encoding(self) -> str:
        return self.charset or "utf-8"

    async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
        return (await self.read()).decode(encoding or self.get_encoding(), errors=errors)

    async def json(
        self,
        *,
        encoding: str | None = None,
        loads: Callable[[str], Any] = standard_json.loads,
        content_type: str | None = "application/json",
    ) -> Any:
        """Parse the body as `aiohttp.ClientResponse.json` does; None for an empty body."""
        with naming_callee(self):
            if content_type and not self._has_type(content_type):
                raise ContentTypeError(
                    self.request_info,
                    (),
                    status=self.status,
                    message=f"Attempt to decode JSON with unexpected mimetype: {self.content_type}",
                    headers=self.headers,
                )
            text = (await self.text(encoding)).strip()
            return loads(text) if text else None

    def _has_type(self, expected: str) -> bool:
        """Return True if the content type matches `expected` by the rules of aiohttp."""
        actual = self.content_type
        if expected == "application/json":
            return actual == expected or (actual.startswith("application/") and actual.endswith("+json"))
        return expected in actual

    def raise_for_status(self) -> None:
        with naming_callee(self):
            if not self.ok:
                raise ClientResponseError(
                    self.request_info, (), status=self.status, message=self.reason, headers=self.headers
                )

    def release(self) -> None:
        """Do nothing: no connection was used."""

    def close(self) -> None:
        self.closed = True

    async def wait_for_close(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.closed = True

    def __repr__(self) -> str:
        return f"<LocalResponse({self.url}) [{self.status} {self.reason}]>"


async def _await_if_needed(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _try_read_body(response: Any) -> bytes | None:
    """Read the body of a response or mock; None if it has no method that returns bytes or text."""
    for reader in (getattr(response, "read", None), getattr(getattr(response, "content", None), "read", None)):
        if callable(reader):
            body = await _await_if_needed(reader())
            if isinstance(body, bytes | bytearray):
                return bytes(body)
            if isinstance(body, str):
                return body.encode()
    return None


async def read_body(
    response: ClientResponse | LocalResponse | Any, max_bytes: int | None = None, reserve: Reserve | None = None
) -> bytes:
    """Read the whole body.

    Raises:
        DeadlineExceeded: the body did not arrive before the timeout of the request.
        ResponseTooLong: a body from the network is longer than `max_bytes` (default: `max_body_bytes`).
    """
    if isinstance(response, LocalResponse):
        return await response.read()
    max_bytes = max_bytes or limits.body
    with naming_callee(response):
        if not isinstance(response, ClientResponse):
            return await _try_read_body(response) or b""
        body = await _fetch_at_most(response, max_bytes, reserve)
    if body is None:
        raise too_long(max_bytes, str(response.url))
    return body


async def read_at_most(response: Any, max_bytes: int, *, callee: str) -> bytes:
    """Read a body of at most `max_bytes`. Reading stops as soon as a body is longer.

    Raises:
        ResponseTooLong: the body is longer; the error names `callee`.
    """
    if isinstance(response, LocalResponse):  # already in memory
        body: bytes | None = await response.read()
    else:
        with naming_callee(response):
            body = await _fetch_at_most(response, max_bytes)
    if body is None or len(body) > max_bytes:
        raise too_long(max_bytes, callee)
    return body


async def _fetch_at_most(response: Any, max_bytes: int, reserve: Reserve | None = None) -> bytes | None:
    """Read a body from the network; if it is longer than `max_bytes`, close the connection and return None."""
    size = response.content_length or 0
    if size > max_bytes:
        response.close()
        return None
    if response.content.at_eof() or (size and "Content-Encoding" not in response.headers):  # not longer than `size`
        if reserve is not None and size > LARGE_BYTES:
            await reserve(size)
        body: bytes = await response.read()
        return body
    pieces = await _read_pieces(response, max_bytes, reserve)
    if sum(map(len, pieces)) <= max_bytes:
        return b"".join(pieces)
    response.close()
    return None


async def _read_pieces(response: Any, max_bytes: int, reserve: Reserve | None = None) -> list[bytes]:
    """Read the pieces of a body until its end, or until they are longer than `max_bytes`."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        if reserve is not None and size <= LARGE_BYTES < size + len(piece):
            await reserve(max_bytes)
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            break
    return pieces


async def _read_error_body(response: Any) -> bytes:
    """Read the start of an error body, at most `MAX_ERROR_BYTES`."""
    if not isinstance(response, ClientResponse) or response.content.at_eof():
        return (await read_body(response))[:MAX_ERROR_BYTES]
    with naming_callee(response):
        content = b"".join(await _read_pieces(response, MAX_ERROR_BYTES))
    if len(content) > MAX_ERROR_BYTES:
        response.close()
    return content[:MAX_ERROR_BYTES]


def _parse_body(body: bytes) -> Any:
    """Parse JSON strictly, else leniently. If both fail, raise the error of the strict parser."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as strict_error:
        try:
            return parse_lenient_json(body)
        except ValueError:
            raise strict_error from None


async def get_response_json(response: ClientResponse | Any) -> Any:
    """Return the parsed JSON body of a response or mock.

    Raises:
        InvalidReply: the body of a server's response is not JSON or breaks off. It is a `json.JSONDecodeError`.
    """
    if isinstance(response, (LocalResponse, ClientResponse)):
        try:
            return _parse_body(await read_body(response))
        except Exception as error:
            raise_named_error(error, response)
            raise
    body = await _try_read_body(response)
    if body is not None:
        return _parse_body(body)
    data = await _await_if_needed(response.json())
    if isinstance(data, _JSON_TYPES):
        return data
    raise TypeError(f"{type(response).__name__} has no JSON body to read")


async def get_response_model(response: ClientResponse | Any, kind: type[ModelT]) -> ModelT:
    """Return the body of a response as an object of the class `kind`.

    If the handler ran in this process and returned such an object, the object is returned without copying.

    Raises:
        InvalidReply: the body of a server's response is not JSON, breaks off, or is no such object.
    """
    model = getattr(response, "model", None)
    if isinstance(model, kind):
        return model
    body = await get_response_json(response)
    with naming_callee(response):
        return kind.model_validate(body)


def is_ok(response: Any) -> bool:
    """Return True unless a response or mock has an error status (400 or higher)."""
    if isinstance(response, LocalResponse):
        return response.status < 400
    if hasattr(response, "ok"):
        return bool(response.ok)  # a mock of `ok` decides with its `__bool__`
    status = getattr(response, "status", None)
    return not isinstance(status, int) or status < 400


def raise_for_lost_session(response: Any, callee: str) -> None:
    """Raise `ServerUnreachable` if a restarted server answers that its previous process had the session of this call.

    Otherwise an agent would show the answer to the model as the result of a tool, and the episode would go on.
    """
    headers = response.headers
    if headers.get(ERROR_HEADER) == SessionLost.__name__:
        raise ServerUnreachable(
            "was restarted, and the session of this call was lost with the previous process",
            where=headers.get(FAILED_HEADER) or callee,
            fix="run the rollout again; the log of the server shows why its process ended",
        )


async def raise_for_status(response: ClientResponse, content: bytes | None = None) -> None:
    """Raise aiohttp's ClientResponseError for 4xx and 5xx, with the body as its attribute `response_content`.

    `content` is the body if the caller has read it.
    """
    if is_ok(response):
        return
    if content is None:
        content = await _read_error_body(response)
    error = await _response_error(response)
    error.response_content = content  # type: ignore[attr-defined]  # callers read it; aiohttp has no such field
    raise error


async def _response_error(response: Any) -> ClientResponseError:
    """Return the error of the response's own `raise_for_status`, or build one for a mock without such a method."""
    raise_own_error = getattr(response, "raise_for_status", None)
    try:
        if callable(raise_own_error):
            await _await_if_needed(raise_own_error())
    except ClientResponseError as error:
        return error
    status = getattr(response, "status", 500)
    request_info = getattr(response, "request_info", None)
    if not isinstance(request_info, RequestInfo):
        headers: CIMultiDictProxy[str] = CIMultiDictProxy(CIMultiDict())
        request_info = RequestInfo(URL("http://unknown"), "UNKNOWN", headers, URL("http://unknown"))
    return ClientResponseError(
        request_info,
        (),
        status=status if isinstance(status, int) else 500,
        message=str(getattr(response, "reason", "") or ""),
    )
