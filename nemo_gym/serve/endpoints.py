"""Handlers as endpoints: their annotations made visible to FastAPI, their answers written once.

FastAPI checks what a handler returns a second time and drops the fields that the annotated class does not have. An
endpoint made here writes a returned model as it is; its annotations only make the schema.
"""

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from nemo_gym.net.handed import hand_answer
from nemo_gym.serve.requests import json_bytes

Handler = Callable[..., Any]


def json_endpoint(handler: Handler) -> Handler:
    """`handler` as an endpoint whose returned model becomes JSON by pydantic, once, with every field it has.

    Cookies and status set on an injected `Response` are kept. Anything but a model is left to FastAPI.
    """

    call = caller(handler)

    @functools.wraps(handler)
    async def endpoint(*args: Any, **kwargs: Any) -> Any:
        answer = await call(*args, **kwargs)
        return json_response(answer, kwargs.values()) if isinstance(answer, BaseModel) else answer

    endpoint.__signature__ = resolved_signature(handler)  # type: ignore[attr-defined]
    endpoint.bare = call  # type: ignore[attr-defined]  # read by serve.direct
    return endpoint


class ModelResponse(Response):
    """A model as JSON, written when it is sent; an in-memory caller is handed the model itself.

    `more` are fields for which the model's class has no room; then the JSON is what everybody gets.
    """

    def __init__(self, model: BaseModel, more: Mapping[str, Any] | None = None) -> None:
        super().__init__(media_type="application/json")
        del self.headers["content-length"]
        self.model = model
        self.more = more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.more or self.status_code != 200 or not hand_answer(scope, self.model):
            self.body = with_fields(self.model.model_dump_json(by_alias=True).encode(), self.more or {})
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def with_fields(written: bytes, more: Mapping[str, Any]) -> bytes:
    """A JSON object that is written already, with more fields at its end."""
    if not more or not written.endswith(b"}"):
        return written
    separator = b"," if len(written) > 2 else b""
    return b"".join((written[:-1], separator, json_bytes(dict(more))[1:]))


def json_response(answer: BaseModel, arguments: Iterable[Any] = (), more: Mapping[str, Any] | None = None) -> Response:
    """A response with the model as JSON, and with what was set on a `Response` among the handler's arguments."""
    response = ModelResponse(answer, more)
    for argument in arguments:
        if isinstance(argument, Response):
            response.headers.raw.extend(argument.headers.raw)
            response.status_code = argument.status_code or response.status_code
    return response


def caller(handler: Handler) -> Callable[..., Awaitable[Any]]:
    """`handler` as something to await. One that is not asynchronous runs in a thread, as FastAPI has it."""
    if inspect.iscoroutinefunction(inspect.unwrap(handler)) or inspect.iscoroutinefunction(handler):
        return handler

    async def in_a_thread(*args: Any, **kwargs: Any) -> Any:
        answer = await run_in_threadpool(handler, *args, **kwargs)
        return await answer if inspect.isawaitable(answer) else answer

    return in_a_thread


def resolved_signature(handler: Handler) -> inspect.Signature:
    """The signature with annotations as types, also where the module postpones their evaluation.

    What cannot be resolved stays as written, and FastAPI reports it.
    """
    signature = inspect.signature(handler)
    try:
        types = typing.get_type_hints(inspect.unwrap(handler), include_extras=True)
    except (NameError, TypeError):
        return signature
    return signature.replace(
        parameters=[
            parameter.replace(annotation=types.get(parameter.name, parameter.annotation))
            for parameter in signature.parameters.values()
        ],
        return_annotation=types.get("return", signature.return_annotation),
    )
