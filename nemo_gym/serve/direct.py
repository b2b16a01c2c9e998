"""A short way through FastAPI for the endpoints our servers consist of.

Most endpoints take a JSON body, perhaps the request or a response to set cookies on, and nothing else. For those the
general machinery (matching every route, dependency graphs, exit stacks) costs several times what the endpoint does.
`DirectRouter` finds them by method and path and calls them at once, with the same validation and the same errors; for
everything else it is not there.
"""

import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Response
from fastapi.datastructures import DefaultPlaceholder
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from fastapi.params import Form
from fastapi.routing import APIRoute, APIRouter
from pydantic import TypeAdapter, ValidationError
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.net.handed import handed_request
from nemo_gym.serve.requests import GymRequest, json_bytes

_UNUSED_PARTS = (
    "dependencies",
    "path_params",
    "query_params",
    "header_params",
    "cookie_params",
    "websocket_param_name",
    "http_connection_param_name",
    "background_tasks_param_name",
    "security_scopes_param_name",
)

_ABSENT = object()


class DirectRouter:
    """Stands in front of a router's own dispatch."""

    def __init__(self, router: APIRouter) -> None:
        self.router = router
        self.general: ASGIApp = router.middleware_stack
        self._table: dict[tuple[str, str], tuple[APIRoute, ASGIApp]] = {}
        self._routes_seen: list[BaseRoute] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope.get("root_path"):
            if self._routes_seen != self.router.routes:
                self._learn()
            found = self._table.get((scope["method"], scope["path"]))
            if found is not None:
                route, endpoint = found
                scope["router"] = self.router
                scope["route"] = route
                scope["endpoint"] = route.endpoint
                scope["path_params"] = {}
                await endpoint(scope, receive, send)
                return
        await self.general(scope, receive, send)

    def _learn(self) -> None:
        """Collect the routes that can be taken directly, leaving out those an earlier route would win against."""
        table: dict[tuple[str, str], tuple[APIRoute, ASGIApp]] = {}
        earlier: list[Route] = []
        for route in self.router.routes:
            if not isinstance(route, Route):
                break  # a mount may match anything; what comes after it is for the general way
            endpoint = direct_endpoint(route) if isinstance(route, APIRoute) else None
            if endpoint is not None and not any(other.path_regex.match(route.path) for other in earlier):
                assert isinstance(route, APIRoute)
                table.update({(method, route.path): (route, endpoint) for method in route.methods or ()})
            earlier.append(route)
        self._table = table
        self._routes_seen = list(self.router.routes)


@dataclass(frozen=True)
class _Plan:
    """How to call one endpoint."""

    call: Callable[..., Awaitable[Any]]
    request_name: str | None
    response_name: str | None
    body_name: str | None
    body: TypeAdapter[Any] | None
    answer: TypeAdapter[Any] | None
    status: int
    takes_models: bool
    """Whether the endpoint also takes the model that an in-memory caller sent (`takes_models = True` on it)."""


def direct_endpoint(route: APIRoute) -> ASGIApp | None:
    """`route` as an ASGI app, if it is one of the simple ones."""
    dependant = route.dependant
    call = dependant.call
    if call is None or not inspect.iscoroutinefunction(call) or "{" in route.path:
        return None
    if any(getattr(dependant, part, None) for part in _UNUSED_PARTS) or len(dependant.body_params) > 1:
        return None
    if not _has_default_response(route):
        return None
    body: TypeAdapter[Any] | None = None
    body_name = None
    if dependant.body_params:
        field = dependant.body_params[0]
        if isinstance(field.field_info, Form) or not field.field_info.is_required() or route._embed_body_fields:
            return None
        declared: Any = Annotated[field.field_info.annotation, field.field_info]
        body = TypeAdapter(declared)
        body_name = field.name
    answer = None if route.response_model is None else TypeAdapter(route.response_model)
    plan = _Plan(
        call,
        dependant.request_param_name,
        dependant.response_param_name,
        body_name,
        body,
        answer,
        int(route.status_code or 200),
        getattr(call, "takes_models", False),
    )
    return _app(plan)


def _has_default_response(route: APIRoute) -> bool:
    return (
        isinstance(route.response_class, DefaultPlaceholder)
        and (route.status_code is None or 200 <= int(route.status_code) < 600)
        and route.status_code not in (204, 205, 304)
        and route.response_model_include is None
        and route.response_model_exclude is None
        and route.response_model_by_alias
        and not route.response_model_exclude_unset
        and not route.response_model_exclude_defaults
        and not route.response_model_exclude_none
    )


def _app(plan: _Plan) -> ASGIApp:
    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        request = GymRequest(scope, receive, send)
        values: dict[str, Any] = {}
        if plan.body is not None and plan.body_name is not None:
            sent = handed_request(scope) if plan.takes_models else None
            values[plan.body_name] = sent or _validated(plan.body, await _received(request))
        if plan.request_name is not None:
            values[plan.request_name] = request
        injected: Response | None = None
        if plan.response_name is not None:
            injected = values[plan.response_name] = Response()
            del injected.headers["content-length"]
            injected.status_code = 0  # until the endpoint sets one
        answer = await plan.call(**values)
        if not isinstance(answer, Response):
            status = injected.status_code if injected is not None and injected.status_code else plan.status
            answer = Response(_written(plan.answer, answer), status_code=status, media_type="application/json")
            if injected is not None:
                answer.raw_headers.extend(injected.raw_headers)
        await answer(scope, receive, send)

    return endpoint


async def _received(request: GymRequest) -> Any:
    """The body as plain data if its content type says JSON, else its bytes."""
    body = await request.body()
    if not body:
        return _ABSENT
    content_type = next((value for name, value in request.scope["headers"] if name == b"content-type"), b"")
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type != b"application/json" and not (
        media_type.startswith(b"application/") and media_type.endswith(b"+json")
    ):
        return body
    try:
        return await request.json()
    except json.JSONDecodeError as error:
        problem = {
            "type": "json_invalid",
            "loc": ("body", error.pos),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
        raise RequestValidationError([problem]) from error


def _validated(adapter: TypeAdapter[Any], body: Any) -> Any:
    if body is _ABSENT:
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        return adapter.validate_python(body, from_attributes=True)
    except ValidationError as error:
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors(include_url=False)]
        raise RequestValidationError(problems, body=body) from None


def _written(adapter: TypeAdapter[Any] | None, answer: Any) -> bytes:
    if adapter is None:
        return json_bytes(answer)
    try:
        checked = adapter.validate_python(answer, from_attributes=True)
    except ValidationError as error:
        problems = [{**problem, "loc": ("response", *problem["loc"])} for problem in error.errors(include_url=False)]
        raise ResponseValidationError(problems, body=answer) from None
    return adapter.dump_json(checked, by_alias=True)
