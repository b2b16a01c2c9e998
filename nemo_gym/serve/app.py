"""The FastAPI app our servers are made of: strict about JSON bodies, quick with JSON answers."""

import logging
import warnings
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.datastructures import Default
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic.warnings import UnsupportedFieldAttributeWarning
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp

from nemo_gym.config.secrets import MASK, is_secret_name, mask_secrets
from nemo_gym.serve.direct import DirectRouter
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.requests import GymRequest, json_bytes
from nemo_gym.serve.short import ShortWay, knows_short_way

logger = logging.getLogger("nemo_gym.serve")


class GymRoute(APIRoute):
    """A route that hands its handler a `GymRequest`."""

    IS_PLAIN = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(GymRequest(request.scope, request.receive))

        return handle


class GymApp(FastAPI):
    """FastAPI whose schema can be asked for without a warning about its own body fields.

    FastAPI silences it while a route is made, but types that are built on first use are built later than that.
    """

    hands_models: bool = False
    """Whether in-memory callers may be handed models: every layer lets bodies pass unread."""
    _short_way: ShortWay | None = None

    def build_middleware_stack(self) -> ASGIApp:
        """FastAPI's stack; without its outer error layers where our own already answer for every failure."""
        layers: list[object] = [middleware.cls for middleware in self.user_middleware]
        if FailureMiddleware not in layers:
            return super().build_middleware_stack()
        handlers = {key: value for key, value in self.exception_handlers.items() if key not in (500, Exception)}
        self.hands_models = all(
            getattr(middleware.cls, "LETS_BODIES_PASS", False) and middleware.kwargs.get("store") is None
            for middleware in self.user_middleware
        )
        stack: ASGIApp = ExceptionMiddleware(AsyncExitStackMiddleware(self.router), handlers=handlers)
        made: list[Any] = []
        for cls, args, kwargs in reversed(self.user_middleware):
            stack = cls(stack, *args, **kwargs)
            made.append(stack)
        self._short_way = self._find_short_way(made)
        return stack

    @cached_property
    def short_way(self) -> ShortWay | None:
        """How callers in this process reach the endpoints without ASGI; None if they must not."""
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        return self._short_way

    def _find_short_way(self, made: list[Any]) -> ShortWay | None:
        router = self.router.middleware_stack
        telemetry = getattr(self, "_native_telemetry", None)
        watched = telemetry is not None and telemetry.enabled()
        if type(self) is not GymApp or self.root_path or watched or not isinstance(router, DirectRouter):
            return None
        if not knows_short_way(self.user_middleware):
            return None
        layers = {vars(type(layer))["SHORT_WAY"]: layer for layer in made}
        return ShortWay(
            self, router, layers.get("session"), layers["failures"].server_name, rollouts="rollout" in layers
        )

    def openapi(self) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
            return super().openapi()


class GymJSONResponse(JSONResponse):
    """JSON by orjson, for handlers that declare no response model."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


async def invalid_request(request: Request, error: Exception) -> Response:
    """422 in FastAPI's usual shape, without secrets; the log says what was wrong."""
    assert isinstance(error, RequestValidationError)
    problems = [_without_secrets(problem) for problem in error.errors()]
    summary = "; ".join(f"{'.'.join(map(str, p.get('loc', ())))}: {p.get('msg', '')}" for p in problems[:5])
    logger.warning("%s %s: 422, %d problem(s): %s", request.method, request.url.path, len(problems), summary)
    return Response(json_bytes({"detail": problems}), status_code=422, media_type="application/json")


def _without_secrets(problem: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in problem.items() if key != "input"}
    shown: dict[str, Any] = jsonable_encoder(rest, custom_encoder={ValueError: str, AssertionError: str})
    if "input" in problem:
        secret = any(isinstance(part, str) and is_secret_name(part) for part in problem.get("loc", ()))
        shown["input"] = MASK if secret else mask_secrets(_plain(problem["input"]))
    return shown


def _plain(value: Any) -> Any:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes | bytearray) else jsonable_encoder(value)


def create_app(title: str = "NeMo Gym server", **options: Any) -> FastAPI:
    """A FastAPI app with our request parsing, JSON responses and 422 answers. `options` are FastAPI's."""
    app = GymApp(title=title, default_response_class=Default(GymJSONResponse), **options)
    app.router.route_class = GymRoute
    app.router.middleware_stack = DirectRouter(app.router)
    app.add_exception_handler(RequestValidationError, invalid_request)
    return app
