"""Tools over MCP, as far as they need no `mcp` package: which there are, what they take, who may call them."""

import sys
from collections.abc import Callable
from typing import Annotated, Any
from unittest.mock import MagicMock

import pytest
from fastapi import APIRouter, Body, FastAPI, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse

from nemo_gym import mcp_auto_exposure
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.errors import ConfigError
from nemo_gym.mcp_auto_exposure import MCPTool, bind_route, harvest_tools, maybe_auto_expose
from nemo_gym.serve import mcp
from nemo_gym.serve.mcp import SessionGrant, TokenSigner
from nemo_gym.serve.mcp_tools import index_tools
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport.in_process import dispatch


class Place(BaseModel):
    city: str
    near: "list[Place]" = []


class Trip(BaseModel):
    start: Place
    end: Place


class Counter(SimpleResourcesServer):
    """Counts per session."""

    counts: dict[str, int] = {}

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/count")(self.count)
        return app

    async def count(self, request: Request, body: Place) -> dict[str, Any]:
        """Count one visit to a city."""
        session = request.session["session_id"]
        self.counts[session] = self.counts.get(session, 0) + 1
        return {"city": body.city, "visits": self.counts[session]}

    async def verify(self, body):
        raise NotImplementedError


def counter(**config) -> Counter:
    config = BaseResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="", name="counter", **config)
    return Counter(config=config, server_client=MagicMock(spec=ServerClient))


def app_with(**routes) -> FastAPI:
    app = FastAPI()
    for name, handler in routes.items():
        app.post(f"/{name}")(handler)
    return app


def test_a_typed_post_route_is_a_tool_with_the_schema_of_its_body():
    """The model needs the exact schema that the route accepts."""
    tools, catch_all = harvest_tools(counter().setup_webserver())

    assert catch_all is None
    (tool,) = tools
    assert (tool.name, tool.route_path) == ("count", "/count")
    assert tool.description == "Count one visit to a city."
    assert tool.input_schema["type"] == "object"
    assert tool.input_schema["required"] == ["city"]


def test_a_schema_stands_on_its_own():
    """An MCP client has no OpenAPI document to look a reference up in."""

    async def travel(body: Trip): ...

    (tool,), _ = harvest_tools(app_with(travel=travel))

    assert tool.input_schema["properties"]["start"] == {"$ref": "#/$defs/Place"}
    assert tool.input_schema["$defs"]["Place"]["properties"]["near"]["items"] == {"$ref": "#/$defs/Place"}
    assert "#/components" not in str(tool.input_schema)


def test_bodies_in_other_forms_are_tools_too():
    """Several body parameters, none, an optional one or a plain dictionary: all are JSON objects to the caller."""

    async def move(x: Annotated[int, Body()], y: Annotated[int, Body()] = 0): ...
    async def look(request: Request): ...
    async def note(body: Place | None = None): ...
    async def put(body: dict[str, Any]): ...

    tools, _ = harvest_tools(app_with(move=move, look=look, note=note, put=put))

    schemas = {tool.name: tool.input_schema for tool in tools}
    assert schemas["move"]["required"] == ["x"]
    assert schemas["look"] == {"type": "object", "properties": {}}
    assert schemas["note"]["properties"].keys() == {"city", "near"}
    assert schemas["put"]["type"] == "object"


def test_what_is_no_tool_is_left_alone():
    """Routes of every server, other methods, hidden routes; a router's routes count like the app's own."""
    app = counter().setup_webserver()
    router = APIRouter()

    @router.post("/ask")
    async def ask(body: Place): ...

    @router.post("/verify")
    async def verify(limit: int): ...

    @app.get("/peek")
    async def peek(): ...

    @app.post("/secret", include_in_schema=False)
    async def secret(x: int): ...

    app.include_router(router)

    assert [tool.name for tool in harvest_tools(app)[0]] == ["count", "ask"]


def test_a_route_that_takes_more_than_a_json_object_is_refused():
    """At start-up, by name: not when a model first calls it."""

    async def query(body: Place, limit: int): ...
    async def several(body: list[Place]): ...

    with pytest.raises(ValueError, match=r"POST /query: .*needs the query parameter 'limit'"):
        harvest_tools(app_with(query=query))
    with pytest.raises(ValueError, match="POST /form: a tool takes JSON"):
        bind_route("/form", {"requestBody": {"content": {"multipart/form-data": {"schema": {}}}}}, {})
    with pytest.raises(ValueError, match=r"POST /several: .*the body of this route is array"):
        harvest_tools(app_with(several=several))


