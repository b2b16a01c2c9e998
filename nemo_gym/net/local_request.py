"""A request to a server of this process, as far as somebody wants to know: headers, bytes, ASGI scope."""

from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import Morsel, SimpleCookie
from typing import Any
from urllib.parse import unquote

from aiohttp import FormData, payload
from multidict import CIMultiDict
from pydantic import BaseModel
from yarl import URL

from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.net import deadline
from nemo_gym.net.encode import encode_json
from nemo_gym.net.handed import LOCAL_CALL, Handed
from nemo_gym.net.retry import SAFE_METHODS

Cookies = Mapping[str, str | Morsel[str]]

SHORT_OPTIONS = frozenset({"json", "headers", "cookies"})


@dataclass
class LocalRequest:
    """What aiohttp would send."""

    method: str
    url: URL
    headers: CIMultiDict[str]
    body: bytes
    model: BaseModel | None = None
    """The body before it is written; `body` is empty then."""

    def written(self) -> bytes:
        return self.body if self.model is None else encode_json(self.model.model_dump(exclude_unset=True))

    def scope(self, handed: Handed | None) -> dict[str, Any]:
        """What uvicorn would make of it. Without `handed` it is a request from elsewhere."""
        raw_path = self.url.raw_path
        host = self.url.raw_authority
        names = {name.lower() for name in self.headers}
        headers = [(name.lower().encode("latin-1"), value.encode("utf-8")) for name, value in self.headers.items()]
        if "host" not in names:
            headers.insert(0, (b"host", host.encode("latin-1")))
        if "accept" not in names:
            headers.append((b"accept", b"*/*"))
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": self.url.scheme,
            "path": unquote(raw_path),
            "raw_path": raw_path.encode("ascii"),
            "query_string": self.url.raw_query_string.encode("ascii"),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 0),
            "server": (self.url.host, self.url.port),
        }
        if handed is not None:
            scope[LOCAL_CALL] = handed
        return scope

    def redirected(self, status: int, url: URL) -> "LocalRequest":
        """The request that follows an answer which points elsewhere, as aiohttp has it."""
        becomes_get = (status == 303 and self.method != "HEAD") or (status in (301, 302) and self.method == "POST")
        headers = self.headers.copy()
        if not becomes_get:
            return LocalRequest(self.method, url, headers, self.body, self.model)
        for name in ("Content-Length", "Content-Type"):
            headers.pop(name, None)
        return LocalRequest("GET", url, headers, b"")


async def request_with(
    method: str,
    url: URL,
    headers: Mapping[str, str] | None,
    cookies: Cookies | None,
    json: Any,
    data: Any,
) -> LocalRequest:
    """The request, with its body and the headers that describe it, as aiohttp makes it."""
    request = LocalRequest(method.upper(), url, _request_headers(headers, cookies), b"")
    if json is not None:
        if data is not None:
            raise ValueError("data and json parameters can not be used at the same time")
        return _with_json(request, json)
    if data is not None:
        request.body, content_type = await _encoded(data)
        request.headers.setdefault("Content-Type", content_type)
    return _with_length(request)


def _with_json(request: LocalRequest, json: Any) -> LocalRequest:
    request.headers.setdefault("Content-Type", "application/json")
    if isinstance(json, BaseModel):
        request.model = json
        return request
    request.body = json if isinstance(json, bytes) else encode_json(json)
    return _with_length(request)


def _with_length(request: LocalRequest) -> LocalRequest:
    if request.body or request.method not in SAFE_METHODS:
        request.headers["Content-Length"] = str(len(request.body))
        request.headers.setdefault("Content-Type", "application/octet-stream")
    return request


def _request_headers(headers: Mapping[str, str] | None, cookies: Cookies | None) -> CIMultiDict[str]:
    sent: CIMultiDict[str] = CIMultiDict(headers or {})
    if cookies:
        jar: SimpleCookie = SimpleCookie(sent.pop("Cookie", ""))
        for name, value in cookies.items():
            jar[name] = value
        sent["Cookie"] = "; ".join(f"{name}={morsel.coded_value}" for name, morsel in jar.items())
    return sent


async def _encoded(data: Any) -> tuple[bytes, str]:
    if isinstance(data, bytes):
        return data, "application/octet-stream"
    try:
        encoded = payload.PAYLOAD_REGISTRY.get(data() if isinstance(data, FormData) else data, disposition=None)
    except payload.LookupError:
        encoded = FormData(data)()
    return await encoded.as_bytes(), encoded.headers.get("Content-Type", "application/octet-stream")


_TELLING = frozenset(
    {"accept", "content-encoding", "content-length", "content-type", "cookie", DEADLINE_HEADER, "host"}
)


def is_short(options: Mapping[str, Any]) -> bool:
    """Whether a call with these options is a plain JSON call, all of which a `Sent` can say."""
    headers, cookies = options.get("headers"), options.get("cookies")
    return (
        options.keys() <= SHORT_OPTIONS
        and (cookies is None or isinstance(cookies, dict))
        and (not headers or _TELLING.isdisjoint(name.lower() for name in headers))
    )


class Sent:
    """A JSON call as its caller made it. What an ASGI app would want to know is worked out when it is asked for."""

    __slots__ = ("base_url", "body", "cookies", "headers", "method", "model", "path", "seconds")

    def __init__(
        self,
        method: str,
        base_url: str,
        path: str,
        *,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        cookies: Cookies | None = None,
        seconds: float,
    ) -> None:
        self.method = method
        self.base_url = base_url
        self.path = path
        self.headers = headers
        """What the caller says besides; nothing about the body, the session or the time (`is_short`)."""
        self.cookies = cookies
        self.seconds = seconds
        """How long the caller waits."""
        self.model: BaseModel | None = None
        self.body = b""
        if isinstance(json, BaseModel):
            self.model = json
        elif json is not None:
            self.body = json if isinstance(json, bytes) else encode_json(json)

    @property
    def url(self) -> URL:
        return URL(f"{self.base_url}{self.path}")

    def written(self) -> bytes:
        """The body as bytes, without the fields of a model that nobody set."""
        return self.body if self.model is None else encode_json(self.model.model_dump(exclude_unset=True))

    def cookie(self, name: str) -> str | None:
        """The value the caller gave for a cookie."""
        if not self.cookies:
            return None
        value = self.cookies.get(name)
        return value.value if isinstance(value, Morsel) else value

    def request(self) -> LocalRequest:
        """The same request, written out."""
        request = LocalRequest(self.method, self.url, _request_headers(self.headers, self.cookies), b"")
        if self.model is not None or self.body:
            _with_json(request, self.body if self.model is None else self.model)
        else:
            _with_length(request)
        request.headers[DEADLINE_HEADER] = deadline.format_seconds(self.seconds)
        return request
