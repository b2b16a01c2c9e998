"""An agent, scripted models and an environment in this process, for tests of agents without mocks of our code."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from omegaconf import OmegaConf
from pydantic import BaseModel, PrivateAttr

from nemo_gym.authoring.tool_agent import ToolAgent
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from nemo_gym.transport import in_process
from nemo_gym.transport.response_errors import ERROR_HEADER, FAILED_HEADER
from responses_api_agents.simple_agent.app import SimpleAgent
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig

HOST = "127.0.0.1"
PORTS = {"agent": 40001, "model": 40002, "env": 40003, "second_model": 40004}
WEATHER = {"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}
DONE = {"text": "Take a coat."}


class Weather(BaseModel):
    city: str


class Environment(SimpleResourcesServer):
    """Tools that work, wait for each other or fail; the reward is the number of tool calls in the session."""

    config: BaseResourcesServerConfig
    _calls: dict[str, list[str]] = PrivateAttr(default_factory=dict)
    _meeting: asyncio.Barrier = PrivateAttr(default_factory=lambda: asyncio.Barrier(2))

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for tool in (self.weather, self.meet, self.refuse, self.crash, self.fail, self.flood):
            app.post(f"/{tool.__name__}")(tool)
        return app

    def _note(self, request: Request, what: str) -> None:
        self._calls.setdefault(request.session[SESSION_ID_KEY], []).append(what)

    async def weather(self, request: Request, body: Weather) -> dict[str, str]:
        self._note(request, body.city)
        return {"city": body.city, "sky": "grey"}

    async def meet(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        self._note(request, "meet")
        async with asyncio.timeout(5):
            await self._meeting.wait()
        return body

    async def refuse(self) -> None:
        raise HTTPException(409, "not on Sundays")

    async def fail(self, body: dict[str, str]) -> JSONResponse:
        return JSONResponse({}, 500, {FAILED_HEADER: "env", ERROR_HEADER: body["error"]})

    async def flood(self) -> str:
        return "x" * 20_000

    async def crash(self) -> None:
        raise RuntimeError("boiler exploded")

    async def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:
        calls = self._calls.get(request.session[SESSION_ID_KEY], [])
        return BaseVerifyResponse(**body.model_dump(), reward=float(len(calls)))


class Bench:
    """An agent, scripted models and the environment, connected in memory.

    A script is a list of turns, or the name of a function in `package.module:name` form.
    """

    def __init__(
        self,
        script: Sequence[dict[str, Any]] | str,
        agent: type[ToolAgent] = SimpleAgent,
        *,
        second_script: Sequence[dict[str, Any]] | str = ({"text": "second"},),
        token_ids: bool = False,
        **settings: Any,
    ) -> None:
        common = {"host": HOST, "entrypoint": "app.py"}
        config = {
            "model": {"responses_api_models": {"scripted_model": {**common, "port": PORTS["model"]}}},
            "second_model": {"responses_api_models": {"scripted_model": {**common, "port": PORTS["second_model"]}}},
            "env": {"resources_servers": {"tools": {**common, "port": PORTS["env"]}}},
            "agent": {"responses_api_agents": {"simple_agent": {**common, "port": PORTS["agent"]}}},
        }
        client = ServerClient(
            head_server_config=BaseServerConfig(host=HOST, port=40000), global_config_dict=OmegaConf.create(config)
        )
        env_config = BaseResourcesServerConfig(**common, port=PORTS["env"], name="env")
        agent_config = agent.model_fields["config"].annotation(  # type: ignore[misc]
            **common,
            port=PORTS["agent"],
            name="agent",
            resources_server={"type": "resources_servers", "name": "env"},
            model_server={"type": "responses_api_models", "name": "model"},
            **settings,
        )
        self.client = client
        self.agent = agent(config=agent_config, server_client=client)
        self.environment = Environment(config=env_config, server_client=client)
        servers: dict[str, Any] = {
            name: ScriptedModel(
                config=ScriptedModelConfig(
                    **common,
                    port=PORTS[name],
                    name=name,
                    token_ids=token_ids,
                    **({"function": turns} if isinstance(turns, str) else {"script": turns}),
                ),
                server_client=client,
            )
            for name, turns in (("model", script), ("second_model", second_script))
        } | {
            "env": self.environment,
            "agent": self.agent,
        }
        for name, server in servers.items():
            app = server.setup_webserver()
            server.setup_exception_middleware(app)
            in_process.mount(HOST, PORTS[name], app)
        self.http = TestClient(in_process.app_for_url(f"http://{HOST}:{PORTS['agent']}"))

    def respond(self, **params: Any) -> dict[str, Any]:
        reply = self.http.post("/v1/responses", json={"input": "What to wear in Oslo?", **params})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def run(self, **row: Any) -> dict[str, Any]:
        reply = self.http.post("/run", json={"responses_create_params": {"input": "What to wear?"}, **row})
        assert reply.status_code == 200, reply.text
        return reply.json()


def unmount_servers() -> None:
    """Remove the servers of a bench."""
    for port in PORTS.values():
        in_process.unmount(HOST, port)


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def tool_texts(response: dict[str, Any]) -> list[str]:
    return [item["output"] for item in response["output"] if item["type"] == "function_call_output"]
