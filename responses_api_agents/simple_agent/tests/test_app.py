"""The episode, played by a scripted model against a real environment in this process. Nothing of ours is mocked."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.testclient import TestClient
from omegaconf import OmegaConf
from pydantic import BaseModel, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.net import local
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig, tool_arguments
from responses_api_agents.simple_agent.client import main
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig

HOST = "127.0.0.1"
PORTS = {"agent": 40001, "model": 40002, "env": 40003}
WEATHER = {"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}
DONE = {"text": "Take a coat."}


class Weather(BaseModel):
    city: str


class Environment(SimpleResourcesServer):
    """Tools that work, wait for each other and fail; the reward is the number of tool calls of the session."""

    config: BaseResourcesServerConfig
    _calls: dict[str, list[str]] = PrivateAttr(default_factory=dict)
    _meeting: asyncio.Barrier = PrivateAttr(default_factory=lambda: asyncio.Barrier(2))

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for tool in (self.weather, self.meet, self.refuse, self.crash, self.flood):
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

    async def flood(self) -> str:
        return "x" * 20_000

    async def crash(self) -> None:
        raise RuntimeError("boiler exploded")

    async def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:
        calls = self._calls.get(request.session[SESSION_ID_KEY], [])
        return BaseVerifyResponse(**body.model_dump(), reward=float(len(calls)))


class Bench:
    """An agent, a model that plays `script`, and the environment, wired in memory."""

    def __init__(self, script: list[dict[str, Any]], agent: type[SimpleAgent] = SimpleAgent, **settings: Any) -> None:
        place = {"host": HOST, "entrypoint": "app.py"}
        config = {
            "model": {"responses_api_models": {"scripted_model": {**place, "port": PORTS["model"]}}},
            "env": {"resources_servers": {"tools": {**place, "port": PORTS["env"]}}},
            "agent": {"responses_api_agents": {"simple_agent": {**place, "port": PORTS["agent"]}}},
        }
        client = ServerClient(
            head_server_config=BaseServerConfig(host=HOST, port=40000), global_config_dict=OmegaConf.create(config)
        )
        model_config = ScriptedModelConfig(**place, port=PORTS["model"], name="model", script=script)
        env_config = BaseResourcesServerConfig(**place, port=PORTS["env"], name="env")
        agent_config = SimpleAgentConfig(
            **place,
            port=PORTS["agent"],
            name="agent",
            resources_server={"type": "resources_servers", "name": "env"},
            model_server={"type": "responses_api_models", "name": "model"},
            **settings,
        )
        self.client = client
        self.agent = agent(config=agent_config, server_client=client)
        self.environment = Environment(config=env_config, server_client=client)
        servers = {
            "model": ScriptedModel(config=model_config, server_client=client),
            "env": self.environment,
            "agent": self.agent,
        }
        for name, server in servers.items():
            app = server.setup_webserver()
            server.setup_exception_middleware(app)
            local.mount(HOST, PORTS[name], app)
        self.http = TestClient(local.local_app(f"http://{HOST}:{PORTS['agent']}"))

    def respond(self, **params: Any) -> dict[str, Any]:
        reply = self.http.post("/v1/responses", json={"input": "What to wear in Oslo?", **params})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def run(self, **row: Any) -> dict[str, Any]:
        reply = self.http.post("/run", json={"responses_create_params": {"input": "What to wear?"}, **row})
        assert reply.status_code == 200, reply.text
        return reply.json()


@pytest.fixture(autouse=True)
def _unmounted() -> Iterator[None]:
    yield
    for port in PORTS.values():
        local.unmount(HOST, port)


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def tool_texts(response: dict[str, Any]) -> list[str]:
    return [item["output"] for item in response["output"] if item["type"] == "function_call_output"]


def test_a_tool_call_is_run_and_its_answer_given_to_the_model():
    """The plain case: call, result, answer, all of it in the output."""
    response = Bench([WEATHER, DONE]).respond()

    assert types(response) == ["function_call", "function_call_output", "message"]
    assert json.loads(tool_texts(response)[0]) == {"city": "Oslo", "sky": "grey"}
    assert response["output"][0]["call_id"] == response["output"][1]["call_id"]


def test_usage_is_the_sum_of_all_turns():
    """Costs are read from the final response alone."""
    one, two = Bench([DONE]).respond(), Bench([WEATHER, DONE]).respond()

    assert two["usage"]["input_tokens"] > one["usage"]["input_tokens"]
    assert two["usage"]["total_tokens"] == two["usage"]["input_tokens"] + two["usage"]["output_tokens"]


def test_calls_of_one_turn_run_together_and_answer_in_order():
    """Two tools that wait for each other would never finish one after the other."""
    calls = [{"name": "meet", "arguments": {"who": who}} for who in ("Ada", "Bob")]

    verdict = Bench([{"tool_calls": calls}, DONE]).run()

    assert [json.loads(text)["who"] for text in tool_texts(verdict["response"])] == ["Ada", "Bob"]
    assert verdict["reward"] == 2.0


def test_parallel_calls_without_a_seeded_session_share_one():
    """The first call opens the session; calls that raced it would each get their own."""
    calls = [{"name": "weather", "arguments": {"city": city}} for city in ("Oslo", "Rome", "Lima")]
    bench = Bench([{"tool_calls": calls}, DONE])

    bench.respond()

    assert list(bench.environment._calls.values()) == [["Oslo", "Rome", "Lima"]]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [('{"city": ', "cannot be run"), ("[1, 2]", "JSON object"), ('"Oslo"', "JSON object")],
)
def test_bad_arguments_are_told_to_the_model(arguments, complaint):
    """A model learns from its mistake; the episode goes on and no tool runs."""
    verdict = Bench([{"tool_calls": [{"name": "weather", "arguments": arguments}]}, DONE]).run()

    assert complaint in json.loads(tool_texts(verdict["response"])[0])["error"]
    assert types(verdict["response"])[-1] == "message"
    assert verdict["reward"] == 0.0


@pytest.mark.parametrize("name", ["verify", "seed_session", "aggregate_metrics", "../verify", "weather?x=1", ""])
def test_a_name_that_is_no_tool_never_reaches_the_server(name):
    """A model must not be able to call the verifier, or wander through the server's other routes."""
    response = Bench([{"tool_calls": [{"name": name}]}, DONE]).respond()

    assert "no tool" in json.loads(tool_texts(response)[0])["error"]


