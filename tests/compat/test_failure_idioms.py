"""What a caller sees when a handler fails, and the small parts of the server base that folders call themselves."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from aiohttp import ClientResponseError
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import (
    NEMO_GYM_MCP_SESSION_TOKEN_HEADER,
    RESERVED_MCP_TOOL_NAMES,
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
    normalize_tool_name,
)
from nemo_gym.server_utils import ServerClient, SimpleServer


class Fragile(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for tool in (self.bug, self.upstream, self.refusal):
            app.post(f"/{tool.__name__}")(tool)
        return app

    async def bug(self) -> None:
        raise RuntimeError("the boiler exploded")

    async def upstream(self) -> None:
        error = ClientResponseError(request_info=MagicMock(), history=(), status=429, message="Too Many Requests")
        error.response_content = b'{"detail": "quota used up"}'
        raise error

    async def refusal(self) -> None:
        raise HTTPException(409, "not twice")

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=0.0)


def fragile(name: str = "fragile_1") -> Fragile:
    config = BaseResourcesServerConfig(host="0.0.0.0", port=8080, entrypoint="", name=name)
    return Fragile(config=config, server_client=MagicMock(spec=ServerClient))


def post(path: str) -> Any:
    server = fragile()
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    return TestClient(app).post(path, json={})


def test_a_bug_in_a_handler_is_a_500_that_says_what_it_was():
    """Agents put this text in front of the model or into the failures file; an empty 500 does not help."""
    reply = post("/bug")

    assert reply.status_code == 500
    assert isinstance(reply.json(), str) and "the boiler exploded" in reply.json()


def test_a_failed_call_to_another_server_carries_its_words_on():
    """The reason two hops away is still readable, with the name of who passed it on."""
    reply = post("/upstream")

    assert reply.status_code == 500
    assert "quota used up" in reply.json()
    assert "fragile_1" in reply.json()


def test_a_deliberate_refusal_keeps_its_status():
    """`HTTPException` is an answer, not an accident."""
    reply = post("/refusal")

    assert (reply.status_code, reply.json()) == (409, {"detail": "not twice"})


def test_the_server_lives_on_after_a_bug():
    """One bad request must not take the sessions of the others with it."""
    server = fragile()
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    client = TestClient(app)

    assert [client.post(path, json={}).status_code for path in ("/bug", "/refusal")] == [500, 409]


def test_liveness_is_added_at_the_root():
    """Readiness checks ask `GET /` of every server."""
    server = fragile()
    app = server.setup_webserver()
    server.setup_liveness(app)

    assert TestClient(app).get("/").json() == {"status": "ok"}


def test_the_schema_shows_the_tools_and_not_the_liveness():
    """People open `/docs` to see what a server offers; it must come without warnings, too."""
    server = fragile()
    app = server.setup_webserver()
    server.setup_liveness(app)

    paths = TestClient(app).get("/openapi.json").json()["paths"]

    assert {"/verify", "/seed_session", "/refusal"} <= set(paths)
    assert "/" not in paths


def test_the_session_key_names_class_and_instance():
    """Two instances of one class set two cookies; a client may hold both."""
    assert fragile("a").get_session_middleware_key() == "Fragile___a"
    assert fragile("a").get_session_middleware_key() != fragile("b").get_session_middleware_key()


def test_session_middleware_may_be_set_up_twice():
    """Some folders call it themselves after `super().setup_webserver()` already has."""
    server = fragile()
    app = server.setup_webserver()

    server.setup_session_middleware(app)

    reply = TestClient(app).post("/refusal", json={})
    assert len(reply.headers.get_list("set-cookie")) == 1


def test_a_bare_server_builds_its_own_app():
    """Two folders subclass `SimpleServer` and start from an empty FastAPI app."""

    class Bare(SimpleServer):
        config: BaseResourcesServerConfig

        def setup_webserver(self) -> FastAPI:
            app = FastAPI()
            self.setup_session_middleware(app)
            app.post("/ping")(self.ping)
            return app

        async def ping(self) -> dict[str, str]:
            return {"pong": self.config.name}

    server = Bare(config=fragile().config, server_client=MagicMock(spec=ServerClient))

    assert TestClient(server.setup_webserver()).post("/ping").json() == {"pong": "fragile_1"}


@pytest.mark.parametrize(
    ("name", "server", "plain"),
    [
        ("mcp__weather__get", "weather", "get"),
        ("mcp__weather__get", None, "get"),
        ("get", "weather", "get"),
        ("mcp__other__get", "weather", "mcp__other__get"),
    ],
)
def test_tool_names_lose_their_mcp_prefix(name, server, plain):
    """Verifiers compare the tool a model called with the tool they know."""
    assert normalize_tool_name(name, server) == plain


def test_reserved_names_are_the_servers_own_routes():
    """A tool of that name would answer in place of the verifier."""
    assert set(RESERVED_MCP_TOOL_NAMES) >= {"verify", "seed_session", "aggregate_metrics", "mcp"}
    assert NEMO_GYM_MCP_SESSION_TOKEN_HEADER == "X-NeMo-Gym-Session-Token"
