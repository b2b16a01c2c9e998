"""Tools as methods: the route, the definition in the opening, argument errors, threads, and MCP."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel, PrivateAttr

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    Opening,
    SessionId,
    SimpleResourcesServer,
    Step,
    ToolError,
    image_part,
    text_part,
    tool,
)
from nemo_gym.keys import EPISODE_HEADER
from nemo_gym.serve.mcp_tools import harvest_tools
from nemo_gym.serve.tool_schema import InvalidTool
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.transport.response_errors import ERROR_HEADER

PIXEL = bytes.fromhex("89504e470d0a1a0a")


class EasyServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**dict(body), reward=1.0)


class Place(BaseModel):
    city: str
    country: str = "NO"


class Tree(BaseModel):
    label: str
    children: list["Tree"] = []


class Weather(EasyServer):
    """Tools of every form."""

    _seen: list[Any] = PrivateAttr(default_factory=list)
    _running: int = PrivateAttr(default=0)
    _most_running: int = PrivateAttr(default=0)

    @tool
    async def forecast(self, place: Place, days: int = 1, unit: Literal["c", "f"] = "c") -> dict[str, Any]:
        """Tell the weather.

        Args:
            place: where to look.
            days: number of days.
        """
        return {"city": place.city, "days": days, "unit": unit}

    @tool
    def blocking(self, session: SessionId, pause: float = 0.0) -> str:
        """Run on a thread."""
        self._running += 1
        self._most_running = max(self._most_running, self._running)
        threading.Event().wait(pause)
        self._running -= 1
        return f"{session} {threading.current_thread() is threading.main_thread()}"

    @tool(name="who-am-i", description="Say who is asking.")
    async def identify(self, request: Request) -> str:
        return str(request.session[SESSION_ID_KEY])

    @tool
    async def refuse(self) -> None:
        """Refuse."""
        raise ToolError("not on Sundays")

    @tool
    async def crash(self) -> None:
        raise RuntimeError("boiler exploded")

    @tool
    async def picture(self) -> list[dict[str, Any]]:
        return [text_part("The map:"), image_part(PIXEL)]

    @tool
    async def score(self, points: float, last: bool = False) -> Step:
        return Step("Well done.", reward=points, done=last)


@pytest.fixture
def weather() -> Weather:
    return offline_server(Weather)


@pytest.fixture
def http(weather: Weather) -> TestClient:
    return TestClient(weather.prepare_webserver({}))


def opening_of(http: TestClient, **row: Any) -> dict[str, Any]:
    reply = http.post("/seed_session", json=row)
    assert reply.status_code == 200, reply.text
    assert json.loads(reply.headers[EPISODE_HEADER])["opening"] is True
    return dict(reply.json()["opening"])


def test_the_seed_offers_every_tool(http: TestClient) -> None:
    """Rows need not repeat tool definitions: the opening has them, in the form of a model request."""
    tools = opening_of(http)["tools"]

    assert [entry["name"] for entry in tools] == [
        "forecast", "blocking", "who-am-i", "refuse", "crash", "picture", "score",
    ]  # fmt: skip
    assert tools[0]["description"] == "Tell the weather."
    assert tools[0]["parameters"]["properties"]["days"] == {
        "type": "integer",
        "default": 1,
        "description": "number of days.",
    }
    assert tools[2]["description"] == "Say who is asking."


def test_a_tool_is_a_route_that_validates_and_converts_arguments(http: TestClient) -> None:
    """Agents call tools by `POST /<name>`, as they call routes."""
    reply = http.post("/forecast", json={"place": {"city": "Oslo"}, "days": 2})

    assert reply.json() == {"city": "Oslo", "days": 2, "unit": "c"}
    assert EPISODE_HEADER not in reply.headers


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "the argument 'place' is missing"),
        ({"place": {}}, "the argument 'place.city' is missing"),
        ({"place": {"city": "Oslo"}, "unit": "k"}, "unit: Input should be 'c' or 'f'"),
        ({"place": {"city": "Oslo"}, "when": 1}, "unknown argument 'when'"),
    ],
)
def test_invalid_arguments_are_an_error_for_the_model(http: TestClient, arguments: Any, text: str) -> None:
    """A mistake of the model is part of the episode: it must read what was wrong and go on."""
    reply = http.post("/forecast", json=arguments)

    assert reply.status_code == 422
    assert text in reply.json()["error"]


def test_a_body_that_is_no_object_is_an_error_for_the_model(http: TestClient) -> None:
    """Any client may call the route."""
    assert "error" in http.post("/forecast", content=b"{").json()
    assert "error" in http.post("/forecast", json=[1]).json()
    assert http.post("/refuse").json() == {"error": "not on Sundays"}


def test_a_tool_error_is_for_the_model_and_a_crash_is_not_hidden(weather: Weather) -> None:
    """A tool decides what the model may read; an exception that it did not expect is a server error."""
    http = TestClient(weather.prepare_webserver({}), raise_server_exceptions=False)

    refused, crashed = http.post("/refuse", json={}), http.post("/crash", json={})

    assert (refused.status_code, refused.json()) == (422, {"error": "not on Sundays"})
    assert crashed.status_code == 500


def test_text_reaches_the_model_as_it_is(http: TestClient) -> None:
    """A string in JSON quotes would teach the model to read quotes."""
    seed = http.post("/seed_session", json={})
    assert seed.status_code == 200
    reply = http.post("/who-am-i", json={})

    assert not reply.text.startswith('"')
    assert reply.headers["content-type"].startswith("text/plain")


def test_a_synchronous_tool_runs_on_a_thread_in_its_session(http: TestClient) -> None:
    """A blocking tool must not stop the other servers of its cell."""
    session = http.post("/who-am-i", json={}).text

    assert http.post("/blocking", json={}).text == f"{session} False"


def test_a_step_gives_the_model_only_its_content(http: TestClient) -> None:
    """A model, or an agent that does not know steps, must not read the reward; the header carries it."""
    reply = http.post("/score", json={"points": 0.5, "last": True})

    assert reply.text == "Well done."
    assert json.loads(reply.headers[EPISODE_HEADER]) == {"reward": 0.5, "done": True}


def test_a_reward_that_is_no_number_fails_the_call(weather: Weather) -> None:
    """A NaN in training data is found weeks later; the environment fails at once."""
    http = TestClient(weather.prepare_webserver({}), raise_server_exceptions=False)

    reply = http.post("/score", content=b'{"points": 1e999}')

    assert (reply.status_code, reply.headers[ERROR_HEADER]) == (500, "InvalidReward")


def test_content_parts_are_marked(http: TestClient) -> None:
    """Without the mark an agent would show the model the JSON of an image."""
    reply = http.post("/picture", json={})

    assert [part["type"] for part in reply.json()] == ["input_text", "input_image"]
    assert json.loads(reply.headers[EPISODE_HEADER]) == {"parts": True}


@asynccontextmanager
async def client_of(server: SimpleResourcesServer) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=server.prepare_webserver({}))
    async with httpx.AsyncClient(transport=transport, base_url="http://tools") as client:
        yield client


async def test_synchronous_tools_of_one_session_run_one_at_a_time(weather: Weather) -> None:
    """Parallel calls of one turn share the state of the session, which threads would corrupt."""
    async with client_of(weather) as client:
        await client.post("/seed_session", json={})
        await asyncio.gather(*(client.post("/blocking", json={"pause": 0.01}) for _ in range(4)))

    assert weather._most_running == 1


class Cave(EasyServer):
    """An opening with messages; its tools depend on the row."""

    @tool
    async def look(self) -> str:
        """Look around."""
        return "a room"

    @tool
    async def go(self, where: str) -> str:
        """Walk."""
        return where

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> Opening:
        row = await request.json()
        tools = self.tool_definitions("look") if row.get("easy") else None
        return Opening(messages=[{"role": "user", "content": "You wake up."}], tools=tools)


def test_an_opening_may_choose_the_tools_of_a_session() -> None:
    """A curriculum offers fewer tools in easy rows."""
    http = TestClient(offline_server(Cave).prepare_webserver({}))

    hard, easy = opening_of(http), opening_of(http, easy=True)

    assert [entry["name"] for entry in hard["tools"]] == ["look", "go"]
    assert [entry["name"] for entry in easy["tools"]] == ["look"]
    assert easy["messages"] == [{"role": "user", "content": "You wake up."}]


class SeedAnswer(BaseSeedSessionResponse):
    board: str


class OwnSeed(EasyServer):
    async def seed_session(self, body: BaseSeedSessionRequest) -> SeedAnswer:
        return SeedAnswer(board="empty")


class OwnSeedWithTool(OwnSeed):
    @tool
    async def look(self) -> str:
        return "a room"


def test_a_seed_answer_keeps_its_fields_beside_the_opening() -> None:
    """Agents of other authors read the fields of their environment."""
    assert TestClient(offline_server(OwnSeedWithTool).setup_webserver()).post("/seed_session", json={}).json() == {
        "board": "empty",
        "opening": {"messages": [], "tools": OwnSeedWithTool.tool_definitions()},
    }


def test_a_server_without_tools_answers_as_before() -> None:
    """Servers written for NeMo Gym run unchanged: the same body and no additional header."""
    for server, body in ((EasyServer, {}), (OwnSeed, {"board": "empty"})):
        reply = TestClient(offline_server(server).prepare_webserver({})).post("/seed_session", json={})
        assert reply.json() == body
        assert EPISODE_HEADER not in reply.headers


class Overriding(Cave):
    async def look(self) -> str:  # still a tool
        """Look twice."""
        return "two rooms"


def test_an_override_of_a_tool_is_a_tool() -> None:
    """A subclass changes behaviour and description by the rules of Python."""
    assert Overriding.tool_definitions("look")[0]["description"] == "Look twice."
    assert TestClient(offline_server(Overriding).setup_webserver()).post("/look", json={}).text == "two rooms"


class Clash(Cave):
    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/look")(self.look)
        return app


def test_a_route_with_the_path_of_a_tool_is_refused() -> None:
    """One of the two would silently never be called."""
    with pytest.raises(InvalidTool, match="POST /look is a route and a tool"):
        offline_server(Clash).prepare_webserver({})


def test_a_reserved_name_is_refused() -> None:
    """A tool named verify would replace the verifier."""

    class Bad(EasyServer):
        @tool(name="verify")
        async def check(self) -> str:
            return ""

    with pytest.raises(InvalidTool, match="'verify' is reserved"):
        Bad.tool_definitions()


class Recursive(EasyServer):
    @tool
    async def walk(self, tree: Tree) -> str:
        return tree.label


def test_tools_over_mcp_have_the_same_schema() -> None:
    """A harness that speaks MCP gets the tools that other agents get in the opening."""
    for server in (Weather, Recursive):
        tools, _ = harvest_tools(offline_server(server).setup_webserver())
        offered = {entry["name"]: entry["parameters"] for entry in server.tool_definitions()}
        assert {entry.name: entry.input_schema for entry in tools} == offered
