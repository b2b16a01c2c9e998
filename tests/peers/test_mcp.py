"""A real MCP client against a resources server on loopback."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel

pytest.importorskip("mcp")

import httpx2
import uvicorn
from mcp.client import Client
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    SessionId,
    SimpleResourcesServer,
    Step,
    image_part,
    text_part,
    tool,
)
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.server_utils import ServerClient

HEADER = "X-NeMo-Gym-Session-Token"


class Place(BaseModel):
    city: str


class Diary(SimpleResourcesServer):
    """Keeps a list of places for each session."""

    places: dict[str, list[str]] = {}

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/visit")(self.visit)
        app.post("/explode")(self.explode)
        app.post("/rollout")(self.rollout)
        return app

    async def visit(self, request: Request, body: Place) -> list[str]:
        """Write down a city."""
        visited = self.places.setdefault(request.session["session_id"], [])
        visited.append(body.city)
        return visited

    async def explode(self) -> None:
        """Fail."""
        raise RuntimeError("the tool broke")

    async def rollout(self) -> str | None:
        """Return the id of the rollout of this call."""
        return current_rollout_id()

    async def verify(self, body):
        raise NotImplementedError

    def mcp_allowed_tools_for_session(self, seed_body: Any) -> list[str] | None:
        return seed_body.get("tools")


@contextlib.asynccontextmanager
async def running_diary(server_class: type[SimpleResourcesServer] = Diary) -> AsyncIterator[str]:
    """The address of a diary that runs until the block ends."""
    config = BaseResourcesServerConfig(
        host="127.0.0.1", port=1, entrypoint="", name="diary", expose_tools_over_mcp=True
    )
    server = server_class(config=config, server_client=MagicMock(spec=ServerClient))
    listener = socket.create_server(("127.0.0.1", 0))
    app = server.prepare_webserver({})
    runner = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    task = asyncio.create_task(runner.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        runner.should_exit = True
        await task
        listener.close()


async def seed(url: str, **body: Any) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/seed_session", json=body) as response:
        assert response.status == 200
        return (await response.json())["mcp"]


@contextlib.asynccontextmanager
async def client(url: str, metadata: dict[str, Any]) -> AsyncIterator[ClientSession]:
    """An initialised MCP session, as an agent would open it."""
    async with (
        httpx2.AsyncClient(headers=metadata["headers"]) as http,
        streamable_http_client(url + metadata["url_path"], http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        yield session


def test_importing_does_not_load_the_package():
    """Every server imports this module's neighbours; none may pay for MCP unless it asks for it."""
    code = "import sys, nemo_gym.mcp_auto_exposure; sys.exit('mcp' in sys.modules or 'mcp_types' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.asyncio
async def test_a_client_finds_the_tools_and_works_in_its_own_session():
    """Two rollouts at once never see each other's state."""
    async with running_diary() as url:
        first, second = await seed(url), await seed(url)

        async with client(url, first) as ada, client(url, second) as bob:
            listed = await ada.list_tools()
            await ada.call_tool("visit", {"city": "Ulm"})
            again = await ada.call_tool("visit", {"city": "Bonn"})
            other = await bob.call_tool("visit", {"city": "Kiel"})

    assert [tool.name for tool in listed.tools] == ["visit", "explode", "rollout"]
    assert listed.tools[0].description == "Write down a city."
    assert listed.tools[0].input_schema["required"] == ["city"]
    assert (again.content[0].text, again.is_error) == ('["Ulm","Bonn"]', False)
    assert other.content[0].text == '["Kiel"]'


@pytest.mark.asyncio
async def test_without_a_token_of_ours_there_are_no_tools():
    """A forged token must not open a session."""
    async with running_diary() as url:
        metadata = await seed(url)
        payload, _, signature = metadata["headers"][HEADER].rpartition(".")
        forged = f"{payload}.{signature[::-1]}"

        for headers in ({}, {HEADER: forged}):
            async with client(url, {**metadata, "headers": headers}) as session:
                called = await session.call_tool("visit", {"city": "Ulm"})
                assert called.is_error
                assert called.content[0].text.startswith("no session: send the X-NeMo-Gym-Session-Token header")
                with pytest.raises(MCPError, match="no session"):
                    await session.list_tools()


