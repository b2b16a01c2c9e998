"""Reading responses: JSON bodies and errors that keep what the server said.

The functions also take the stand-ins that tests of server folders return from mocked calls: objects that have only
some of `.ok`, `.status`, `.read()`, `.json()` and `.content.read()`.
"""

import inspect
from typing import Any, TypeVar

import orjson
from aiohttp import ClientResponse, ClientResponseError, RequestInfo
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import BaseModel
from yarl import URL

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.net.local_response import LocalResponse

FAILED_HEADER = "x-nemo-gym-failed"
"""On an error response: the instance that failed first. Callers attribute the failure to it, once."""
FAILED_PATH_HEADER = "x-nemo-gym-failed-path"
"""On an error response: what the instance that failed first was asked for, so that a tool is told from a verdict."""
UPSTREAM_STATUS_HEADER = "x-nemo-gym-upstream-status"
"""On an error response: the status the failure began with, that of a provider outside the run if it was one."""
ERROR_HEADER = "x-nemo-gym-error"
"""On an error response: the class of the exception behind it."""

Model = TypeVar("Model", bound=BaseModel)

_PLAIN = (dict, list, str, int, float, bool, type(None))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _body_of(response: Any) -> bytes | None:
    """The body of a response or stand-in, or None if it has no way to give one."""
    for reader in (getattr(response, "read", None), getattr(getattr(response, "content", None), "read", None)):
        if callable(reader):
            body = await _awaited(reader())
            if isinstance(body, bytes | bytearray):
                return bytes(body)
            if isinstance(body, str):
                return body.encode()
    return None


async def read_body(response: ClientResponse | LocalResponse) -> bytes:
    """The whole body. A deadline that passes while reading is reported as one."""
    if isinstance(response, LocalResponse):
        return await response.read()
    try:
        body = await _body_of(response)
    except TimeoutError as error:
        raise DeadlineExceeded(
            "the answer began but did not end in time", where=str(getattr(response, "url", "")) or None
        ) from error
    return body or b""


async def get_response_json(response: ClientResponse | Any) -> Any:
    """The JSON body of a response as plain data."""
    if isinstance(response, LocalResponse):
        return orjson.loads(await response.read())
    if isinstance(response, ClientResponse):
        return orjson.loads(await read_body(response))
    body = await _body_of(response)
    if body is not None:
        return orjson.loads(body)
    parsed = await _awaited(response.json())
    if isinstance(parsed, _PLAIN):
        return parsed
    raise TypeError(f"{type(response).__name__} has no JSON body to read")


async def get_response_model(response: ClientResponse | Any, kind: type[Model]) -> Model:
    """The body of a response as a model; the very model that was answered, where the server is in this process."""
    answered = getattr(response, "model", None)
    if isinstance(answered, kind):
        return answered
    return kind.model_validate(await get_response_json(response))


def is_ok(response: Any) -> bool:
    """Whether a response, or what stands in for one, is no error."""
    if isinstance(response, LocalResponse):
        return response.status < 400
    ok = getattr(response, "ok", None)
    if isinstance(ok, bool):
        return ok
    status = getattr(response, "status", None)
    return not isinstance(status, int) or status < 400


async def raise_for_status(response: ClientResponse) -> None:
    """Raise aiohttp's ClientResponseError for 4xx and 5xx, with the body as its attribute `response_content`."""
    if is_ok(response):
        return
    content = await read_body(response)
    error = await _response_error(response)
    error.response_content = content  # type: ignore[attr-defined]  # callers rely on it, aiohttp has no such field
    raise error


async def _response_error(response: Any) -> ClientResponseError:
    own = getattr(response, "raise_for_status", None)
    try:
        if callable(own):
            await _awaited(own())
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