def test_a_catch_all_is_handed_to_the_server_to_name_its_tools():
    """Only the server knows what its dispatcher understands."""

    async def any_tool(name: str, body: Place): ...
    async def any_other(other: str, body: Place): ...

    tools, catch_all = harvest_tools(app_with(**{"{name}": any_tool}))

    assert tools == []
    assert catch_all.path == "/{name}"
    with pytest.raises(ValueError, match="several catch-all routes"):
        harvest_tools(app_with(**{"{name}": any_tool, "{other:path}": any_other}))


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["verify"], "every resources server has"),
        (["a", "a"], "is defined twice"),
        (["v1/ask"], "has an invalid name"),
        (["x" * 65], "has an invalid name"),
        ([], "no tool to expose"),
    ],
)
def test_names_that_clients_could_not_use_are_refused(names, reason):
    """A duplicate or reserved name would send a model's call to the wrong place."""
    with pytest.raises(ValueError, match=reason):
        index_tools([MCPTool(name, "", {}) for name in names], "counter")


def test_a_token_grants_what_it_says_and_only_where_it_was_given():
    """It is all that stands between one rollout and another's state."""
    signer = TokenSigner("Counter___counter", secret="s")
    token = signer.sign("abc", ["count"])

    grant = signer.verify(token)

    assert grant == SessionGrant("abc", ("count",))
    assert grant.allows("count")
    assert not grant.allows("other")
    assert signer.verify(signer.sign("abc")).allows("anything")
    assert TokenSigner("Counter___other", secret="s").verify(token) is None
    assert TokenSigner("Counter___counter", secret="t").verify(token) is None
    assert signer.verify("") is None
    payload, _, signature = token.rpartition(".")
    assert signer.verify(f"{payload}.{signature[::-1]}") is None
    assert signer.verify(f"{signer.sign('xyz').partition('.')[0]}.{token.partition('.')[2]}") is None


def test_tokens_are_signed_with_the_secret_of_the_run(monkeypatch):
    """The processes of one run understand each other's tokens; another run's are worthless."""
    monkeypatch.setenv("NEMO_GYM_SESSION_SECRET", "one")
    token = TokenSigner("k").sign("abc")

    assert TokenSigner("k").verify(token) == SessionGrant("abc")
    monkeypatch.setenv("NEMO_GYM_SESSION_SECRET", "two")
    assert TokenSigner("k").verify(token) is None


def test_nothing_happens_unless_it_is_asked_for():
    """The package is not even looked for."""
    server = counter()
    app = server.setup_webserver()
    before = list(app.user_middleware)

    maybe_auto_expose(server, app)

    assert app.user_middleware == before
    assert mcp_auto_exposure.maybe_auto_expose is maybe_auto_expose


def test_a_missing_package_names_the_extra(monkeypatch):
    """One line to copy, at start-up."""
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    server = counter(expose_tools_over_mcp=True)

    with pytest.raises(ConfigError, match=r"counter: .*needs the package mcp(.|\n)*nemo-gym\[mcp\]"):
        maybe_auto_expose(server, server.setup_webserver())


def test_an_app_without_sessions_is_refused():
    """Without them a tool could not know whose state it works on."""

    async def count(body: Place): ...

    with pytest.raises(ValueError, match="counter: tools over MCP need sessions"):
        maybe_auto_expose(counter(expose_tools_over_mcp=True), app_with(count=count))


def test_a_body_without_a_schema_is_named():
    """The model could not know what to send."""

    class Odd(BaseModel, arbitrary_types_allowed=True):
        check: Callable[[], None]

    async def odd(body: Odd): ...

    with pytest.raises(ValueError, match="POST /odd: the route has no JSON schema"):
        harvest_tools(app_with(odd=odd))


@pytest.fixture
def expose(monkeypatch):
    """A server with everything installed but the protocol itself."""
    monkeypatch.setattr(mcp, "_protocol_server", lambda exposure: None)
    server = counter(expose_tools_over_mcp=True)
    app = server.setup_webserver()
    maybe_auto_expose(server, app)
    maybe_auto_expose(server, app)
    return server, app


@pytest.mark.asyncio
async def test_seeding_a_session_tells_how_to_reach_its_tools(expose):
    """The agent passes this on to its MCP client as it is."""
    server, app = expose

    response = await dispatch(app, "POST", "http://x.local/seed_session", json={})

    answer = await response.json()
    token = answer["mcp"]["headers"].pop("X-NeMo-Gym-Session-Token")
    assert answer == {"mcp": {"server_name": "counter", "url_path": "/mcp", "transport": "http", "headers": {}}}
    assert int(response.headers["content-length"]) == len(await response.read())
    assert TokenSigner(server.get_session_middleware_key()).verify(token).tools is None