@pytest.mark.asyncio
async def test_wrong_arguments_and_broken_tools_are_results_the_model_can_read():
    """The rollout goes on; the model may correct itself."""
    async with running_diary() as url, client(url, await seed(url)) as session:
        wrong = await session.call_tool("visit", {"town": "Ulm"})
        broken = await session.call_tool("explode", {})
        unknown = await session.call_tool("fly", {})

    assert wrong.is_error
    assert "city" in wrong.content[0].text
    assert broken.is_error
    assert "the tool broke" in broken.content[0].text
    assert unknown.is_error
    assert "unknown tool 'fly'" in unknown.content[0].text


@pytest.mark.asyncio
async def test_a_session_has_only_the_tools_it_was_given():
    """Tasks differ in what they allow."""
    async with running_diary() as url, client(url, await seed(url, tools=["visit"])) as session:
        listed = await session.list_tools()
        refused = await session.call_tool("explode", {})

    assert [tool.name for tool in listed.tools] == ["visit"]
    assert refused.is_error


class Album(SimpleResourcesServer):
    """Tools as methods."""

    @tool
    async def add(self, session: SessionId, title: str, stars: int = 3) -> Step:
        """Add a picture."""
        return Step([text_part(f"{title} {stars}"), image_part(b"pixels")], reward=1.0)

    async def verify(self, body):
        raise NotImplementedError


@pytest.mark.asyncio
async def test_methods_marked_as_tools_are_offered_with_their_images_and_without_rewards():
    """A harness that speaks MCP sees what the model would see through the opening."""
    async with running_diary(Album) as url, client(url, await seed(url)) as session:
        (listed,) = (await session.list_tools()).tools
        added = await session.call_tool("add", {"title": "Ulm"})
        wrong = await session.call_tool("add", {"stars": 2})

    assert (listed.description, listed.input_schema) == ("Add a picture.", Album.tool_definitions()[0]["parameters"])
    assert [part.type for part in added.content] == ["text", "image"]
    assert (added.content[0].text, added.content[1].mime_type) == ("Ulm 3", "image/png")
    assert wrong.is_error
    assert "'title' is missing" in wrong.content[0].text


@pytest.mark.asyncio
async def test_plain_json_rpc_is_answered_with_plain_json():
    """Clients that are not the `mcp` package, in any language, need no event stream."""
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "visit", "arguments": {"city": "Ulm"}},
    }
    async with running_diary() as url:
        metadata = await seed(url)
        headers = {**metadata["headers"], "Accept": "application/json, text/event-stream"}
        async with aiohttp.ClientSession() as http, http.post(f"{url}/mcp", json=call, headers=headers) as response:
            answer = await response.json()

    assert response.content_type == "application/json"
    assert answer["result"]["content"] == [{"type": "text", "text": '["Ulm"]'}]


@pytest.mark.asyncio
async def test_the_rollout_prefix_reaches_the_tool():
    """Model calls a tool makes are recorded under the rollout it worked for."""
    async with running_diary() as url:
        metadata = await seed(url)
        prefixed = f"{url}/ng-rollout/3-1"
        async with client(prefixed, metadata) as session:
            result = await session.call_tool("rollout", {})

    assert result.content[0].text == '"3-1"'


@pytest.mark.asyncio
async def test_clients_of_the_newest_protocol_are_served_too():
    """They open no session at all; each request stands for itself."""
    async with running_diary() as url:
        metadata = await seed(url)
        async with (
            httpx2.AsyncClient(headers=metadata["headers"]) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http)) as session,
        ):
            listed = await session.list_tools()
            result = await session.call_tool("visit", {"city": "Ulm"})
            negotiated = session.protocol_version

    assert negotiated in MODERN_PROTOCOL_VERSIONS
    assert "visit" in [tool.name for tool in listed.tools]
    assert result.content[0].text == '["Ulm"]'
