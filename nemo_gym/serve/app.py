"""The FastAPI app of our servers: strict JSON parsing, orjson responses, liveness at `GET /`."""

import logging
import warnings
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.datastructures import Default
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic.warnings import UnsupportedFieldAttributeWarning
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.serve.call_handler import CallHandler, has_only_known_layers
from nemo_gym.serve.cancellation import answer_cancel, is_cancel_request
from nemo_gym.serve.correlation import ROLLOUT_PREFIX_START
from nemo_gym.serve.endpoints import OUTCOME_KEY, EndpointRouter, GymRequest, json_bytes
from nemo_gym.serve.failures import ExitGuard, FailureMiddleware, contain_stream
from nemo_gym.serve.validation_problems import shown_problems
from nemo_gym.transport import deadlines
from nemo_gym.transport.asgi import run_app
from nemo_gym.transport.in_process import Handle
from nemo_gym.wire.call_reply import Call, Reply

logger = logging.getLogger("nemo_gym.serve")


class GymRoute(APIRoute):
    """A FastAPI route whose handler receives a `GymRequest`."""

    IS_PLAIN = True
    """Read by `endpoints.plan_for`: this class processes requests as `APIRoute` does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return contain_stream(await handler(GymRequest(request.scope, request.receive)))

        return handle


class GymApp(FastAPI):
    """A FastAPI app with `handle(call)`. HTTP requests to plain JSON endpoints take the same path as calls."""

    _handler: CallHandler | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to a plain JSON endpoint directly, and other requests through FastAPI."""
        if scope["type"] == "http" and OUTCOME_KEY not in scope:
            if scope["path"].startswith(ROLLOUT_PREFIX_START) and is_cancel_request(scope):
                await answer_cancel(scope, send, getattr(self.state, "agent_name", ""))
                return
            handler = self.call_handler
            if handler is not None and await handler.serve_http(scope, receive, send):
                return
        await super().__call__(scope, receive, send)

    @cached_property
    def handle(self) -> Handle:
        """The function that answers a `Call` with a `Reply`."""
        if self.call_handler is not None:
            return self.call_handler.handle

        async def handle_through_stack(call: Call, alarm: deadlines.Alarm | None = None) -> Reply:
            return await run_app(self, call, caller_enforces_deadline=alarm is not None)

        return handle_through_stack

    @cached_property
    def call_handler(self) -> CallHandler | None:
        """The handler of plain JSON endpoints; None if every call must go through the ASGI stack."""
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        return self._handler

    def build_middleware_stack(self) -> ASGIApp:
        """Build the stack and the call handler; without `FailureMiddleware`, FastAPI's stack and no call handler."""
        classes: list[object] = [middleware.cls for middleware in self.user_middleware]
        if FailureMiddleware not in classes:
            return super().build_middleware_stack()
        handlers = {key: value for key, value in self.exception_handlers.items() if key not in (500, Exception)}
        stack: ASGIApp = ExceptionMiddleware(AsyncExitStackMiddleware(ExitGuard(self.router)), handlers=handlers)
        layers: list[Any] = []
        for cls, args, kwargs in reversed(self.user_middleware):
            stack = cls(stack, *args, **kwargs)
            layers.append(stack)
        self._handler = self._make_handler(layers)
        return stack

    def _make_handler(self, layers: list[Any]) -> CallHandler | None:
        """Return the handler of plain JSON endpoints; None if the app has unknown middleware or features."""
        router = self.router.middleware_stack
        telemetry = getattr(self, "_native_telemetry", None)
        has_telemetry = telemetry is not None and telemetry.enabled()
        if type(self) is not GymApp or self.root_path or has_telemetry or not isinstance(router, EndpointRouter):
            return None
        if not has_only_known_layers(self.user_middleware):
            return None
        by_name = {vars(type(layer))["LAYER"]: layer for layer in layers}
        server_name = by_name["failures"].server_name
        return CallHandler(self, router, by_name.get("session"), server_name, has_rollout_prefixes="rollout" in by_name)

    def openapi(self) -> dict[str, Any]:
        # FastAPI suppresses this warning when it creates a route, but some types are built later, on first use.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
            return super().openapi()


class GymJSONResponse(JSONResponse):
    """JSON response encoded by orjson, for handlers without a response model."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


async def answer_invalid_request(request: Request, error: Exception) -> Response:
    """Answer 422 in the format of FastAPI with secrets masked, and log the problems."""
    assert isinstance(error, RequestValidationError)
    problems = shown_problems(list(error.errors()))
    summary = "; ".join(f"{'.'.join(map(str, p.get('loc', ())))}: {p.get('msg', '')}" for p in problems[:5])
    logger.warning("%s %s: 422: %s", request.method, request.url.path, summary)
    return Response(json_bytes({"detail": problems}), status_code=422, media_type="application/json")


def create_app(title: str = "NeMo Gym server", **options: Any) -> FastAPI:
    """Create a FastAPI app with our request parsing, JSON responses and 422 answers. `options` are those of FastAPI."""
    app = GymApp(title=title, default_response_class=Default(GymJSONResponse), **options)
    app.router.route_class = GymRoute
    app.router.middleware_stack = EndpointRouter(app.router)
    app.add_exception_handler(RequestValidationError, answer_invalid_request)
    return app


async def _answer_ok(_: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type="application/json")


LIVENESS_PATHS = ("/", "/health", "/healthz", "/livez", "/readyz")
"""The root, and the paths that load balancers and orchestrators ask by default."""


def add_liveness(app: FastAPI) -> None:
    """Answer `GET /` and its aliases with `{"status": "ok"}`, outside the API schema. Idempotent.

    A route of the app with one of these paths comes first.
    """
    if not any(isinstance(route, Route) and route.endpoint is _answer_ok for route in app.router.routes):
        for path in LIVENESS_PATHS:
            app.router.routes.append(Route(path, _answer_ok, methods=["GET"], include_in_schema=False))
