"""Endpoints: handlers as FastAPI routes, their requests, and direct calls of plain JSON endpoints.

The only inputs of a plain JSON endpoint are a JSON body, the request, and a response to set cookies on. For such
endpoints the general code of FastAPI (route matching, dependency graphs, exit stacks) costs several times as much as
the handler. `EndpointRouter` finds the `EndpointPlan` of a plain JSON endpoint by method and path; validation and
errors are the same as in FastAPI. FastAPI serves all other routes.

This is the only module that relies on FastAPI's internal description of a route (`dependant`, `_embed_body_fields`)
and on the attributes in which starlette's `Request` caches its body; `tests/serve/test_dependencies.py` fails when
those change.
"""

import functools
import inspect
import json
import re
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.datastructures import DefaultPlaceholder
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from fastapi.params import Form
from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.serve.failures import contain_stream
from nemo_gym.serve.validation_problems import list_problems
from nemo_gym.transport.large_bodies import limits, too_long_request
from nemo_gym.wire.call_reply import encode_json, encode_model, parse_json, replace_surrogates

Handler = Callable[..., Any]

OUTCOME_KEY = "nemo_gym.endpoint_outcome"
"""Key in the ASGI scope: the `EndpointOutcome` of a handler that has already run."""

_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9_.~-]*)+")

