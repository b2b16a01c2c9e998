"""Episodes of a scripted model with a real environment in this process, without mocks of our code."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.keys import UNCALLABLE_NAMES
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process
from nemo_gym.transport.response_errors import ERROR_HEADER, FAILED_HEADER
from responses_api_agents.simple_agent.app import SimpleAgent, tool_arguments
from responses_api_agents.simple_agent.client import main
from responses_api_agents.simple_agent.tests.bench import (
    DONE,
    HOST,
    PORTS,
    WEATHER,
    Bench,
    tool_texts,
    types,
    unmount_servers,
)
from responses_api_models.openai_model.tests.endpoint import ask
from responses_api_models.vllm_model.tests.mock_engine import MockEngine, serving
from responses_api_models.vllm_model.tests.support import model


@pytest.fixture(autouse=True)
def _unmount_servers() -> Iterator[None]:
    yield
    unmount_servers()


def test_a_tool_call_is_run_and_its_output_sent_to_the_model():
    """The response must contain call, output and message of the episode."""
    response = Bench([WEATHER, DONE]).respond()

    assert types(response) == ["function_call", "function_call_output", "message"]
    assert json.loads(tool_texts(response)[0]) == {"city": "Oslo", "sky": "grey"}
    assert response["output"][0]["call_id"] == response["output"][1]["call_id"]


def test_usage_is_the_sum_of_all_turns():
    """Costs are computed from the final response alone."""
    one, two = Bench([DONE]).respond(), Bench([WEATHER, DONE]).respond()

    assert two["usage"]["input_tokens"] > one["usage"]["input_tokens"]
    assert two["usage"]["total_tokens"] == two["usage"]["input_tokens"] + two["usage"]["output_tokens"]


def test_calls_of_one_turn_run_concurrently_and_return_in_order():
    """Slow tools must not add up, and models rely on the order."""
    calls = [{"name": "meet", "arguments": {"who": who}} for who in ("Ada", "Bob")]

    verdict = Bench([{"tool_calls": calls}, DONE]).run()

    assert [json.loads(text)["who"] for text in tool_texts(verdict["response"])] == ["Ada", "Bob"]
    assert verdict["reward"] == 2.0


def test_concurrent_calls_without_a_seeded_session_share_one():
    """Otherwise each call would open a session, and state would be lost."""
    calls = [{"name": "weather", "arguments": {"city": city}} for city in ("Oslo", "Rome", "Lima")]
    bench = Bench([{"tool_calls": calls}, DONE])

    bench.respond()

    assert list(bench.environment._calls.values()) == [["Oslo", "Rome", "Lima"]]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [('{"city": ', "cannot be run"), ("[1, 2]", "JSON object"), ('"Oslo"', "JSON object")],
)
def test_invalid_arguments_are_reported_to_the_model(arguments, complaint):
    """The model can correct its mistake, so the episode must continue without running the tool."""
    verdict = Bench([{"tool_calls": [{"name": "weather", "arguments": arguments}]}, DONE]).run()

    assert complaint in json.loads(tool_texts(verdict["response"])[0])["error"]
    assert types(verdict["response"])[-1] == "message"
    assert verdict["reward"] == 0.0


@pytest.mark.parametrize("name", [*sorted(UNCALLABLE_NAMES), "../verify", "weather?x=1", ""])
def test_a_name_that_is_no_tool_never_reaches_the_server(name):
    """A model must not be able to call the verifier, or to end its session so that its answer gets no reward."""
    assert {"verify", "close_session"} < UNCALLABLE_NAMES
    response = Bench([{"tool_calls": [{"name": name}]}, DONE]).respond()

    assert "no tool" in json.loads(tool_texts(response)[0])["error"]


@pytest.mark.parametrize(("name", "text"), [("refuse", "not on Sundays"), ("crash", "boiler exploded")])
def test_the_error_of_a_tool_is_sent_to_the_model(name, text):
    """Environments explain errors to the model, and the text must arrive unchanged."""
    response = Bench([{"tool_calls": [{"name": name}]}, DONE]).respond()

    assert text in tool_texts(response)[0]
    assert types(response)[-1] == "message"


OFFERED = {"type": "function", "name": "weather", "description": "", "strict": False, "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("tools", "text"),
    [([], "There is no tool named 'nowhere'."), ([OFFERED], "There is no tool named 'nowhere'. Tools: weather.")],
)
def test_a_tool_that_does_not_exist_is_named_with_those_that_do(tools, text):
    """`{"detail":"Not Found"}` does not help a model to choose another tool."""
    bench = Bench([{"tool_calls": [{"name": "nowhere"}]}, DONE])

    reply = bench.http.post("/v1/responses", json={"input": "What to wear?", "tools": tools})

    assert json.loads(tool_texts(reply.json())[0]) == {"error": text}


def test_an_offered_tool_may_answer_404():
    """A file that a tool does not find is the answer of the tool, not a missing tool."""
    bench = Bench([{"tool_calls": [{"name": "nowhere"}]}, DONE])

    reply = bench.http.post("/v1/responses", json={"input": "x", "tools": [OFFERED | {"name": "nowhere"}]})

    assert json.loads(tool_texts(reply.json())[0]) == {"detail": "Not Found"}


@pytest.mark.parametrize("error", ["RequestCancelled", "ServerUnreachable"])
def test_a_failure_of_a_server_is_no_output_of_a_tool(error):
    """The model did nothing wrong: the rollout must run again instead of scoring what the model makes of the error."""
    bench = Bench([{"tool_calls": [{"name": "fail", "arguments": {"error": error}}]}, DONE])

    reply = bench.http.post("/run", json={"responses_create_params": {"input": "What to wear?"}})

    assert (reply.status_code, reply.headers[ERROR_HEADER], reply.headers[FAILED_HEADER]) == (500, error, "env")


def test_a_too_long_tool_output_becomes_an_error(caplog):
    """A hundred megabytes must not reach the model, and the log must name the tool."""
    response = Bench([{"tool_calls": [{"name": "flood"}]}, DONE], max_tool_output_bytes=10_000).respond()

    assert json.loads(tool_texts(response)[0]) == {
        "error": "The tool's answer is longer than 10,000 bytes. Ask for less."
    }
    assert types(response)[-1] == "message"
    assert any("env /flood" in message for message in caplog.messages)


def test_a_wrong_argument_is_the_servers_validation_error():
    """The schema of the tool tells the model which argument is missing."""
    response = Bench([{"tool_calls": [{"name": "weather", "arguments": {"town": "Oslo"}}]}, DONE]).respond()

    assert "city" in tool_texts(response)[0]


def test_max_steps_ends_the_episode_after_the_tools_of_that_turn():
    """Every call in the response must have its output, also in the last turn."""
    response = Bench([WEATHER], max_steps=3).respond()

    assert types(response) == ["function_call", "function_call_output"] * 3


def test_an_incomplete_reply_ends_the_episode_without_running_its_calls():
    """A call cut by the token limit is not the call that the model wanted."""
    response = Bench([{**WEATHER, "incomplete": "max_output_tokens"}]).respond()

    assert types(response) == ["function_call"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_two_turns_of_reasoning_only_end_the_episode():
    """One may be a pause, but a model that only reasons must not loop without end."""
    response = Bench([{"reasoning": "hm"}]).respond()

    assert types(response) == ["reasoning", "reasoning"]


def test_run_seeds_and_verifies_in_the_session_of_the_tools():
    """The verifier needs the state that the tools left."""
    verdict = Bench([WEATHER, WEATHER, DONE]).run(expected="coat", _ng_task_index=3)

    assert verdict["reward"] == 2.0
    assert types(verdict["response"]) == ["function_call", "function_call_output"] * 2 + ["message"]


def test_rows_have_separate_sessions():
    """Concurrent rollouts share an environment and must not see each other's state."""
    bench = Bench([WEATHER, DONE])
    bench.run()
    bench.http.cookies.clear()

    assert bench.run()["reward"] == 1.0


