"""A provider's status survives although ours replaces it."""

from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from yarl import URL

from nemo_gym.capture.upstream import NoteUpstreamStatus, TellUpstreamStatus


def refusal(status: int) -> aiohttp.ClientResponseError:
    info = aiohttp.RequestInfo(URL("http://provider"), "POST", headers={}, real_url=URL("http://provider"))  # type: ignore[arg-type]
    return aiohttp.ClientResponseError(info, (), status=status)


class AnswersForFailures:
    """Stands where the exceptions of a server become answers."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(dict(scope), receive, send)
        except Exception:
            await PlainTextResponse("failed", status_code=500)(scope, receive, send)


def client(failure: Exception | None) -> TestClient:
    async def endpoint(_: Request) -> Response:
        if failure is not None:
            raise failure
        return PlainTextResponse("fine")

    inner = Starlette(routes=[Route("/", endpoint)])
    return TestClient(TellUpstreamStatus(AnswersForFailures(NoteUpstreamStatus(inner.router))))


@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_refusal_tells_what_the_provider_said(status: int) -> None:
    """Whether to try again depends on it."""
    answer = client(refusal(status)).get("/")

    assert (answer.status_code, answer.headers["x-nemo-gym-upstream-status"]) == (500, str(status))


@pytest.mark.parametrize("failure", [None, ValueError("a bug")])
def test_other_answers_do_not_have_the_header(failure: Exception | None) -> None:
    """A bug of ours must not look like a provider's."""
    assert "x-nemo-gym-upstream-status" not in client(failure).get("/").headers