_UNSUPPORTED_PARTS = (
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
"""Parts of FastAPI's description of a route that a plain JSON endpoint does not have."""


def json_bytes(value: Any) -> bytes:
    """Encode a value as JSON with orjson; use the slower `json` for large integers and lone surrogates."""
    try:
        return orjson.dumps(value, default=jsonable_encoder, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return replace_surrogates(json.dumps(value, default=jsonable_encoder, ensure_ascii=False)).encode()


class GymRequest(Request):
    """A starlette request with strict JSON parsing and a limit on the body size."""

    async def body(self) -> bytes:
        """Return the body; raise 413 if it is longer than `max_body_bytes`."""
        if not hasattr(self, "_body"):
            chunks = []
            size = 0
            async for chunk in self.stream():
                size += len(chunk)
                _check_body_size(size)
                chunks.append(chunk)
            self._body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json

    def final_session(self) -> dict[str, Any] | None:
        """Return the session after the handler ran, which may have replaced it; None without sessions."""
        return self.scope.get("session")


def _check_body_size(size: int) -> None:
    if size > limits.body:
        raise HTTPException(413, too_long_request(limits.body))


def json_endpoint(handler: Handler) -> Handler:
    """Wrap a handler so that a model it returns is encoded once, by pydantic, with all its fields.

    FastAPI would validate the returned model again and drop the fields that the annotated class does not have. Cookies
    and a status set on an injected `Response` are kept. FastAPI encodes all values that are not models.
    """
    call = async_handler(handler)

    @functools.wraps(handler)
    async def endpoint(*args: Any, **kwargs: Any) -> Any:
        answer = await call(*args, **kwargs)
        return json_response(answer, kwargs.values()) if isinstance(answer, BaseModel) else answer

    endpoint.__signature__ = resolved_signature(handler)  # type: ignore[attr-defined]
    endpoint.raw_handler = call  # type: ignore[attr-defined]  # read by `plan_for`
    return endpoint


def json_response(
    answer: BaseModel, arguments: Iterable[Any] = (), extra_fields: Mapping[str, Any] | None = None
) -> Response:
    """Return a model as a response, with the headers and status of a `Response` among the handler's arguments."""
    response = Response(_add_fields(encode_model(answer), extra_fields or {}), media_type="application/json")
    for argument in arguments:
        if isinstance(argument, Response):
            response.headers.raw.extend(argument.headers.raw)
            response.status_code = argument.status_code or response.status_code
    return response


def _add_fields(json_object: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return an encoded JSON object with additional fields."""
    if not fields or not json_object.endswith(b"}"):
        return json_object
    separator = b"," if len(json_object) > 2 else b""
    return b"".join((json_object[:-1], separator, json_bytes(dict(fields))[1:]))


def answer_error(
    handler: Handler,
    error_class: type[Exception],
    answer: Callable[..., Any],
    check: Callable[[Any], Any] = lambda result: result,
) -> Handler:
    """Wrap a handler: its `error_class` becomes `answer(error, *arguments)`; `check` returns the result to send."""
    call = async_handler(handler)

    @functools.wraps(handler)
    async def call_or_answer(*args: Any, **kwargs: Any) -> Any:
        try:
            result = await call(*args, **kwargs)
        except error_class as error:
            return answer(error, *args, *kwargs.values())
        return check(result)

    call_or_answer.__signature__ = resolved_signature(handler)  # type: ignore[attr-defined]
    return call_or_answer


def async_handler(handler: Handler) -> Callable[..., Awaitable[Any]]:
    """Return `handler` as an async function; a synchronous handler runs in a thread, as in FastAPI."""
    if inspect.iscoroutinefunction(inspect.unwrap(handler)) or inspect.iscoroutinefunction(handler):
        return handler

    async def run_in_thread(*args: Any, **kwargs: Any) -> Any:
        answer = await run_in_threadpool(handler, *args, **kwargs)
        return await answer if inspect.isawaitable(answer) else answer

    return run_in_thread


def resolved_signature(handler: Handler) -> inspect.Signature:
    """Return the signature of a handler with string annotations resolved to types.

    If an annotation cannot be resolved, the signature is returned unchanged, and FastAPI reports the problem.
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


@dataclass(frozen=True)
class BodyFields:
    """Fields of a request body that are passed between servers of one process as objects, without JSON.

    A run request contains two models that are already validated: the model request and its response. If the receiver
    declares the same classes, the objects are passed unchanged; all other fields are encoded and parsed, as over HTTP.
    Only senders whose class sets `FIELDS_ARE_VALIDATED = True` are trusted to hold validated models. Saves 19 % of a
    rollout's CPU.
    """

    model_classes: dict[str, type[BaseModel]]
    """Model class of each field whose annotation is a model class."""
    names: frozenset[str] | None
    """Fields that the receiver declares, and their aliases; None if it also accepts other fields."""

    @classmethod
    def of(cls, declared: FieldInfo) -> "BodyFields | None":
        """Return the fields of a declared body; None unless it is a model that reads no raw input.

        A field with an alias is encoded, because senders write names; of aliases that are not texts, None is returned.
        """
        model: Any = declared.annotation
        if not _is_model_class(declared) or _reads_raw_input(model):
            return None
        fields = model.model_fields
        aliases = [field.validation_alias for field in fields.values() if field.validation_alias is not None]
        if not all(isinstance(alias, str) for alias in aliases):
            return None
        plain = {name: field for name, field in fields.items() if field.validation_alias is None}
        model_classes = {name: field.annotation for name, field in plain.items() if _is_model_class(field)}
        ignores_extra = model.model_config.get("extra", "ignore") == "ignore"
        return cls(model_classes, frozenset(map(str, [*fields, *aliases])) if ignores_extra else None)

    def extract(self, sender: BaseModel) -> dict[str, Any] | None:
        """Return the fields of `sender` as input for the receiver; None if the class of `sender` is not trusted."""
        if not getattr(type(sender), "FIELDS_ARE_VALIDATED", False):
            return None
        names = set(sender.model_fields_set)
        if self.names is not None:
            names &= self.names
        fields = {
            name: value
            for name in names & self.model_classes.keys()
            if type(value := getattr(sender, name, None)) is self.model_classes[name]
        }
        other_names = names - fields.keys()
        if other_names:
            fields.update(parse_json(encode_json(sender.model_dump(include=other_names, exclude_unset=True))))
        return fields


def _is_model_class(field: FieldInfo) -> bool:
    return inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel) and not field.metadata


def _reads_raw_input(model: type[BaseModel]) -> bool:
    """Return True if the model has validators or a constructor that receive the input before validation."""
    decorators = model.__pydantic_decorators__
    validators: list[Any] = [*decorators.model_validators.values(), *decorators.field_validators.values()]
    return (
        any(decorator.info.mode != "after" for decorator in validators)
        or bool(decorators.root_validators or decorators.validators)
        or "__get_pydantic_core_schema__" in vars(model)
        or model.__init__ is not BaseModel.__init__
    )


@dataclass(frozen=True)
class EndpointPlan:
    """Everything needed to call a plain JSON endpoint: handler, parameter names, validators."""

    route: APIRoute
    endpoint: Callable[..., Awaitable[Any]]
    handler: Callable[..., Awaitable[Any]]
    """The endpoint without the conversion of its model to a response, if `json_endpoint` wraps it."""
    request_name: str | None
    response_name: str | None
    body_name: str | None
    body: TypeAdapter[Any] | None
    body_fields: BodyFields | None
    answer: TypeAdapter[Any] | None
    status: int
    accepts_pydantic: bool
    """True if callers in this process may pass a pydantic object as the body (an attribute of the endpoint)."""

    def validate_body(self, body: Any) -> Any:
        """Validate a body given as bytes of JSON or as parsed data; return a model unchanged.

        Raises:
            RequestValidationError: the body is missing or invalid (422), in the format of FastAPI.
            HTTPException: the body is too long (413).
        """
        if type(body) is bytes:
            _check_body_size(len(body))
            return self._validate_parsed(_parse_body(body))
        return self._validate_parsed(body) if type(body) is dict else body

    def _validate_parsed(self, body: Any) -> Any:
        assert self.body is not None
        try:
            return self.body.validator.validate_python(body, from_attributes=True)
        except ValidationError as error:
            raise RequestValidationError(list_problems(error, "body"), body=body) from None

    def arguments(self, body: Any, request: Any, injected: Response | None) -> dict[str, Any]:
        """Return the keyword arguments for the handler; `body` must be validated."""
        values: dict[str | None, Any] = {self.response_name: injected, self.request_name: request, self.body_name: body}
        values.pop(None, None)  # the handler does not take all of them
        return values  # type: ignore[return-value]

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an HTTP request without FastAPI: read the body, call the endpoint and send its response."""
        request = GymRequest(scope, receive, send)
        body: Any = None
        if self.body is not None:
            body = await request.body()
            is_json = not body or is_json_type(request.headers.get("content-type", ""))
            body = self._validate_parsed(_parse_body(body) if is_json else body)
        injected = self.new_response()
        answer = await self.endpoint(**self.arguments(body, request, injected))
        if not isinstance(answer, Response):
            answer = self.response(answer, injected)
        await contain_stream(answer)(scope, receive, send)

    def new_response(self) -> Response | None:
        """Return an empty response for the handler to set cookies, headers and a status on; None if it takes none."""
        if self.response_name is None:
            return None
        response = Response()
        del response.headers["content-length"]
        response.status_code = 0  # replaced if the handler sets a status
        return response

    def encode(self, answer: Any) -> bytes:
        """Validate the value returned by the endpoint and encode it as JSON.

        Raises:
            ResponseValidationError: the value does not match the declared response model.
        """
        if self.answer is None:
            return json_bytes(answer)
        try:
            validated = self.answer.validator.validate_python(answer, from_attributes=True)
            return self.answer.serializer.to_json(validated, by_alias=True)
        except ValidationError as error:
            raise ResponseValidationError(list_problems(error, "response"), body=answer) from None
        except PydanticSerializationError:  # a lone surrogate
            return json_bytes(self.answer.serializer.to_python(validated, by_alias=True))

    def response(self, answer: Any, injected: Response | None) -> Response:
        """Return the value of the endpoint as a response, with the headers and status of the injected response."""
        status = injected.status_code if injected is not None and injected.status_code else self.status
        response = Response(self.encode(answer), status_code=status, media_type="application/json")
        if injected is not None:
            response.raw_headers.extend(injected.raw_headers)
        return response

    def result(self, answer: Any, injected: Response | None) -> Response | BaseModel | bytes:
        """Return the answer of the handler as a model or JSON bytes.

        Return a response if the handler returned one or set a status, headers or cookies, or if the route declares
        another status than 200 (which is ignored for a model from a handler of `json_endpoint`).
        """
        has_extras = injected is not None and (injected.raw_headers or injected.status_code)
        if self.handler is not self.endpoint and isinstance(answer, BaseModel):  # wrapped by `json_endpoint`
            return json_response(answer, (injected,)) if has_extras else answer
        if isinstance(answer, Response):
            return answer
        if has_extras or self.status != 200:
            return self.response(answer, injected)
        return self.encode(answer)


def plan_for(route: APIRoute) -> EndpointPlan | None:
    """Return the plan of a route; None if the route is not a plain JSON endpoint."""
    dependant = route.dependant
    endpoint = dependant.call
    if type(route) is not APIRoute and not vars(type(route)).get("IS_PLAIN"):
        return None  # another route class may process requests differently
    if endpoint is None or not inspect.iscoroutinefunction(endpoint) or "{" in route.path:
        return None
    if any(getattr(dependant, part, None) for part in _UNSUPPORTED_PARTS) or len(dependant.body_params) > 1:
        return None
    if not _has_default_response(route):
        return None
    body: TypeAdapter[Any] | None = None
    body_name, body_fields = None, None
    if dependant.body_params:
        field = dependant.body_params[0]
        if isinstance(field.field_info, Form) or not field.field_info.is_required() or route._embed_body_fields:
            return None  # form data, an optional body, or a body inside an object with the parameter's name
        declared: Any = Annotated[field.field_info.annotation, field.field_info]
        body, body_name, body_fields = TypeAdapter(declared), field.name, BodyFields.of(field.field_info)
    return EndpointPlan(
        route=route,
        endpoint=endpoint,
        handler=getattr(endpoint, "raw_handler", endpoint),
        request_name=dependant.request_param_name,
        response_name=dependant.response_param_name,
        body_name=body_name,
        body=body,
        body_fields=body_fields,
        answer=None if route.response_model is None else TypeAdapter(route.response_model),
        status=int(route.status_code or 200),
        accepts_pydantic=getattr(endpoint, "accepts_pydantic", False),
    )


def _has_default_response(route: APIRoute) -> bool:
    """Return True if the route sets no response option, except perhaps a response model and a status code.

    The response of that status must have a body.
    """
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


class EndpointOutcome:
    """The exception or response of a handler that has already run: an ASGI app that the router calls instead of it."""

    __slots__ = ("answer", "session")

    def __init__(self, answer: Response | BaseException, session: dict[str, Any] | None) -> None:
        self.answer = answer
        self.session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise the exception or send the response."""
        if self.session is not None:
            scope["session"] = self.session
        if isinstance(self.answer, BaseException):
            raise self.answer
        await contain_stream(self.answer)(scope, receive, send)


class EndpointRouter:
    """Finds plain JSON endpoints by method and path; passes all other requests to FastAPI's router."""

    def __init__(self, router: APIRouter) -> None:
        self.router = router
        self.general: ASGIApp = router.middleware_stack
        self._plans: dict[tuple[str, str], EndpointPlan] = {}
        self._plain_plans: dict[tuple[str, str], EndpointPlan] = {}
        self._seen_routes: list[BaseRoute] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request: the outcome in the scope, a plain JSON endpoint, or FastAPI's router."""
        if OUTCOME_KEY in scope:
            await scope[OUTCOME_KEY](scope, receive, send)
            return
        plan = self.plan(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if plan is None or scope.get("root_path"):
            await self.general(scope, receive, send)
        else:
            scope.update(self.route_scope(plan))
            await plan.serve(scope, receive, send)

    def plan(self, method: str, path: str) -> EndpointPlan | None:
        """Return the plan of the plain JSON endpoint at a path; None without one."""
        return self.plain_plan(method, path) or self._plans.get((method, path))

    def plain_plan(self, method: str, path: str) -> EndpointPlan | None:
        """Return the plan of the plain JSON endpoint at a path, if clients and servers encode the path in one way."""
        if self._seen_routes != self.router.routes:
            self._index_routes()
        return self._plain_plans.get((method, path))

    def route_scope(self, plan: EndpointPlan) -> dict[str, Any]:
        """Return the entries that FastAPI's router adds to a scope."""
        return {"router": self.router, "route": plan.route, "endpoint": plan.route.endpoint, "path_params": {}}

    def _index_routes(self) -> None:
        """Collect the plain JSON endpoints, except those that an earlier route matches first."""
        plans: dict[tuple[str, str], EndpointPlan] = {}
        earlier_routes: list[Route] = []
        for route in self.router.routes:
            if not isinstance(route, Route):
                break  # a mount may match any path, so FastAPI must match the routes after it
            plan = plan_for(route) if isinstance(route, APIRoute) else None
            if plan is not None and not any(other.path_regex.match(route.path) for other in earlier_routes):
                plans.update({(method, route.path): plan for method in route.methods or ()})
            earlier_routes.append(route)
        self._plans = plans
        self._plain_plans = {key: plan for key, plan in plans.items() if _PLAIN_PATH.fullmatch(key[1])}
        self._seen_routes = list(self.router.routes)


def is_json_type(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _parse_body(body: bytes) -> Any:
    """Parse a JSON body; raise `RequestValidationError` in the format of FastAPI if it is missing or not JSON."""
    if not body:
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        return parse_json(body)
    except json.JSONDecodeError as error:
        loc, ctx = ("body", error.pos), {"error": error.msg}
        problem = {"type": "json_invalid", "loc": loc, "msg": "JSON decode error", "input": {}, "ctx": ctx}
        raise RequestValidationError([problem]) from error
