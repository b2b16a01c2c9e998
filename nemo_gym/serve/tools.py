"""Tools as methods: `@tool` on a method of a resources server adds a route, a definition and argument checks."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar, overload
from weakref import WeakValueDictionary

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from nemo_gym.errors import InvalidReward
from nemo_gym.keys import EPISODE_HEADER, RESERVED_TOOL_NAMES, SESSION_ID_KEY
from nemo_gym.serve.blocking import run_blocking
from nemo_gym.serve.call_handler import WholeResponse
from nemo_gym.serve.endpoints import json_bytes
from nemo_gym.serve.mcp_tools import TOOL_NAME
from nemo_gym.serve.session_closing import SessionCloser
from nemo_gym.serve.tool_schema import InvalidArguments, InvalidTool, ToolSignature, read_signature
from nemo_gym.wire.call_reply import parse_json
from nemo_gym.wire.episode import NO_SIGNALS, Signals, Step, as_content

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_MARK = "_nemo_gym_tool"


class ToolError(Exception):
    """A tool raises it to give the model an error message; the episode continues."""


@dataclass(frozen=True)
class ToolMark:
    """The arguments of `@tool`, stored on the method."""

    name: str | None = None
    description: str | None = None


@dataclass(frozen=True)
class ToolMethod:
    """A method of a server class that is a tool."""

    name: str
    attribute: str
    """Name of the method."""
    signature: ToolSignature
    is_async: bool

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as a model request lists it."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.signature.description,
            "parameters": self.signature.parameters,
            "strict": False,  # strict mode forbids optional arguments
        }


@overload
def tool(function: FunctionT) -> FunctionT: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[FunctionT], FunctionT]: ...
def tool(function: Any = None, *, name: str | None = None, description: str | None = None) -> Any:
    """Mark a method of a resources server as a tool that the model may call.

    The method gets the route `POST /<name>`; its definition comes from its signature and docstring and reaches the
    model through the opening of the episode. A synchronous method runs on a thread. Parameters annotated with `Request`
    or `SessionId` are filled in by the server and not shown to the model.
    """

    def mark(method: FunctionT) -> FunctionT:
        if not inspect.isfunction(method):
            raise InvalidTool("@tool needs a method", where=repr(method), fix="put @tool directly above `def`")
        setattr(method, _MARK, ToolMark(name, description))
        return method

    return mark if function is None else mark(function)


@cache
def tool_methods(server_class: type) -> Mapping[str, ToolMethod]:
    """Return the tools of a server class by name, in the order of definition. An override of a tool is a tool.

    Raises:
        InvalidTool: a method cannot be a tool, or its name is reserved, invalid or used twice.
    """
    marks: dict[str, ToolMark] = {}
    for base in reversed(server_class.__mro__):
        for attribute, value in vars(base).items():
            mark = getattr(value, _MARK, None)
            if isinstance(mark, ToolMark):
                marks[attribute] = mark
    tools: dict[str, ToolMethod] = {}
    for attribute, mark in marks.items():
        function = getattr(server_class, attribute)
        name, where = mark.name or attribute, f"{server_class.__name__}.{attribute}"
        is_reserved = name in RESERVED_TOOL_NAMES
        if is_reserved or name in tools or not TOOL_NAME.fullmatch(name):
            problem = "is reserved" if is_reserved else "is used twice" if name in tools else "is invalid"
            raise InvalidTool(f"the tool name '{name}' {problem}", where=where, fix="@tool(name=...)")
        signature = read_signature(function, where, mark.description)
        tools[name] = ToolMethod(name, attribute, signature, inspect.iscoroutinefunction(function))
    return tools


class SessionLocks:
    """One lock per session: synchronous tools of a session run one at a time, because they share its state."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, session_id: str) -> asyncio.Lock:
        lock = self._locks.get(session_id)
        if lock is None:
            lock = self._locks[session_id] = asyncio.Lock()
        return lock


async def call_in_session(locks: SessionLocks, session_id: str, call: partial[Any]) -> Any:
    """Call a method, given as a partial function; a synchronous one on a thread, one at a time in each session."""
    if inspect.iscoroutinefunction(inspect.unwrap(call.func)):
        return await call()
    async with locks.of(session_id):
        result = await run_blocking(call)
    return await result if inspect.isawaitable(result) else result