def test_verification_can_be_skipped():
    """Rollouts may be collected without scores, and must be marked as such."""
    verdict = Bench([DONE], skip_verification=True, skip_verification_reward=-1.0).run(expected="coat")

    assert (verdict["reward"], verdict["verification_skipped"], verdict["expected"]) == (-1.0, True, "coat")


def test_metrics_are_computed_by_the_resources_server():
    """Only the resources server knows the meaning of its fields."""
    reply = Bench([DONE]).http.post("/aggregate_metrics", json={"verify_responses": [{"reward": 1.0}, {"reward": 0.0}]})

    assert reply.json()["agent_metrics"]["mean/reward"] == 0.5


def test_a_failing_model_fails_the_run_and_is_named():
    """The user must learn whether the model or the environment failed."""
    reply = Bench([{"fault": {"kind": "status", "status": 401, "message": "wrong key"}}]).http.post(
        "/run", json={"responses_create_params": {"input": "hi"}}
    )

    assert reply.status_code == 500
    assert "wrong key" in reply.text


class Recorder:
    def __init__(self) -> None:
        self.events: list[str] = []

    def model_turn(self, response: Any) -> None:
        self.events.append(f"model {len(response.output)}")

    def tool_turn(self, call: Any, output: Any) -> None:
        self.events.append(f"{call.name} -> {output.call_id == call.call_id}")

    def episode_finished(self, response: Any) -> None:
        self.events.append(f"finished {len(response.output)}")


