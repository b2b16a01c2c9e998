"""What an in-memory call returns: the members of `aiohttp.ClientResponse` that callers use."""

import json as standard_json
from collections.abc import AsyncIterator, Callable
from http.cookies import SimpleCookie
from types import TracebackType
from typing import Any, Self

from aiohttp import ClientResponseError, ContentTypeError, RequestInfo
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import BaseModel
from yarl import URL

from nemo_gym.net.local_request import Sent


class LocalContent:
    """The body as a stream, like `aiohttp.StreamReader`: what is read is gone."""

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
    """A complete response of a server in this process."""

    def __init__(
        self,
        *,
        status: int,
        reason: str,
        headers: CIMultiDictProxy[str],
        body: bytes,
        model: BaseModel | None = None,
        url: URL,
        method: str,
        request_headers: CIMultiDictProxy[str],
    ) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.url = self.real_url = url
        self.method = method
        self.history: tuple[LocalResponse, ...] = ()
        self.model = model
        """The answer itself, where the handler gave a model; the body is written from it when asked for."""
        self.closed = False
        self._bytes = body
        self._content: LocalContent | None = None
        self._request_headers = request_headers
        self._cookies: SimpleCookie | None = None

    @property
    def _body(self) -> bytes:
        if not self._bytes and self.model is not None:
            self._bytes = self.model.model_dump_json(by_alias=True).encode()
        return self._bytes

    @property
    def content(self) -> LocalContent:
        if self._content is None:
            self._content = LocalContent(self._body)
        return self._content

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def host(self) -> str | None:
        return self.url.host

    @property
    def cookies(self) -> SimpleCookie:
        """Cookies set by this response."""
        if self._cookies is None:
            self._cookies = SimpleCookie()
            for header in self.headers.getall("Set-Cookie", ()):
                self._cookies.load(header)
        return self._cookies

    @property
    def cookie_values(self) -> dict[str, str]:
        """The same without their attributes."""
        return {name: morsel.value for name, morsel in self.cookies.items()}

    @property
    def request_info(self) -> RequestInfo:
        return RequestInfo(self.url, self.method, self._request_headers, self.url)

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
        return self._body.decode(encoding or self.get_encoding(), errors=errors)

    async def json(
        self,
        *,
        encoding: str | None = None,
        loads: Callable[[str], Any] = standard_json.loads,
        content_type: str | None = "application/json",
    ) -> Any:
        if content_type and not self._is_json(content_type):
            raise ContentTypeError(
                self.request_info,
                (),
                status=self.status,
                message=f"Attempt to decode JSON with unexpected mimetype: {self.content_type}",
                headers=self.headers,
            )
        text = (await self.text(encoding)).strip()
        return loads(text) if text else None

    def _is_json(self, expected: str) -> bool:
        actual = self.content_type
        if expected == "application/json":
            return actual == expected or (actual.startswith("application/") and actual.endswith("+json"))
        return expected in actual

    def raise_for_status(self) -> None:
        if not self.ok:
            raise ClientResponseError(
                self.request_info, (), status=self.status, message=self.reason, headers=self.headers
            )

    def release(self) -> None:
        """Nothing to give back: no connection was used."""

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


class ShortResponse(LocalResponse):
    """200 with JSON, given by a handler of this process. What few callers ask for is made when they ask."""

    status = 200
    reason = "OK"
    history = ()
    closed = False
    _content = None
    _cookies = None
    _headers: CIMultiDictProxy[str] | None = None

    def __init__(self, sent: Sent, model: BaseModel | None, body: bytes, cookie: tuple[str, str, str] | None) -> None:
        """`cookie`: name, value and attributes of the one cookie set, if one is."""
        self._sent = sent
        self.cookie = cookie
        self._bytes = body
        self.model = model

    @property
    def method(self) -> str:  # type: ignore[override]
        return self._sent.method

    @property
    def url(self) -> URL:  # type: ignore[override]
        return self._sent.url

    real_url = url

    @property
    def headers(self) -> CIMultiDictProxy[str]:  # type: ignore[override]
        if self._headers is None:
            said = CIMultiDict({"content-type": "application/json"})
            if self.model is None:
                said["content-length"] = str(len(self._bytes))
            if self.cookie is not None:
                name, value, attributes = self.cookie
                said["set-cookie"] = f"{name}={value}; {attributes}"
            self._headers = CIMultiDictProxy(said)
        return self._headers

    @property
    def _request_headers(self) -> CIMultiDictProxy[str]:  # type: ignore[override]
        return CIMultiDictProxy(self._sent.request().headers)

    @property
    def cookie_values(self) -> dict[str, str]:
        return {} if self.cookie is None else {self.cookie[0]: self.cookie[1]}
