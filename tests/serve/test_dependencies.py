"""Private attributes of FastAPI, starlette and aiohttp that we rely on still exist.

Each is used in one module only. When a dependency changes, the test names the module to adapt.
"""

import asyncio
import inspect
from typing import Any

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from fastapi import Body, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import Request as StarletteRequest

from nemo_gym.serve import endpoints


def test_fastapi_describes_a_route_as_the_endpoint_plans_expect() -> None:
    """`serve.endpoints` reads which parameters a handler takes."""
    app = FastAPI()

    @app.post("/x")
    async def handler(request: Request, response: Response, body: dict[str, Any] = Body()) -> None: ...

    route = app.router.routes[-1]
    assert isinstance(route, APIRoute)
    assert route.dependant.call is handler
    assert (route.dependant.request_param_name, route.dependant.response_param_name) == ("request", "response")
    assert [field.name for field in route.dependant.body_params] == ["body"]
    assert route._embed_body_fields is False
    missing = [part for part in endpoints._UNSUPPORTED_PARTS if not hasattr(route.dependant, part)]
    assert missing == []


def test_starlette_keeps_a_request_in_the_attributes_that_requests_set() -> None:
    """`serve.call_handler` builds a request without calling its constructor; `serve.endpoints` caches its body."""
    source = inspect.getsource(StarletteRequest)

    assert all(f"self.{name}" in source for name in ("_receive", "_stream_consumed", "_is_disconnected", "_body"))


def test_fastapi_apps_have_a_middleware_stack_that_may_be_built_early() -> None:
    """`serve.app` builds it to find out whether it knows every layer."""
    app = FastAPI()

    assert app.middleware_stack is None
    assert callable(app.build_middleware_stack())


async def test_an_aiohttp_connector_can_be_closed_without_its_loop() -> None:
    """`transport.http_sessions` does that for loops that were closed without shutting down."""
    connector = aiohttp.TCPConnector()

    closing = connector._close()
    if inspect.isawaitable(closing):
        await closing
    await asyncio.sleep(0)

    assert connector.closed


def test_aiohttp_names_a_connection_by_a_key_of_seven_parts() -> None:
    """`transport.model_connections` raises aiohttp's connection errors."""
    key = ConnectionKey("h", 1, False, True, None, None, None)

    assert str(aiohttp.ClientConnectorError(key, OSError(111, "refused")))
