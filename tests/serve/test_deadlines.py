"""A request is served only as long as its caller waits."""

import asyncio

import pytest
from fastapi.testclient import TestClient

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.net import deadline
from nemo_gym.serve.app import create_app
from nemo_gym.serve.deadlines import DeadlineMiddleware
from nemo_gym.serve.failures import FailureMiddleware


def client(log: list[str]) -> TestClient:
    app = create_app()

    @app.get("/left")
    async def left() -> float | None:
        return deadline.remaining()

    @app.get("/wait")
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("stopped")

    @app.get("/own")
    async def own() -> None:
        raise TimeoutError("of the handler's own making")

    app.add_middleware(DeadlineMiddleware, server_name="env")
    app.add_middleware(FailureMiddleware, server_name="env")
    return TestClient(app)


def test_the_callers_deadline_is_known_inside():
    answer = client([]).get("/left", headers={DEADLINE_HEADER: "30"}).json()

    assert 0 < answer <= 30


@pytest.mark.parametrize("headers", [{}, {DEADLINE_HEADER: "soon"}, {DEADLINE_HEADER: "-3"}])
def test_without_a_readable_deadline_there_is_none(headers):
    assert client([]).get("/left", headers=headers).json() is None


def test_work_nobody_waits_for_is_cancelled_and_answered_504():
    log: list[str] = []

    answer = client(log).get("/wait", headers={DEADLINE_HEADER: "0.02"})

    assert answer.status_code == 504
    assert log == ["stopped"]


def test_a_timeout_of_the_handlers_own_is_not_mistaken_for_the_deadline():
    """A tool's own timeout is a 500 of that tool, not of the caller's patience."""
    answer = client([]).get("/own", headers={DEADLINE_HEADER: "60"})

    assert answer.status_code == 500


@pytest.mark.asyncio
async def test_the_error_names_the_server():
    async def app(scope, receive, send):
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(DEADLINE_HEADER.encode(), b"0")]}
    with pytest.raises(DeadlineExceeded) as caught:
        await DeadlineMiddleware(app, server_name="env")(scope, None, None)
    assert caught.value.where == "env"