@pytest.mark.parametrize(
    ("name", "text"), [("refuse", "not on Sundays"), ("crash", "boiler exploded"), ("nowhere", "Not Found")]
)
def test_a_failing_tool_is_text_for_the_model(name, text):
    """Environments answer errors in their own words; the model gets those words."""
    response = Bench([{"tool_calls": [{"name": name}]}, DONE]).respond()

    assert text in tool_texts(response)[0]
    assert types(response)[-1] == "message"


def test_an_answer_no_model_could_read_is_told_in_a_sentence(caplog):
    """A tool that answers a hundred megabytes costs one sentence, and the log says which tool it was."""
    response = Bench([{"tool_calls": [{"name": "flood"}]}, DONE], max_tool_output_bytes=10_000).respond()

    assert json.loads(tool_texts(response)[0]) == {
        "error": "The tool's answer is longer than 10,000 bytes. Ask for less."
    }
    assert types(response)[-1] == "message"
    assert any("env /flood" in message for message in caplog.messages)


def test_a_wrong_argument_is_the_servers_validation_error():
    """The tool's own schema explains what was missing."""
    response = Bench([{"tool_calls": [{"name": "weather", "arguments": {"town": "Oslo"}}]}, DONE]).respond()

    assert "city" in tool_texts(response)[0]


def test_max_steps_ends_the_episode_after_the_tools_of_that_turn():
    """Every call in the output has its answer, also in the turn that was the last."""
    response = Bench([WEATHER], max_steps=3).respond()

    assert types(response) == ["function_call", "function_call_output"] * 3