async def call_tool(
    server: Any,
    method: ToolMethod,
    arguments: Any,
    session_id: str,
    locks: SessionLocks,
    request: Request | None = None,
) -> Any:
    """Call a tool with the arguments of a model and return what it returned.

    Raises:
        ToolError: the arguments are invalid, or the tool raised it; the message is for the model.
        InvalidTool: the tool needs a request, which a step does not have.
    """
    signature = method.signature
    if signature.request_names and request is None:
        raise InvalidTool(f"the tool '{method.name}' needs a Request, which `step` does not have", fix="use SessionId")
    try:
        values = signature.bind({} if arguments is None else arguments)
    except InvalidArguments as problem:
        raise ToolError(f"invalid arguments for {method.name}: {problem}") from None
    values |= dict.fromkeys(signature.request_names, request) | dict.fromkeys(signature.session_names, session_id)
    return await call_in_session(locks, session_id, partial(getattr(server, method.attribute), **values))


def tool_response(result: Any) -> WholeResponse:
    """Return the reply of a tool: as body what the model sees, in the header the reward and the end of the episode."""
    signals = NO_SIGNALS
    content = result
    if isinstance(result, Step):
        content = result.content
        signals = Signals(reward=result.reward, done=result.done or result.truncated)
    visible = as_content(content)
    if isinstance(visible, list):
        signals = Signals(reward=signals.reward, done=signals.done, parts=True)
        body, media_type = json_bytes(visible), "application/json"
    else:
        is_text = content is None or isinstance(content, str)
        body, media_type = visible.encode(errors="replace"), "text/plain" if is_text else "application/json"
    headers = None if signals is NO_SIGNALS else {EPISODE_HEADER: signals.header_value()}
    return WholeResponse(body, media_type=media_type, headers=headers)


def tool_error(message: str, status: int = 422) -> WholeResponse:
    """Return an error for the model as the reply of a tool."""
    return WholeResponse(json_bytes({"error": message}), status, media_type="application/json")


def add_tool_routes(app: FastAPI, server: BaseModel, locks: SessionLocks, closer: SessionCloser | None) -> None:
    """Add `POST /<name>` for each tool of a server; a call marks its session as used."""
    for method in tool_methods(type(server)).values():
        schema = {"requestBody": {"content": {"application/json": {"schema": method.signature.parameters}}}}
        app.post(
            f"/{method.name}",
            name=method.name,
            description=method.signature.description,
            openapi_extra=schema,
            response_model=None,
        )(_tool_endpoint(server, method, locks, closer))


def _tool_endpoint(
    server: Any, method: ToolMethod, locks: SessionLocks, closer: SessionCloser | None
) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> WholeResponse:
        session_id = request.session[SESSION_ID_KEY]
        if closer is not None:
            closer.touch(session_id)
        body = await request.body()
        try:
            arguments = parse_json(body) if body else {}
        except ValueError as error:
            return tool_error(f"the arguments are not valid JSON: {error}")
        try:
            result = await call_tool(server, method, arguments, session_id, locks, request)
            return tool_response(result)
        except ToolError as error:
            return tool_error(str(error))
        except ValidationError as error:
            if error.title != Step.__name__:
                raise
            raise _invalid_step(error, method, server.config.name) from None

    endpoint.__name__ = method.name
    return endpoint


def _invalid_step(error: ValidationError, method: ToolMethod, where: str) -> Exception:
    """Return the failure for a step that cannot be built."""
    problem = error.errors(include_url=False)[0]
    return InvalidReward(f"{method.name} returned an invalid step: {problem['loc']}: {problem['msg']}", where=where)


def check_routes(app: FastAPI, names: Iterable[str], where: str) -> None:
    """Refuse a route with the path of a tool: the two would answer the same calls.

    Raises:
        InvalidTool: there is such a route.
    """
    paths = [route.path for route in app.routes if isinstance(route, APIRoute) and "POST" in (route.methods or ())]
    for name in names:
        if paths.count(f"/{name}") > 1:
            raise InvalidTool(f"POST /{name} is a route and a tool", where=where, fix="remove one of them")
