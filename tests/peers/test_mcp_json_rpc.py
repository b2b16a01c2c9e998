"""Tools over MCP as JSON-RPC, with version 1 or 2 of the package `mcp`: existing folders pin version 1."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel

pytest.importorskip("mcp")

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.mcp_auto_exposure import TOKEN_HEADER, maybe_auto_expose
from nemo_gym.server_utils import ServerClient

HEADERS = {"Accept": "application/json, text/event-stream"}


class City(BaseModel):
    city: str


class TravelServer(SimpleResourcesServer):
    """Has one tool."""

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/visit")(self.visit)
        return app

    async def visit(self, request: Request, body: City) -> list[str]:
        """Write down a city."""
        return [body.city]

    async def verify(self, body: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def client() -> TestClient:
    config = BaseResourcesServerConfig(host="0.0.0.0", port=1, entrypoint="", name="d", expose_tools_over_mcp=True)
    server = TravelServer(config=config, server_client=MagicMock(spec=ServerClient))
    app = server.setup_webserver()
    maybe_auto_expose(server, app)
    return TestClient(app)


def send(client: TestClient, method: str, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer: dict[str, Any] = client.post("/mcp", headers={**HEADERS, **headers}, json=body).json()
    return answer


def test_tools_are_listed_and_called_in_the_session_of_the_token(client: TestClient) -> None:
    """The same folder must work with the version that it pins and with ours."""
    token = client.post("/seed_session", json={}).json()["mcp"]["headers"]
    assert list(token) == [TOKEN_HEADER]

    (tool,) = send(client, "tools/list", {}, token)["result"]["tools"]
    called = send(client, "tools/call", {"name": "visit", "arguments": {"city": "Oslo"}}, token)["result"]

    assert (tool["name"], tool["inputSchema"]["required"]) == ("visit", ["city"])
    assert (called["content"][0]["text"], called.get("isError", False)) == ('["Oslo"]', False)


def test_a_call_without_a_token_is_a_result_that_the_model_can_read(client: TestClient) -> None:
    """Agents show results to the model, and end on protocol errors."""
    called = send(client, "tools/call", {"name": "visit", "arguments": {"city": "Oslo"}}, {})

    assert called["result"]["isError"] is True
    assert "no session" in called["result"]["content"][0]["text"]
    assert "no session" in send(client, "tools/list", {}, {})["error"]["message"]