def test_an_incomplete_answer_ends_the_episode_without_running_its_calls():
    """A call cut in half by the token limit is not a call."""
    response = Bench([{**WEATHER, "incomplete": "max_output_tokens"}]).respond()

    assert types(response) == ["function_call"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_model_that_only_thinks_is_asked_once_more_and_then_left():
    """Reasoning without a message may be a pause; twice in a row it is the end, not an endless loop."""
    response = Bench([{"reasoning": "hm"}]).respond()

    assert types(response) == ["reasoning", "reasoning"]


def test_run_seeds_plays_and_verifies_in_one_session():
    """The verifier sees the state the tools left behind, and the row's own fields come back."""
    verdict = Bench([WEATHER, WEATHER, DONE]).run(expected="coat", _ng_task_index=3)

    assert verdict["reward"] == 2.0
    assert types(verdict["response"]) == ["function_call", "function_call_output"] * 2 + ["message"]


def test_sessions_of_different_rows_do_not_meet():
    """One environment, many rollouts at once: each counts its own calls."""
    bench = Bench([WEATHER, DONE])
    bench.run()
    bench.http.cookies.clear()

    assert bench.run()["reward"] == 1.0


def test_verification_can_be_skipped():
    """Collecting answers without scores is allowed and marked as such."""
    verdict = Bench([DONE], skip_verification=True, skip_verification_reward=-1.0).run(expected="coat")

    assert (verdict["reward"], verdict["verification_skipped"], verdict["expected"]) == (-1.0, True, "coat")


def test_metrics_are_computed_by_the_resources_server():
    """It knows what its own fields mean."""
    reply = Bench([DONE]).http.post("/aggregate_metrics", json={"verify_responses": [{"reward": 1.0}, {"reward": 0.0}]})

    assert reply.json()["agent_metrics"]["mean/reward"] == 0.5


def test_a_failing_model_fails_the_run_and_is_named():
    """Nobody should have to guess whether the model or the environment broke."""
    reply = Bench([{"fault": {"kind": "status", "status": 401, "message": "wrong key"}}]).http.post(
        "/run", json={"responses_create_params": {"input": "hi"}}
    )

    assert reply.status_code == 500
    assert "wrong key" in reply.text


class Recorder:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def model_turn(self, response: Any) -> None:
        self.heard.append(f"model {len(response.output)}")

    def tool_turn(self, call: Any, output: Any) -> None:
        self.heard.append(f"{call.name} -> {output.call_id == call.call_id}")

    def finished(self, response: Any) -> None:
        self.heard.append(f"finished {len(response.output)}")


def test_watchers_hear_every_turn_in_order():
    """Captures and trajectories follow an episode without a flag in its loop."""
    recorder = Recorder()

    class Watched(SimpleAgent):
        def watchers(self):
            return (recorder,)

    Bench([WEATHER, DONE], agent=Watched).respond()

    assert recorder.heard == ["model 1", "weather -> True", "model 1", "finished 3"]


def test_empty_arguments_mean_no_arguments():
    """Several endpoints send an empty string for a tool without parameters."""
    call = type("Call", (), {"name": "weather", "arguments": ""})()

    assert tool_arguments(call) == {}


@pytest.mark.parametrize("words", [["agent"], []])
def test_the_client_shows_what_was_said(monkeypatch, capsys, tmp_path, words):
    """The seed's first contact with a running agent, `client.py`, prints the whole conversation."""
    bench = Bench([WEATHER, DONE])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(ServerClient, "load_from_global_config", lambda *_: bench.client)

    status = main(words)

    said = json.loads(capsys.readouterr().out)
    assert status == 0
    assert [item["type"] for item in said] == ["function_call", "function_call_output", "message"]


def test_the_client_explains_what_is_missing(monkeypatch, capsys, tmp_path):
    """A name that is no agent, or no server at all, is one sentence and not a traceback."""
    bench = Bench([DONE])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(ServerClient, "load_from_global_config", lambda *_: bench.client)

    status = main(["agnet"])

    assert status == 1
    assert "agnet" in capsys.readouterr().err
