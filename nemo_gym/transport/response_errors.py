"""Errors about the response of a server: they name the server that sent it, because its caller is not at fault.

Also the headers of error responses that attribute a failure to a server.
"""

import json
from types import TracebackType
from typing import Any

import orjson
from aiohttp import ClientConnectionError, ClientPayloadError, ClientResponse, ClientResponseError
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import ValidationError

from nemo_gym.errors import DeadlineExceeded, GymError, IncompleteReply, InvalidReply, ServerUnreachable

FAILED_HEADER = "x-nemo-gym-failed"
"""Header of an error response: the instance that failed first. The failure is attributed to this instance."""
FAILED_PATH_HEADER = "x-nemo-gym-failed-path"
"""Header of an error response: the request path that failed at that instance, for example a tool or `/verify`."""
UPSTREAM_STATUS_HEADER = "x-nemo-gym-upstream-status"
"""Header of an error response: the first error status in the chain of calls, usually that of a model provider."""
ERROR_HEADER = "x-nemo-gym-error"
"""Header of an error response: the class name of the exception that caused it."""

RAISED_AT_HEADER = "x-nemo-gym-raised-at"
"""Header of an error response: file and line of the server's code that raised the exception."""


QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
"""Error codes of a 429 for which waiting does not help; the error then gets status 402."""


class ServerResponse(ClientResponse):
    """A response over HTTP whose errors name the server that sent it."""

    callee: str | None = None
    """Instance name of the server, set by `ServerClient`."""

    async def read(self) -> bytes:
        if self.callee is None:
            return await super().read()
        with naming_callee(self):
            return await super().read()

    async def json(self, **options: Any) -> Any:
        if self.callee is None:
            return await super().json(**options)
        with naming_callee(self):
            return await super().json(**options)

    def raise_for_status(self) -> None:
        with naming_callee(self):
            super().raise_for_status()


def _callee(response: Any) -> str | None:
    name = getattr(response, "callee", None)
    return name if isinstance(name, str) else None  # a mock has any attribute


def invalid_reply(response: Any, problem: str) -> InvalidReply:
    path = response.url.path
    return InvalidReply(f"the answer to {path} {problem}", where=_callee(response), path=path)


class naming_callee:  # noqa: N801 - called like a function, for every response
    """`with naming_callee(response)`: errors about the response name the server that sent it, not its caller."""

    __slots__ = ("_response",)

    def __init__(self, response: Any) -> None:
        self._response = response

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            raise_named_error(error, self._response)


def raise_named_error(error: Exception, response: Any) -> None:
    """Raise the error that names the server; return if `error` is of another kind or the server is unknown.

    A timeout is always a `DeadlineExceeded`, and names at least the URL.
    """
    if isinstance(error, GymError):
        return
    server = _callee(response)
    if isinstance(error, TimeoutError):
        where = server or str(getattr(response, "url", "")) or None
        raise DeadlineExceeded("the answer began but did not end in time", where=where) from error
    if server is None:
        return
    if isinstance(error, ClientResponseError):
        name_failed_server(error, server, response.url.path)
    elif isinstance(error, ClientConnectionError):
        response.close()
        raise ServerUnreachable("ended before its answer was complete", where=server) from error
    elif isinstance(error, ClientPayloadError):
        response.close()
        path = response.url.path
        raise IncompleteReply(f"the answer to {path} breaks off ({error})", where=server, path=path) from error
    elif isinstance(error, json.JSONDecodeError | UnicodeDecodeError | ValidationError):
        raise invalid_reply(response, f"is invalid: {error}") from error


def name_failed_server(error: ClientResponseError, server: str, path: str) -> None:
    """Attribute an error to a server, unless its headers name another one."""
    headers: CIMultiDict[str] = CIMultiDict(error.headers or {})
    if not headers.get(FAILED_HEADER):
        headers.update({FAILED_HEADER: server, FAILED_PATH_HEADER: path})
        error.headers = CIMultiDictProxy(headers)


def is_quota_used_up(rejection: ClientResponseError) -> bool:
    """Return whether a 429 reports an exhausted quota instead of a rate limit."""
    try:
        error = orjson.loads(getattr(rejection, "response_content", b""))["error"]
        return not QUOTA_CODES.isdisjoint((error.get("code"), error.get("type")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
