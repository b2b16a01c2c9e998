"""`GET /`: the server is up."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_OK = b'{"status":"ok"}'


async def _alive(_: Request) -> Response:
    return Response(_OK, media_type="application/json")


def add_liveness(app: FastAPI) -> None:
    """Answer `GET /` with `{"status": "ok"}`, outside the API schema. Doing it twice changes nothing."""
    if not any(isinstance(route, Route) and route.endpoint is _alive for route in app.router.routes):
        app.router.routes.append(Route("/", _alive, methods=["GET"], include_in_schema=False))
