"""Episodes with environments that give messages, tools, rewards and images at run time, in memory and over HTTP."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from omegaconf import OmegaConf
from pydantic import PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    Opening,
    SessionId,
    SimpleResourcesServer,
    Step,
    image_part,
    text_part,
    tool,
)
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.serve.webserver import serve_in_thread
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from nemo_gym.transport import in_process
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig, SimpleAgentRunRequest
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig

HOST = "127.0.0.1"
PORTS = {"agent": 40051, "model": 40052, "env": 40053}
TEXT = {"text": "I am done."}


def calls(*names: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments} for name in names]}


class Quarry(SimpleResourcesServer):
    """Digging earns a reward; the third gem ends the episode. The verifier gives the number of gems."""

    config: BaseResourcesServerConfig
    _gems: dict[str, int] = PrivateAttr(default_factory=dict)
    _closed: list[str] = PrivateAttr(default_factory=list)
    _rewards: list[Any] = PrivateAttr(default_factory=list)
    _close_called: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> Opening:
        self._gems[request.session[SESSION_ID_KEY]] = 0
        return Opening(
            messages=[
                {"role": "user", "content": "The quarry is open."},
                {"role": "system", "content": "You are a miner."},
            ]
        )

    @tool
    async def dig(self, session: SessionId, gems: int = 1) -> Step:
        """Dig for gems."""
        self._gems[session] += gems
        return Step(f"{self._gems[session]} gems", reward=0.5 * gems, done=self._gems[session] >= 3)

    @tool
    async def look(self) -> list[dict[str, Any]]:
        """Look around."""
        return [text_part("A hole."), image_part(b"pixels")]

    @tool
    async def wait(self) -> str:
        """Wait without end."""
        await asyncio.Event().wait()
        return ""

    @tool
    async def cheat(self) -> Step:
        """Return a reward that is no number."""
        return Step("more", reward=float("nan"))

    async def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:
        self._rewards.append((await request.json()).get("step_rewards"))
        return BaseVerifyResponse(**dict(body), reward=float(self._gems[request.session[SESSION_ID_KEY]]))

    async def close(self, session_id: str) -> None:
        self._closed.append(session_id)
        self._close_called.set()


class World:
    """An agent, a scripted model and an environment."""

    def __init__(self, script: list[dict[str, Any]], *, over_http: bool = False, **settings: Any) -> None:
        ports = dict(PORTS)
        if over_http:
            with socket.create_server((HOST, 0)) as free:
                ports["env"] = free.getsockname()[1]
        place = {"host": HOST, "entrypoint": "app.py"}
        config = {
            "model": {"responses_api_models": {"scripted_model": {**place, "port": ports["model"]}}},
            "env": {"resources_servers": {"quarry": {**place, "port": ports["env"]}}},
            "agent": {"responses_api_agents": {"simple_agent": {**place, "port": ports["agent"]}}},
        }
        self.client = ServerClient(
            head_server_config=BaseServerConfig(host=HOST, port=40050), global_config_dict=OmegaConf.create(config)
        )
        refs = {
            "resources_server": {"type": "resources_servers", "name": "env"},
            "model_server": {"type": "responses_api_models", "name": "model"},
        }
        agent_config = SimpleAgentConfig(**place, port=ports["agent"], name="agent", **refs, **settings)
        model_config = ScriptedModelConfig(**place, port=ports["model"], name="model", script=script)
        env_config = BaseResourcesServerConfig(**place, port=ports["env"], name="env")
        self.env = Quarry(config=env_config, server_client=self.client)
        self.agent = SimpleAgent(config=agent_config, server_client=self.client)
        self.model = ScriptedModel(config=model_config, server_client=self.client)
        in_process.mount(HOST, ports["agent"], self.agent.prepare_webserver({}))
        in_process.mount(HOST, ports["model"], self.model.prepare_webserver({}))
        self.env_app: FastAPI = self.env.prepare_webserver({})
        self.stop: Callable[[], None] = lambda: None
        if over_http:
            server, thread = serve_in_thread(self.env_app, host=HOST, port=ports["env"])

            def stop() -> None:
                server.should_exit = True
                thread.join(10)

            self.stop = stop
        else:
            in_process.mount(HOST, ports["env"], self.env_app)
        self.http = TestClient(in_process.app_for_url(f"http://{HOST}:{ports['agent']}"))

    def run(self, params: dict[str, Any] | None = None, **row: Any) -> dict[str, Any]:
        reply = self.http.post("/run", json={"responses_create_params": params or {"input": []}, **row})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def build(script: list[dict[str, Any]], **settings: Any) -> World:
        worlds.append(World(script, **settings))
        return worlds[-1]

    yield build
    for started in worlds:
        started.stop()
    for port in PORTS.values():
        in_process.unmount(HOST, port)


@pytest.mark.parametrize("over_http", [False, True])
def test_the_model_gets_the_messages_and_tools_of_the_opening(world: Callable[..., World], over_http: bool) -> None:
    """A row with an empty input is enough; the record shows what the model saw."""
    verdict = world([TEXT], over_http=over_http).run()

    params = verdict["responses_create_params"]
    assert [(item["role"], item["content"]) for item in params["input"]] == [
        ("system", "You are a miner."),
        ("user", "The quarry is open."),
    ]
    assert [entry["name"] for entry in params["tools"]] == ["dig", "look", "wait", "cheat"]
    assert verdict["response"]["tools"][0]["name"] == "dig"  # as the model server received them
    assert "step_rewards" not in verdict


def test_the_input_and_the_tools_of_the_row_stay(world: Callable[..., World]) -> None:
    """System messages of the environment lead, its other messages follow the row; a tool of the row has priority."""
    own = {
        "type": "function",
        "name": "dig",
        "description": "Dig deep.",
        "parameters": {"type": "object"},
        "strict": None,
    }
    verdict = world([TEXT]).run({"input": "Find gems.", "tools": [own]})

    params = verdict["responses_create_params"]
    assert [item["content"] for item in params["input"]] == ["You are a miner.", "Find gems.", "The quarry is open."]
    assert [(entry["name"], entry["description"]) for entry in params["tools"]][:2] == [
        ("dig", "Dig deep."),
        ("look", "Look around."),
    ]


@pytest.mark.parametrize("over_http", [False, True])
def test_step_rewards_have_one_value_for_each_model_turn(world: Callable[..., World], over_http: bool) -> None:
    """Trainers assign the rewards to turns: parallel calls are summed, turns without a reward count 0."""
    bench = world([calls("dig"), calls("look"), calls("dig", "look"), TEXT], over_http=over_http)
    verdict = bench.run()

    assert verdict["step_rewards"] == [0.5, 0.0, 0.5, 0.0]
    assert verdict["reward"] == 2.0
    assert bench.env._rewards == [[0.5, 0.0, 0.5, 0.0]]  # the verifier may use them


@pytest.mark.parametrize("over_http", [False, True])
def test_the_episode_ends_when_the_environment_says_so(world: Callable[..., World], over_http: bool) -> None:
    """A further model call would be paid for and trained on."""
    verdict = world([calls("dig"), calls("dig", gems=2), TEXT], over_http=over_http).run()

    kinds = [item["type"] for item in verdict["response"]["output"]]
    assert kinds == ["function_call", "function_call_output"] * 2
    assert (verdict["reward"], verdict["step_rewards"]) == (3.0, [0.5, 1.0])


@pytest.mark.parametrize("over_http", [False, True])
def test_an_image_reaches_the_model_as_a_content_part(world: Callable[..., World], over_http: bool) -> None:
    """As text it would be base64 noise of thousands of tokens."""
    verdict = world([calls("look"), TEXT], over_http=over_http).run()

    output = verdict["response"]["output"][1]["output"]
    assert output[0] == {"type": "input_text", "text": "A hole."}
    assert output[1]["image_url"] == "data:image/png;base64,cGl4ZWxz"


def test_invalid_arguments_are_corrected_by_the_model(world: Callable[..., World]) -> None:
    """The error is an output of the call, and the episode goes on."""
    verdict = world([calls("dig", gems="many"), calls("dig"), TEXT]).run()

    outputs = [item["output"] for item in verdict["response"]["output"] if item["type"] == "function_call_output"]
    assert "gems: Input should be a valid integer" in outputs[0]
    assert outputs[1] == "1 gems"


def test_a_reward_that_is_no_number_fails_the_rollout(world: Callable[..., World]) -> None:
    """Shown to the model, it would be an episode with a silently missing reward."""
    reply = world([calls("cheat"), TEXT]).http.post("/run", json={"responses_create_params": {"input": []}})

    assert reply.status_code == 500
    assert "must be a finite number" in reply.text


def row() -> SimpleAgentRunRequest:
    return SimpleAgentRunRequest(responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input=[]))


async def post_run(bench: World) -> Any:
    return await bench.client.post(server_name="agent", url_path="/run", json=row())


async def wait_for_close(bench: World) -> list[str]:
    async with asyncio.timeout(5):
        await bench.env._close_called.wait()
    return bench.env._closed


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        ([TEXT], {}),
        ([TEXT], {"skip_verification": True}),
        ([{"fault": {"kind": "status", "status": 400}}], {}),
        ([calls("cheat")], {}),
    ],
    ids=["verified", "verification skipped", "model failed", "tool failed"],
)
async def test_a_session_is_closed_once_however_the_rollout_ends(
    world: Callable[..., World], script: list[dict[str, Any]], settings: dict[str, Any]
) -> None:
    """Environments hold containers and browsers for a session."""
    bench = world(script, **settings)

    await post_run(bench)
    await wait_for_close(bench)
    await asyncio.gather(*bench.agent._closing)

    assert len(bench.env._closed) == 1


async def test_a_cancelled_rollout_closes_its_session(world: Callable[..., World]) -> None:
    """A trainer cancels rollouts all the time; the cancellation must not leak what they hold."""
    bench = world([calls("wait")])
    started = asyncio.Event()
    original = bench.agent._run_tools

    async def run_tools(*args: Any) -> Any:
        started.set()
        return await original(*args)

    object.__setattr__(bench.agent, "_run_tools", run_tools)
    work = asyncio.create_task(post_run(bench))
    async with asyncio.timeout(5):
        await started.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work

    assert len(await wait_for_close(bench)) == 1


async def test_an_environment_without_openings_costs_no_call_more(world: Callable[..., World]) -> None:
    """Most environments are single-turn: the calls of a rollout are counted here so that they stay three."""

    class PlainServer(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
            return BaseVerifyResponse(**dict(body), reward=1.0)

    bench = world([TEXT])
    plain = PlainServer(config=bench.env.config, server_client=bench.client)
    in_process.unmount(HOST, PORTS["env"])
    in_process.mount(HOST, PORTS["env"], plain.prepare_webserver({}))
    paths: list[str] = []
    original = bench.client.post

    async def post(*, server_name: str, url_path: str, **options: Any) -> Any:
        paths.append(url_path)
        return await original(server_name=server_name, url_path=url_path, **options)

    object.__setattr__(bench.agent.server_client, "post", post)
    await bench.agent.run(Request({"type": "http", "headers": []}), row())

    assert paths == ["/seed_session", "/v1/responses", "/verify"]
