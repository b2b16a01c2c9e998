"""Episodes of a scripted model with real environments in this process, without mocks of our code."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from omegaconf import OmegaConf

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process
from nemo_gym.transport.response_errors import FAILED_HEADER, FAILED_PATH_HEADER
from resources_servers.blackjack.app import BlackjackConfig, BlackjackServer
from resources_servers.blackjack.generate import RULES, rows, winning_play
from resources_servers.gymnasium import GymnasiumServer, extract_text
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentConfig, observation_items
from responses_api_models.openai_model.tests.endpoint import ask
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig
from responses_api_models.vllm_model.tests.mock_engine import MockEngine, serving
from responses_api_models.vllm_model.tests.support import model

HOST = "127.0.0.1"
PORTS = {"agent": 40011, "model": 40012, "env": 40013}
TWO_TURNS = next(row for row in rows(60, seed=5) if len(winning_play(row["seed"]) or []) == 2)
HIT, STAND = {"text": "<action>hit</action>"}, {"text": "<action>stand</action>"}


class Levers(GymnasiumServer):
    """Ends after two pulls. Observations are outputs of tool calls; a broken lever fails."""

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[None, dict[str, Any]]:
        self.save_state(session_id, 0)
        return None, {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        if "break" in extract_text(action):
            raise RuntimeError("the lever broke")
        pulled = self.load_state(session_id) + sum(item.type == "function_call" for item in action.output)
        self.save_state(session_id, pulled)
        return f"pulled {pulled} times", float(pulled == 2), pulled >= 2, False, {}


class Bench:
    """An agent, a scripted model and an environment, connected in memory."""

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
        self.agent = GymnasiumAgent(config=agent_config, server_client=client)
        servers = {
            "model": ScriptedModel(config=model_config, server_client=client),
            "env": env(config=env_config, server_client=client),
            "agent": self.agent,
        }
        for name, server in servers.items():
            app = server.setup_webserver()
            server.setup_exception_middleware(app)
            in_process.mount(HOST, PORTS[name], app)
        self.http = TestClient(in_process.app_for_url(f"http://{HOST}:{PORTS['agent']}"))

    def run(self, row: dict[str, Any]) -> dict[str, Any]:
        reply = self.http.post("/run", json=row)
        assert reply.status_code == 200, reply.text
        return reply.json()


@pytest.fixture(autouse=True)
def _unmount_servers() -> Iterator[None]:
    yield
    for port in PORTS.values():
        in_process.unmount(HOST, port)


def test_an_episode_runs_to_its_end_and_is_verified() -> None:
    """The stored prompt must be the one that the model saw, with the first observation."""
    verdict = Bench([HIT, STAND], BlackjackServer).run(TWO_TURNS)

    assert (verdict["reward"], verdict["steps"], verdict["terminated"]) == (1.0, 2, True)
    prompts = [item["content"] for item in verdict["responses_create_params"]["input"]]
    assert prompts[0] == RULES
    assert prompts[1].startswith("Your hand:")
    assert [item["role"] for item in verdict["response"]["output"]] == ["assistant", "user", "assistant"]
    assert verdict["response"]["output"][1]["content"].startswith("Your hand:")


def test_the_stored_rollout_gets_the_same_verdict_again() -> None:
    """`gym eval reverify` has only the stored rollout, without a session."""
    bench = Bench([HIT, STAND], BlackjackServer)
    verdict = bench.run(TWO_TURNS)
    environment = TestClient(in_process.app_for_url(f"http://{HOST}:{PORTS['env']}"))

    again = environment.post("/verify", json=verdict).json()

    assert (again["reward"], again["info"]) == (verdict["reward"], verdict["info"])


def test_an_episode_ends_after_max_steps() -> None:
    """An endless episode must stop, with the rewards so far."""
    verdict = Bench([HIT], BlackjackServer, max_steps=1).run(TWO_TURNS)

    assert (verdict["reward"], verdict["steps"], verdict["truncated"]) == (0.0, 1, True)


def test_usage_is_the_sum_of_all_turns() -> None:
    """Costs are computed from the final response alone."""
    one = Bench([HIT], BlackjackServer, max_steps=1).run(TWO_TURNS)["response"]["usage"]
    two = Bench([HIT, STAND], BlackjackServer).run(TWO_TURNS)["response"]["usage"]

    assert two["output_tokens"] > one["output_tokens"]


def test_an_observation_is_the_output_of_the_turns_tool_calls() -> None:
    """Model endpoints refuse a conversation with a call that has no output."""
    pull = {"tool_calls": [{"name": "pull", "arguments": {}}]}

    verdict = Bench([pull], Levers).run({"responses_create_params": {"input": "Pull."}})

    kinds = [item["type"] for item in verdict["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "function_call"]
    assert verdict["response"]["output"][1]["output"] == "pulled 1 times"
    assert verdict["reward"] == 1.0


def test_without_a_first_observation_the_prompt_is_unchanged() -> None:
    """An empty user message would change the task."""
    pulls = {"tool_calls": [{"name": "pull", "arguments": {}}] * 2}

    verdict = Bench([pulls], Levers).run({"responses_create_params": {"input": "Pull."}})

    assert [item["content"] for item in verdict["responses_create_params"]["input"]] == ["Pull."]


def test_a_failing_environment_fails_the_rollout() -> None:
    """A failure must not count as a reward of zero."""
    bench = Bench([{"text": "break it"}], Levers)

    answer = bench.http.post("/run", json={"responses_create_params": {"input": "Pull."}})

    assert answer.status_code == 500
    assert "the lever broke" in answer.text


def test_without_verification_the_reward_is_the_configured_one() -> None:
    """Rollouts may be collected now and graded later."""
    verdict = Bench([STAND], BlackjackServer, skip_verification=True, skip_verification_reward=0.25).run(TWO_TURNS)

    assert (verdict["reward"], verdict["verification_skipped"]) == (0.25, True)


def test_responses_runs_one_episode_without_a_row() -> None:
    """`/v1/responses` is the way to try an agent without a dataset."""
    pulls = {"tool_calls": [{"name": "pull", "arguments": {}}] * 2}

    answer = Bench([pulls], Levers).http.post("/v1/responses", json={"input": "Pull."})

    assert [item["type"] for item in answer.json()["output"]] == ["function_call", "function_call"]


def test_observations_are_sent_with_their_type() -> None:
    """Only fields that were set are sent, and the other process refuses an item without a type."""
    response = NeMoGymResponse.model_validate(text_response("x"))

    sent = [item.model_dump(exclude_unset=True) for item in observation_items("seen", response)]

    assert sent == [{"type": "message", "role": "user", "content": "seen"}]


class Odd(Levers):
    """Answers a step with something that is not one."""

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") != "/step"]
        app.post("/step")(self.answer_oddly)
        return app

    async def answer_oddly(self, body: dict[str, Any]) -> Any:
        return {"observation": "no end"}


def test_an_answer_that_is_not_a_step_is_a_failure_of_the_environment():
    """The agent cannot go on, but its log does not show the fault."""
    reply = Bench([{"text": "pull"}], Odd).http.post("/run", json={"responses_create_params": {"input": "Pull."}})

    assert reply.status_code == 500
    assert (reply.headers[FAILED_HEADER], reply.headers[FAILED_PATH_HEADER]) == ("env", "/step")


async def test_a_prompt_that_does_not_fit_is_a_limit_and_not_a_zero() -> None:
    """The environment has not ended and would score an episode that the model could not finish."""
    bench = Bench([HIT], Levers)
    async with serving(MockEngine(lambda turn: "I wait.", max_model_len=90)) as engine:
        policy = model(
            engine.url,
            transport="tokens",
            return_token_id_information=True,
            request_prompt_and_generation_token_ids=True,
        )
        app = policy.setup_webserver()
        policy.setup_exception_middleware(app)
        in_process.mount(HOST, PORTS["model"], app)
        row = {"responses_create_params": {"input": "Pull."}}
        result = await (await ask(bench.agent, "/run", row)).json()

    assert (result["_ng_failure_class"], result["_ng_failure"]) == ("limit", {"which": "context_length"})
    answers = [item for item in result["response"]["output"] if item["role"] == "assistant"]
    assert len(answers) > 1
    for before, after in itertools.pairwise(answers):
        seen = before["prompt_token_ids"] + before["generation_token_ids"]
        assert after["prompt_token_ids"][: len(seen)] == seen
