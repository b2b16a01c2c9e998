"""`Call` and `Reply`: a request to a server and its answer, for every carrier; JSON encoding and parsing.

A lone surrogate (half a character, which models write as `\\ud83d`) cannot be encoded as UTF-8. Encoders write U+FFFD
for it, so that what a model wrote can always be sent and stored.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from http.cookies import Morsel
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

from nemo_gym.wire.stored_rollout import RolloutId

Cookies = Mapping[str, "str | Morsel[str]"]
Body = bytes | BaseModel

MAX_ARGUMENT_DEPTH = 100
"""Levels of nesting in the arguments of a tool call; encoders fail at about 250."""

REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


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
        """Task index and rollout index of the rollout that this call belongs to; None if unknown."""
        self.seconds = seconds
        """Seconds from the start of the call to its deadline; None without a deadline."""

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
        """Name, value and attributes of the session cookie that the answer sets, also if `headers` contain it."""

    def body_bytes(self) -> bytes:
        body = self.body
        return body if isinstance(body, bytes) else encode_model(body)

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
    """Return the body for the `json` argument of a request. Bytes and models stay as they are; None means no body."""
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
        if not any(reason in str(error) for reason in ("64-bit", "surrogates")):
            raise
        text = json.dumps(value, default=to_jsonable_python, ensure_ascii=False, allow_nan=False)
        return replace_surrogates(text).encode()


def encode_model(model: BaseModel) -> bytes:
    """Encode all fields of a model under their aliases."""
    try:
        return model.model_dump_json(by_alias=True).encode()
    except PydanticSerializationError as error:
        if "surrogates" not in str(error):
            raise
        return encode_json(model.model_dump(by_alias=True))


def replace_surrogates(text: str) -> str:
    """Return `text` with U+FFFD in place of lone surrogates."""
    return _LONE_SURROGATE.sub("\ufffd", text)


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


def parse_lenient_json(body: bytes) -> Any:
    """Parse JSON that strict parsers reject into values that every encoder accepts.

    Lone surrogates become U+FFFD. Integers of more than 64 bits become floats. NaN, Infinity and numbers beyond the
    range of a double become null.

    Raises:
        ValueError: the body is not JSON, or is nested too deep.
    """
    try:
        value = json.loads(body, parse_constant=lambda _: None, parse_int=_finite_int, parse_float=_finite_float)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return orjson.loads(replace_surrogates(json.dumps(value, ensure_ascii=False)))


def _finite_float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _finite_int(text: str) -> float | None:
    """Parse an integer; it becomes a float if it is so long that it may need more than 64 bits."""
    return int(text) if len(text) < len("-9223372036854775808") else _finite_float(text)


def parse_tool_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments of a model's tool call. Agents and verifiers use it, so that both accept the same arguments.

    Raises:
        ValueError: the arguments are not a JSON object, or contain NaN, a number beyond the range of a double, a lone
            surrogate or more than `MAX_ARGUMENT_DEPTH` levels. The message is written for the model.
    """
    text = text or "{}"
    try:
        # Only orjson rejects numbers beyond the range of a double; only `from_json` reads large integers exactly.
        orjson.loads(text)
        arguments = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"The arguments are not valid JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise ValueError("Tool arguments must be a JSON object.")
    if text.count("{") + text.count("[") > MAX_ARGUMENT_DEPTH and _depth(arguments) > MAX_ARGUMENT_DEPTH:
        raise ValueError(f"The arguments are nested more than {MAX_ARGUMENT_DEPTH} levels deep.")
    return arguments


def _depth(value: Any) -> int:
    """Return the number of nesting levels of parsed JSON."""
    depth, level = 0, [value]
    while containers := [element for element in level if isinstance(element, (dict, list))]:
        depth += 1
        level = [inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return depth
