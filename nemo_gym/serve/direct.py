"""A short way through FastAPI for the endpoints our servers consist of.

Most endpoints take a JSON body, perhaps the request or a response to set cookies on, and nothing else. For those the
general machinery (matching every route, dependency graphs, exit stacks) costs several times what the endpoint does.
`DirectRouter` finds them by method and path and calls them at once, with the same validation and the same errors; for
everything else it is not there. `serve.short` calls the same plans for callers in this process.
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
from nemo_gym.serve.parts import Parts
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

ABSENT = object()
"""The body of a request that has none."""


PREPARED = "nemo_gym.prepared"
"""In a scope: what the endpoint did already, as a `Prepared`."""


class Prepared:
    """What an endpoint raised or returned, on its way through the layers."""

    __slots__ = ("answer", "session")

    def __init__(self, answer: Response | BaseException, session: dict[str, Any] | None) -> None:
        self.answer = answer
        self.session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.session is not None:
            scope["session"] = self.session
        if isinstance(self.answer, BaseException):
            raise self.answer
        await self.answer(scope, receive, send)


class DirectRouter:
    """Stands in front of a router's own dispatch."""

    def __init__(self, router: APIRouter) -> None:
        self.router = router
        self.general: ASGIApp = router.middleware_stack
        self._table: dict[tuple[str, str], tuple[Plan, ASGIApp]] = {}
        self._routes_seen: list[BaseRoute] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if PREPARED in scope:
            await scope[PREPARED](scope, receive, send)
            return
        if scope["type"] == "http" and not scope.get("root_path"):
            if self._routes_seen != self.router.routes:
                self._learn()
            found = self._table.get((scope["method"], scope["path"]))
            if found is not None:
                plan, endpoint = found
                scope.update(self.matched(plan))
                await endpoint(scope, receive, send)
                return
        await self.general(scope, receive, send)

    def plan(self, method: str, path: str) -> "Plan | None":
        """How to call the endpoint at a path, if it is one of the simple ones."""
        if self._routes_seen != self.router.routes:
            self._learn()
        found = self._table.get((method, path))
        return None if found is None else found[0]

    def matched(self, plan: "Plan") -> dict[str, Any]:
        """What a scope says about the route that was found."""
        return {"router": self.router, "route": plan.route, "endpoint": plan.route.endpoint, "path_params": {}}

    def _learn(self) -> None:
        """Collect the routes that can be taken directly, leaving out those an earlier route would win against."""
        table: dict[tuple[str, str], tuple[Plan, ASGIApp]] = {}
        earlier: list[Route] = []
        for route in self.router.routes:
            if not isinstance(route, Route):
                break  # a mount may match anything; what comes after it is for the general way
            plan = plan_of(route) if isinstance(route, APIRoute) else None
            if plan is not None and not any(other.path_regex.match(route.path) for other in earlier):
                table.update({(method, route.path): (plan, _app(plan)) for method in route.methods or ()})
            earlier.append(route)
        self._table = table
        self._routes_seen = list(self.router.routes)


@dataclass(frozen=True)
class Plan:
    """How to call one endpoint."""

    route: APIRoute
    call: Callable[..., Awaitable[Any]]
    bare: Callable[..., Awaitable[Any]] | None
    """The endpoint without the step that makes its model a response (`bare` on it), for callers who want the model."""
    request_name: str | None
    response_name: str | None
    body_name: str | None
    body: TypeAdapter[Any] | None
    parts: Parts | None
    """How a model that an in-memory caller sent becomes the body without being written and read again."""
    answer: TypeAdapter[Any] | None
    status: int
    takes_models: bool
    """Whether the endpoint also takes the model that an in-memory caller sent (`takes_models = True` on it)."""

    def written(self, answer: Any) -> bytes:
        """What the endpoint returned, as JSON.

        Raises:
            ResponseValidationError: it is not what the endpoint declares.
        """
        return _written(self.answer, answer)

    def injected(self) -> Response:
        """The response that an endpoint which asks for one may set cookies, headers and a status on."""
        response = Response()
        del response.headers["content-length"]
        response.status_code = 0  # until the endpoint sets one
        return response

    def response(self, answer: Any, injected: Response | None) -> Response:
        """What the endpoint returned, with what it set on the injected response, as something to send."""
        status = injected.status_code if injected is not None and injected.status_code else self.status
        response = Response(self.written(answer), status_code=status, media_type="application/json")
        if injected is not None:
            response.raw_headers.extend(injected.raw_headers)
        return response