def test_watchers_observe_every_turn_in_order():
    """Recorders follow an episode without flags in its loop."""
    recorder = Recorder()

    class ObservedAgent(SimpleAgent):
        def watchers(self):
            return (recorder,)

    Bench([WEATHER, DONE], agent=ObservedAgent).respond()

    assert recorder.events == ["model 1", "weather -> True", "model 1", "finished 3"]


def test_empty_arguments_mean_no_arguments():
    """Several endpoints send an empty string for a tool without parameters."""
    call = type("Call", (), {"name": "weather", "arguments": ""})()

    assert tool_arguments(call) == {}


@pytest.mark.parametrize("words", [["agent"], []])
def test_the_client_prints_the_conversation(monkeypatch, capsys, tmp_path, words):
    """`client.py` is the first contact of many users with a running agent."""
    bench = Bench([WEATHER, DONE])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(ServerClient, "load_from_global_config", lambda *_: bench.client)

    status = main(words)

    items = json.loads(capsys.readouterr().out)
    assert status == 0
    assert [item["type"] for item in items] == ["function_call", "function_call_output", "message"]


def test_the_client_names_an_unknown_agent(monkeypatch, capsys, tmp_path):
    """A misspelt name must be one sentence, not a traceback."""
    bench = Bench([DONE])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(ServerClient, "load_from_global_config", lambda *_: bench.client)

    status = main(["agnet"])

    assert status == 1
    assert "agnet" in capsys.readouterr().err


@pytest.mark.parametrize("transport", ["chat", "tokens"])
@pytest.mark.parametrize(("limit", "turns"), [(20, 0), (5000, 1)], ids=["first prompt", "later prompt"])
async def test_a_prompt_that_does_not_fit_is_a_limit_and_not_a_zero(transport: str, limit: int, turns: int):
    """A trainer would learn from the zero that long tool outputs are bad; the turns before it keep their tokens."""
    answer = '<tool_call>{"name":"flood", "arguments":{}}</tool_call>'
    bench = Bench([DONE])
    async with serving(MockEngine(lambda turn: answer, max_model_len=limit)) as engine:
        policy = model(
            engine.url,
            transport=transport,
            return_token_id_information=True,
            request_prompt_and_generation_token_ids=True,
        )
        app = policy.setup_webserver()
        policy.setup_exception_middleware(app)
        in_process.mount(HOST, PORTS["model"], app)
        tool = {"type": "function", "name": "flood", "parameters": {"type": "object"}, "strict": False}
        row = {"responses_create_params": {"input": "What to wear?", "tools": [tool]}}
        result = await (await ask(bench.agent, "/run", row)).json()

    assert result["_ng_failure_class"] == "limit"
    assert result["_ng_failure"] == {"which": "context_length"}
    assert types(result["response"]) == ["function_call", "function_call_output"] * turns
    assert all(item["generation_token_ids"] for item in result["response"]["output"][::2])
