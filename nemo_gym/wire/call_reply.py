"""`Call` and `Reply`: a request to a server and its answer, for every carrier; JSON encoding and parsing."""

import json
from collections.abc import Mapping, Sequence
from http.cookies import Morsel
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import from_json, to_jsonable_python

from nemo_gym.wire.stored_rollout import RolloutId

Cookies = Mapping[str, "str | Morsel[str]"]
Body = bytes | BaseModel


class Call:
    """One request to a server. The body is JSON unless `headers` contain a content type."""

    __slots__ = ("base_url", "body", "cookies", "headers", "method", "path", "rollout", "seconds", "server")

    def __init__(
        self,
        method: str,
        base_url: str,
        path: str,
        body: Body = b"",
        headers: Mapping[str, str] | None = None,
        cookies: Cookies | None = None,
        server: str | None = None,
        rollout: RolloutId | None = None,
        seconds: float | None = None,
    ) -> None:
        self.method = method
        self.base_url = base_url
        """`http://host:port`"""
        self.path = path
        """Path and query; begins with the rollout prefix (`serve.correlation`) if calls carry rollout ids."""
        self.body = body
        self.headers = headers
        self.cookies = cookies
        self.server = server
        """Instance name of the called server, for errors."""
        self.rollout = rollout
        """Index of the rollout that this call belongs to; None if unknown."""
        self.seconds = seconds
        """Deadline of the call in seconds from now; None without a deadline."""

    def body_bytes(self) -> bytes:
        """Return the body as bytes; a model is encoded without its unset fields."""
        body = self.body
        return body if isinstance(body, bytes) else encode_json(body.model_dump(exclude_unset=True))

    def cookie(self, name: str) -> str | None:
        """Return the value of a cookie; None if it is missing."""
        if not self.cookies:
            return None
        value = self.cookies.get(name)
        return value.value if isinstance(value, Morsel) else value


class Reply:
    """The answer to a call. If `headers` is None, it is an ordinary JSON answer with at most one cookie."""

    __slots__ = ("body", "cookie", "headers", "status")

    def __init__(
        self,
        status: int,
        body: Body,
        *,
        headers: Sequence[tuple[str, str]] | None = None,
        cookie: tuple[str, str, str] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        """All headers; None for an ordinary JSON answer."""
        self.cookie = cookie
        """Name, value and attributes of the session cookie that an ordinary answer sets."""

    def body_bytes(self) -> bytes:
        body = self.body
        return body if isinstance(body, bytes) else body.model_dump_json(by_alias=True).encode()

    def header_list(self) -> list[tuple[str, str]]:
        """Return all headers as pairs of name and value; `content-length` only if the body is bytes."""
        if self.headers is not None:
            return list(self.headers)
        headers = [("content-type", "application/json")]
        if isinstance(self.body, bytes):
            headers.append(("content-length", str(len(self.body))))
        if self.cookie is not None:
            name, value, attributes = self.cookie
            headers.append(("set-cookie", f"{name}={value}; {attributes}"))
        return headers


def json_body(value: Any) -> Body:
    """Return the body for the `json` argument of a request: bytes and models unchanged, None as no body."""
    if type(value) is dict:  # checked first, because `isinstance` with a pydantic class is slow
        return encode_json(value)
    if isinstance(value, bytes) or isinstance(value, BaseModel):  # noqa: SIM101 - a union is slower
        return value
    return b"" if value is None else encode_json(value)


def encode_json(value: Any) -> bytes:
    """Encode JSON data, dates, sets and models. Integers of more than 64 bits are encoded exactly."""
    try:
        return orjson.dumps(value, default=to_jsonable_python, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
        return json.dumps(value, default=to_jsonable_python, ensure_ascii=False, allow_nan=False).encode()


def parse_json(body: bytes) -> Any:
    """Parse a JSON body strictly; integers of any size are exact.

    Raises:
        json.JSONDecodeError: the body is not JSON, or contains NaN, invalid UTF-8, lone surrogates or more than 200
            levels of nesting.
    """
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from error