def direct_endpoint(route: APIRoute) -> ASGIApp | None:
    """`route` as an ASGI app, if it is one of the simple ones."""
    plan = plan_of(route)
    return None if plan is None else _app(plan)


def plan_of(route: APIRoute) -> Plan | None:
    """How to call the endpoint of `route`, if it is one of the simple ones."""
    dependant = route.dependant
    call = dependant.call
    if type(route) is not APIRoute and not vars(type(route)).get("IS_PLAIN"):
        return None  # a class of somebody's own may treat requests in its own way
    if call is None or not inspect.iscoroutinefunction(call) or "{" in route.path:
        return None
    if any(getattr(dependant, part, None) for part in _UNUSED_PARTS) or len(dependant.body_params) > 1:
        return None
    if not _has_default_response(route):
        return None
    body: TypeAdapter[Any] | None = None
    body_name = None
    parts = None
    if dependant.body_params:
        field = dependant.body_params[0]
        if isinstance(field.field_info, Form) or not field.field_info.is_required() or route._embed_body_fields:
            return None
        declared: Any = Annotated[field.field_info.annotation, field.field_info]
        body = TypeAdapter(declared)
        body_name = field.name
        parts = Parts.of(field.field_info)
    return Plan(
        route=route,
        call=call,
        bare=getattr(call, "bare", None),
        request_name=dependant.request_param_name,
        response_name=dependant.response_param_name,
        body_name=body_name,
        body=body,
        parts=parts,
        answer=None if route.response_model is None else TypeAdapter(route.response_model),
        status=int(route.status_code or 200),
        takes_models=getattr(call, "takes_models", False),
    )


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


def _app(plan: Plan) -> ASGIApp:
    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        request = GymRequest(scope, receive, send)
        values: dict[str, Any] = {}
        if plan.body is not None and plan.body_name is not None:
            sent = handed_request(scope) if plan.takes_models else None
            values[plan.body_name] = sent or validated_body(plan.body, await _received(request))
        if plan.request_name is not None:
            values[plan.request_name] = request
        injected: Response | None = None
        if plan.response_name is not None:
            injected = values[plan.response_name] = plan.injected()
        answer = await plan.call(**values)
        if not isinstance(answer, Response):
            answer = plan.response(answer, injected)
        await answer(scope, receive, send)

    return endpoint


async def _received(request: GymRequest) -> Any:
    """The body as plain data if its content type says JSON, else its bytes."""
    body = await request.body()
    if not body:
        return ABSENT
    content_type = next((value for name, value in request.scope["headers"] if name == b"content-type"), b"")
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type != b"application/json" and not (
        media_type.startswith(b"application/") and media_type.endswith(b"+json")
    ):
        return body
    try:
        return await request.json()
    except json.JSONDecodeError as error:
        raise not_json(error) from error


def not_json(error: json.JSONDecodeError) -> RequestValidationError:
    """422 as FastAPI says it."""
    problem = {
        "type": "json_invalid",
        "loc": ("body", error.pos),
        "msg": "JSON decode error",
        "input": {},
        "ctx": {"error": error.msg},
    }
    return RequestValidationError([problem])


def validated_body(adapter: TypeAdapter[Any], body: Any) -> Any:
    """The body as the endpoint declares it.

    Raises:
        RequestValidationError: 422, in FastAPI's shape.
    """
    if body is ABSENT:
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        return adapter.validator.validate_python(body, from_attributes=True)
    except ValidationError as error:
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors(include_url=False)]
        raise RequestValidationError(problems, body=body) from None


def _written(adapter: TypeAdapter[Any] | None, answer: Any) -> bytes:
    if adapter is None:
        return json_bytes(answer)
    try:
        checked = adapter.validator.validate_python(answer, from_attributes=True)
    except ValidationError as error:
        problems = [{**problem, "loc": ("response", *problem["loc"])} for problem in error.errors(include_url=False)]
        raise ResponseValidationError(problems, body=answer) from None
    return adapter.serializer.to_json(checked, by_alias=True)
