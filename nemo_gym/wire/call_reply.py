"""A request to a server (`Call`) and its answer (`Reply`), independent of the transport, and their JSON encoding."""

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
    """One request to a server. A body without a content type in `headers` is JSON."""

    __slots__ = ("base_url", "body", "cookies", "headers", "method", "path", "rollout", "seconds", "server")

    def __init__(
        self,
        method: str,
        base_url: str,
        path: str,
        *,
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
        """Path and query as the caller wrote them; the id of an observed rollout is its prefix."""
        self.body = body
        self.headers = headers
        self.cookies = cookies
        self.server = server
        """Instance name of the callee, for errors."""
        self.rollout = rollout
        """The rollout that this call belongs to; None if it is unknown."""
        self.seconds = seconds
        """Time limit of the call; None for no limit."""

    def body_bytes(self) -> bytes:
        """Return the body as bytes; a model is written without its unset fields."""
        body = self.body
        return body if isinstance(body, bytes) else encode_json(body.model_dump(exclude_unset=True))

    def cookie(self, name: str) -> str | None:
        """Return the value of a cookie, or None."""
        if not self.cookies:
            return None
        value = self.cookies.get(name)
        return value.value if isinstance(value, Morsel) else value


class Reply:
    """The answer to a call. Without `headers` it is JSON, and `cookie` is the only cookie it sets."""

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
        """Every header, or None for an ordinary JSON answer."""
        self.cookie = cookie
        """Name, value and attributes of the session cookie of an ordinary answer."""

    def body_bytes(self) -> bytes:
        body = self.body
        return body if isinstance(body, bytes) else body.model_dump_json(by_alias=True).encode()

    def header_list(self) -> list[tuple[str, str]]:
        """Return every header as name and value; content-length is included only if the body is bytes."""
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
    """Convert the `json` argument of a request to a body: a model or bytes are unchanged, None is an empty body."""
    if type(value) is dict:  # first, because a check for a pydantic class is slow
        return encode_json(value)
    if isinstance(value, bytes) or isinstance(value, BaseModel):  # noqa: SIM101 - a union is slower
        return value
    return b"" if value is None else encode_json(value)


def encode_json(value: Any) -> bytes:
    """Encode plain data, dates, sets, models and the like. Integers beyond 64 bits keep their value."""
    try:
        return orjson.dumps(value, default=to_jsonable_python, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
        return json.dumps(value, default=to_jsonable_python, ensure_ascii=False, allow_nan=False).encode()


def parse_json(body: bytes) -> Any:
    """Parse a JSON body strictly.

    NaN, broken UTF-8, lone surrogates and nesting beyond 200 levels are errors; integers keep their exact value.

    Raises:
        json.JSONDecodeError: the body is not such JSON.
    """
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from error
