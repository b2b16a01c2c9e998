"""Episodes played by a scripted model against real environments in this process. Nothing of ours is mocked."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from omegaconf import OmegaConf

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.environment.verifier_fixture import said
from nemo_gym.net import local
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import ServerClient
from resources_servers.blackjack.app import BlackjackConfig, BlackjackServer
from resources_servers.blackjack.generate import RULES, rows, winning_play
from resources_servers.gymnasium import GymnasiumServer, extract_text
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentConfig, observed
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig

HOST = "127.0.0.1"
PORTS = {"agent": 40011, "model": 40012, "env": 40013}
TWO_TURNS = next(row for row in rows(60, seed=5) if len(winning_play(row["seed"]) or []) == 2)
HIT, STAND = {"text": "<action>hit</action>"}, {"text": "<action>stand</action>"}


class Levers(GymnasiumServer):
    """Pull twice. Steps answer tool calls; a broken lever fails."""

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[None, dict[str, Any]]:
        self.keep(session_id, 0)
        return None, {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        if "break" in extract_text(action):
            raise RuntimeError("the lever broke")
        pulled = self.kept(session_id) + sum(item.type == "function_call" for item in action.output)
        self.keep(session_id, pulled)
        return f"pulled {pulled} times", float(pulled == 2), pulled >= 2, False, {}


class Bench:
    """An agent, a model that plays `script`, and an environment, wired in memory."""

    def __init__(self, script: list[dict[str, Any]], env: type[GymnasiumServer], **settings: Any) -> None:
        place = {"host": HOST, "entrypoint": "app.py"}
        config = {
            "model": {"responses_api_models": {"scripted_model": {**place, "port": PORTS["model"]}}},
            "env": {"resources_servers": {"game": {**place, "port": PORTS["env"]}}},
            "agent": {"responses_api_agents": {"gymnasium_agent": {**place, "port": PORTS["agent"]}}},
        }
        client = ServerClient(
            head_server_config=BaseServerConfig(host=HOST, port=40010), global_config_dict=OmegaConf.create(config)
        )
        agent_config = GymnasiumAgentConfig(
            **place,
            port=PORTS["agent"],
            name="agent",
            resources_server={"type": "resources_servers", "name": "env"},
            model_server={"type": "responses_api_models", "name": "model"},
            **settings,
        )
        model_config = ScriptedModelConfig(**place, port=PORTS["model"], name="model", script=script)
        env_config = BlackjackConfig(**place, port=PORTS["env"], name="env")
        servers = {
            "model": ScriptedModel(config=model_config, server_client=client),
            "env": env(config=env_config, server_client=client),
            "agent": GymnasiumAgent(config=agent_config, server_client=client),
        }
        for name, server in servers.items():
            app = server.setup_webserver()
            server.setup_exception_middleware(app)
            local.mount(HOST, PORTS[name], app)
        self.http = TestClient(local.local_app(f"http://{HOST}:{PORTS['agent']}"))

    def run(self, row: dict[str, Any]) -> dict[str, Any]:
        reply = self.http.post("/run", json=row)
        assert reply.status_code == 200, reply.text
        return reply.json()


@pytest.fixture(autouse=True)
def _unmounted() -> Iterator[None]:
    yield
    for port in PORTS.values():
        local.unmount(HOST, port)


def test_a_hand_is_played_to_its_end_and_verified() -> None:
    """The plain case: prompt, observation, turn, observation, turn, verdict."""
    verdict = Bench([HIT, STAND], BlackjackServer).run(TWO_TURNS)

    assert (verdict["reward"], verdict["steps"], verdict["terminated"]) == (1.0, 2, True)
    asked = [item["content"] for item in verdict["responses_create_params"]["input"]]
    assert asked[0] == RULES
    assert asked[1].startswith("Your hand:")
    assert [item["role"] for item in verdict["response"]["output"]] == ["assistant", "user", "assistant"]
    assert verdict["response"]["output"][1]["content"].startswith("Your hand:")


def test_the_stored_rollout_gets_the_same_verdict_again() -> None:
    """`gym eval reverify` has no session to go by."""
    bench = Bench([HIT, STAND], BlackjackServer)
    verdict = bench.run(TWO_TURNS)
    environment = TestClient(local.local_app(f"http://{HOST}:{PORTS['env']}"))

    again = environment.post("/verify", json=verdict).json()

    assert (again["reward"], again["info"]) == (verdict["reward"], verdict["info"])


def test_an_episode_ends_after_max_steps() -> None:
    """A model that never comes to an end is stopped, and gets what it earned so far."""
    verdict = Bench([HIT], BlackjackServer, max_steps=1).run(TWO_TURNS)

    assert (verdict["reward"], verdict["steps"], verdict["truncated"]) == (0.0, 1, True)


def test_usage_is_the_sum_of_all_turns() -> None:
    """Costs are read from the final response alone."""
    one = Bench([HIT], BlackjackServer, max_steps=1).run(TWO_TURNS)["response"]["usage"]
    two = Bench([HIT, STAND], BlackjackServer).run(TWO_TURNS)["response"]["usage"]

    assert two["output_tokens"] > one["output_tokens"]


def test_an_observation_answers_the_tool_calls_of_the_turn() -> None:
    """A call without an output is a request that model endpoints refuse."""
    pull = {"tool_calls": [{"name": "pull", "arguments": {}}]}

    verdict = Bench([pull], Levers).run({"responses_create_params": {"input": "Pull."}})

    kinds = [item["type"] for item in verdict["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "function_call"]
    assert verdict["response"]["output"][1]["output"] == "pulled 1 times"
    assert verdict["reward"] == 1.0


def test_the_prompt_stays_as_it_is_when_there_is_no_first_observation() -> None:
    """Nothing is put into the model's mouth or ear."""
    pulls = {"tool_calls": [{"name": "pull", "arguments": {}}] * 2}

    verdict = Bench([pulls], Levers).run({"responses_create_params": {"input": "Pull."}})

    assert [item["content"] for item in verdict["responses_create_params"]["input"]] == ["Pull."]


def test_an_environment_that_fails_is_no_reward() -> None:
    """The rollout is a failure, attributed to the environment."""
    bench = Bench([{"text": "break it"}], Levers)

    answer = bench.http.post("/run", json={"responses_create_params": {"input": "Pull."}})

    assert answer.status_code == 500
    assert "the lever broke" in answer.text


def test_without_verification_the_reward_is_what_the_configuration_says() -> None:
    """Collecting for somebody else to grade."""
    verdict = Bench([STAND], BlackjackServer, skip_verification=True, skip_verification_reward=0.25).run(TWO_TURNS)

    assert (verdict["reward"], verdict["verification_skipped"]) == (0.25, True)


def test_a_model_that_is_asked_without_a_row_plays_one_episode() -> None:
    """`/v1/responses` is the same loop without a verdict."""
    pulls = {"tool_calls": [{"name": "pull", "arguments": {}}] * 2}

    answer = Bench([pulls], Levers).http.post("/v1/responses", json={"input": "Pull."})

    assert [item["type"] for item in answer.json()["output"]] == ["function_call", "function_call"]


def test_observations_travel_with_their_type() -> None:
    """Only what was set is sent to another process, and an item without its type is refused there."""
    response = NeMoGymResponse.model_validate(said("x"))

    sent = [item.model_dump(exclude_unset=True) for item in observed("seen", response)]

    assert sent == [{"type": "message", "role": "user", "content": "seen"}]