@pytest.mark.asyncio
async def test_a_tool_called_by_token_works_in_the_session_that_was_seeded(expose):
    """What a tool does over MCP and what it does over HTTP happen to the same state."""
    server, app = expose
    seeded = await dispatch(app, "POST", "http://x.local/seed_session", json={})
    cookies = {name: morsel.value for name, morsel in seeded.cookies.items()}
    token = (await seeded.json())["mcp"]["headers"]["X-NeMo-Gym-Session-Token"]
    exposure = mcp.Exposure.of(server, app)
    grant = exposure.grant({"X-NeMo-Gym-Session-Token": token})

    await dispatch(app, "POST", "http://x.local/count", json={"city": "Ulm"}, cookies=cookies)
    text, is_error = await exposure.call(grant, "count", {"city": "Ulm"}, "")

    assert (text, is_error) == ('{"city":"Ulm","visits":2}', False)


@pytest.mark.asyncio
async def test_wrong_arguments_and_unknown_tools_are_errors_the_model_can_read(expose):
    """It can then try again."""
    server, app = expose
    exposure = mcp.Exposure.of(server, app)
    grant = SessionGrant("abc")

    text, is_error = await exposure.call(grant, "count", {"town": "Ulm"}, "")
    assert is_error
    assert "city" in text
    text, is_error = await exposure.call(grant, "fly", {}, "")
    assert is_error
    assert text == "unknown tool 'fly'; available in this session: count"
    _, is_error = await exposure.call(SessionGrant("abc", ()), "count", {"city": "Ulm"}, "")
    assert is_error


def test_a_server_may_only_allow_tools_it_has(expose):
    """A typing error would leave a session without the tool, without any sign of the reason."""
    server, app = expose
    exposure = mcp.Exposure.of(server, app)

    class RestrictedCounter(Counter):
        def mcp_allowed_tools_for_session(self, seed_body):
            return seed_body["tools"]

    restricted = RestrictedCounter(config=server.config, server_client=server.server_client)
    exposure = mcp.Exposure.of(restricted, app)

    token = exposure.metadata("abc", {"tools": ["count"]})["headers"]["X-NeMo-Gym-Session-Token"]
    assert exposure.grant({"X-NeMo-Gym-Session-Token": token}).tools == ("count",)
    with pytest.raises(ValueError, match="names the unknown tool 'cuont'"):
        exposure.metadata("abc", {"tools": ["cuont"]})


@pytest.mark.asyncio
async def test_verify_sees_own_names_and_the_echo_keeps_the_names_sent(monkeypatch):
    """Verifiers are written for `count`; the record must show what the model really called."""
    monkeypatch.setattr(mcp, "_protocol_server", lambda exposure: None)
    seen = []

    class JudgedCounter(Counter):
        async def verify(self, body: dict[str, Any]) -> dict[str, Any]:
            seen.extend(item["name"] for item in body["response"]["output"])
            return {**body, "reward": 1.0}

    config = BaseResourcesServerConfig(host="h", port=1, entrypoint="", name="counter", expose_tools_over_mcp=True)
    server = JudgedCounter(config=config, server_client=MagicMock(spec=ServerClient))
    app = server.setup_webserver()
    maybe_auto_expose(server, app)
    names = ["mcp__counter__count", "count", "mcp__other__count"]
    output = [{"type": "function_call", "name": name, "arguments": "{}", "call_id": "1"} for name in names]

    response = await dispatch(app, "POST", "http://x.local/verify", json={"response": {"output": output}})

    assert seen == ["count", "count", "mcp__other__count"]
    answer = await response.json()
    assert [item["name"] for item in answer["response"]["output"]] == names
    assert answer["reward"] == 1.0


@pytest.mark.asyncio
async def test_broken_requests_get_the_answer_they_would_get_anyway(expose):
    """What is not JSON is for the route to refuse."""
    _, app = expose

    for path in ("seed_session", "verify"):
        response = await dispatch(
            app, "POST", f"http://x.local/{path}", data=b"{", headers={"Content-Type": "application/json"}
        )
        assert response.status == 422
    assert (await dispatch(app, "GET", "http://x.local/mcp")).status == 405


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [PlainTextResponse("ready"), JSONResponse(["ready"])])
async def test_an_answer_that_cannot_carry_the_token_is_left_as_it_is(monkeypatch, answer):
    """A server may answer its seed request in another shape."""
    monkeypatch.setattr(mcp, "_protocol_server", lambda exposure: None)

    class Terse(Counter):
        async def seed_session(self, body: dict[str, Any]):
            return answer

    config = BaseResourcesServerConfig(host="h", port=1, entrypoint="", name="terse", expose_tools_over_mcp=True)
    server = Terse(config=config, server_client=MagicMock(spec=ServerClient))
    app = server.setup_webserver()
    maybe_auto_expose(server, app)

    response = await dispatch(app, "POST", "http://x.local/seed_session", json={})

    assert await response.read() == answer.body
