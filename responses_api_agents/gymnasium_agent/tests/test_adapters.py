"""The base for adapters of other frameworks: a blocking environment class with tools, images, rewards and `close`."""

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from omegaconf import OmegaConf
from pydantic import PrivateAttr

from nemo_gym.authoring.gymnasium import GymnasiumConfig, GymnasiumServer
from nemo_gym.base_resources_server import Opening, SessionId, Step, image_part, session_seed, text_part, tool
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import EnvFailed
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process
from nemo_gym.wire.call_reply import parse_tool_arguments
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentConfig
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig

HOST = "127.0.0.1"
PORTS = {"agent": 40061, "model": 40062, "env": 40063}
ROW = {"responses_create_params": {"input": []}, "size": 3}
TEXT = {"text": "I think."}


class FrozenLake:
    """An environment as gymnasium defines one: blocking, with its own generator, frames and `close`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_open = True

    def reset(self, *, seed: int) -> tuple[int, dict[str, Any]]:
        self.random = random.Random(seed)
        self.position = self.random.randrange(self.size)
        return self.position, {"seed": seed}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert threading.current_thread() is not threading.main_thread()
        self.position += action
        return self.position, float(action), self.position >= self.size + 2, False, {"action": action}

    def render(self) -> bytes:
        return f"frame {self.position}".encode()

    def close(self) -> None:
        self.is_open = False


def tool_calls(action: NeMoGymResponse) -> list[NeMoGymResponseFunctionToolCall]:
    return [item for item in action.output if isinstance(item, NeMoGymResponseFunctionToolCall)]


class LakeServer(GymnasiumServer):
    """The whole adapter: three methods, all of them synchronous."""

    HOSTING = "cell"
    _lakes: list[FrozenLake] = PrivateAttr(default_factory=list)
    _closed: threading.Event = PrivateAttr(default_factory=threading.Event)

    def reset(self, metadata: dict[str, Any], session_id: str) -> Opening:  # type: ignore[override]
        lake = FrozenLake(metadata["size"])
        self._lakes.append(lake)
        lake.reset(seed=session_seed(metadata))
        self.save_state(session_id, lake)
        skate = {"type": "function", "name": "skate", "parameters": {"type": "object"}, "strict": False}
        frame = [text_part("The lake:"), image_part(lake.render())]
        return Opening(messages=[{"role": "user", "content": frame}], tools=[skate])

    def step(self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str) -> Step:  # type: ignore[override]
        lake = self.load_state(session_id)
        outputs: dict[str, Any] = {}
        total, done = 0.0, False
        for call in tool_calls(action):
            _, reward, terminated, _, info = lake.step(parse_tool_arguments(call.arguments)["by"])
            outputs[call.call_id] = [text_part(str(info)), image_part(lake.render())]
            total, done = total + reward, done or terminated
        return Step("Use the tool." if not outputs else None, outputs=outputs, reward=total, done=done)

    def close(self, session_id: str) -> None:  # type: ignore[override]
        self.load_state(session_id).close()
        self._closed.set()


class ToolLake(GymnasiumServer):
    """Tools as methods under the gymnasium protocol."""

    _depth: dict[str, int] = PrivateAttr(default_factory=dict)

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[str, dict[str, Any]]:
        self._depth[session_id] = 0
        return "A lake.", {}

    @tool
    def dive(self, session: SessionId, metres: int) -> Step:
        """Dive deeper."""
        self._depth[session] += metres
        return Step(f"{self._depth[session]} m", reward=metres / 10, done=self._depth[session] >= 10)

    async def step(self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str) -> Step:
        return await self.run_tool_calls(action, session_id)


class Bench:
    """An agent, a scripted model and an environment, connected in memory."""

    def __init__(self, script: list[dict[str, Any]], env: type[GymnasiumServer], **settings: Any) -> None:
        place = {"host": HOST, "entrypoint": "app.py"}
        config = {
            "model": {"responses_api_models": {"scripted_model": {**place, "port": PORTS["model"]}}},
            "env": {"resources_servers": {"game": {**place, "port": PORTS["env"]}}},
            "agent": {"responses_api_agents": {"gymnasium_agent": {**place, "port": PORTS["agent"]}}},
        }
        self.client = ServerClient(
            head_server_config=BaseServerConfig(host=HOST, port=40060), global_config_dict=OmegaConf.create(config)
        )
        refs = {
            "resources_server": {"type": "resources_servers", "name": "env"},
            "model_server": {"type": "responses_api_models", "name": "model"},
        }
        self.env: Any = env(config=GymnasiumConfig(**place, port=PORTS["env"], name="env"), server_client=self.client)
        model = ScriptedModelConfig(**place, port=PORTS["model"], name="model", script=script)
        agent = GymnasiumAgentConfig(**place, port=PORTS["agent"], name="agent", **refs, **settings)
        self.agent = GymnasiumAgent(config=agent, server_client=self.client)
        servers = {
            "env": self.env,
            "model": ScriptedModel(config=model, server_client=self.client),
            "agent": self.agent,
        }
        for name, server in servers.items():
            app: FastAPI = server.prepare_webserver({})
            in_process.mount(HOST, PORTS[name], app)

    async def run(self, **row: Any) -> dict[str, Any]:
        reply = await self.client.post(server_name="agent", url_path="/run", json={**ROW, **row})
        assert reply.status == 200, await reply.text()
        return dict(await reply.json())


@pytest.fixture(autouse=True)
def _unmount_servers() -> Iterator[None]:
    yield
    for port in PORTS.values():
        in_process.unmount(HOST, port)


def skate(*amounts: int) -> dict[str, Any]:
    return {"tool_calls": [{"name": "skate", "arguments": {"by": amount}} for amount in amounts]}


async def test_an_adapter_gives_tools_images_and_an_output_for_each_call() -> None:
    """Parallel calls have their own outputs, rewards belong to turns, and the end comes from the environment."""
    bench = Bench([skate(1), TEXT, skate(1, 2), skate(3)], LakeServer)
    verdict = await bench.run(seed=0)

    first = verdict["responses_create_params"]["input"][0]["content"]
    assert [part["type"] for part in first] == ["input_text", "input_image"]
    assert [entry["name"] for entry in verdict["responses_create_params"]["tools"]] == ["skate"]
    output = verdict["response"]["output"]
    assert [item["type"] for item in output] == [
        "function_call", "function_call_output",
        "message", "message",
        "function_call", "function_call", "function_call_output", "function_call_output",
    ]  # fmt: skip
    assert output[3]["content"] == "Use the tool."
    assert [part["type"] for part in output[6]["output"]] == ["input_text", "input_image"]
    assert output[6]["call_id"] == output[4]["call_id"]
    assert "'action': 2" in output[7]["output"][0]["text"]
    assert (verdict["reward"], verdict["step_rewards"]) == (4.0, [1.0, 0.0, 3.0])
    assert verdict["terminated"] is True


async def test_the_repeats_of_a_row_begin_in_the_same_state() -> None:
    """A group baseline compares rollouts of one task, not of one lucky start."""
    bench = Bench([TEXT], LakeServer, max_steps=1)
    starts = []
    for size in (50, 50, 51):
        await bench.run(size=size)
        starts.append(bench.env._lakes[-1].position)

    assert starts[0] == starts[1] != starts[2]


@pytest.mark.parametrize("script", [[skate(9)], [TEXT], [{"fault": {"kind": "status", "status": 400}}]])
async def test_the_environment_is_closed_with_its_state(script: list[dict[str, Any]]) -> None:
    """`close` needs the object that `reset` stored, also when the rollout failed."""
    bench = Bench(script, LakeServer, max_steps=2)

    await bench.client.post(server_name="agent", url_path="/run", json=ROW)

    assert await asyncio.to_thread(bench.env._closed.wait, 5)
    assert [lake.is_open for lake in bench.env._lakes] == [False]


async def test_tool_methods_run_under_the_gymnasium_protocol() -> None:
    """One server class serves both protocols: `step` runs the calls, `/reset` offers the tools."""
    deep = [{"tool_calls": [{"name": "dive", "arguments": {"metres": metres}} for metres in metres_of_turn]}
            for metres_of_turn in ([2, 3], ["deep"], [5], [1])]  # fmt: skip
    verdict = await Bench(deep, ToolLake).run()

    assert verdict["responses_create_params"]["tools"] == ToolLake.tool_definitions()
    assert verdict["responses_create_params"]["input"][0]["content"] == "A lake."
    outputs = [item["output"] for item in verdict["response"]["output"] if item["type"] == "function_call_output"]
    assert outputs[:2] == ["2 m", "5 m"]
    assert "metres: Input should be a valid integer" in outputs[2]
    assert outputs[3:] == ["10 m"]
    assert verdict["step_rewards"] == [pytest.approx(0.5), 0.0, 0.5]


class WrongCall(ToolLake):
    async def step(self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str) -> Step:
        return Step(outputs={"call_x": "here"})


async def test_an_output_for_an_unknown_call_fails_the_rollout() -> None:
    """The model would never see it, and the cause would be hard to find."""
    bench = Bench([TEXT], WrongCall)

    reply = await bench.client.post(server_name="agent", url_path="/run", json=ROW)

    assert reply.status == 500
    assert "an output for 'call_x', which is no call of the turn" in await reply.text()
    assert EnvFailed.__name__ in str(reply.headers)


def test_a_server_without_the_new_types_answers_as_before() -> None:
    """Agents and tests of other authors compare these bodies."""

    class PlainGame(GymnasiumServer):
        async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[str, dict[str, Any]]:
            return "hello", {"a": 1}

        async def step(self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str) -> Any:
            return None, 1, True, False, {}

    config = GymnasiumConfig(host=HOST, port=1, entrypoint="app.py", name="plain")
    client = ServerClient(head_server_config=BaseServerConfig(host=HOST, port=1), global_config_dict=OmegaConf.create())
    http = TestClient(PlainGame(config=config, server_client=client).prepare_webserver({}))

    assert http.post("/reset", json=ROW).json() == {"observation": "hello", "info": {"a": 1}}
    response = {"id": "r", "created_at": 0, "model": "m", "object": "response", "output": [],
                "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    assert http.post("/step", json={**ROW, "response": response}).json() == {
        "observation": None, "reward": 1.0, "terminated": True, "truncated": False, "info": {},
    }  # fmt: skip
