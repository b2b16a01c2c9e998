"""A model that plays a script: what it says, in which dialect, and how it fails."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from pydantic import ValidationError

from nemo_gym.errors import ConfigError, ServerUnreachable
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.net import local
from nemo_gym.net.openai import NeMoGymAsyncOpenAI
from nemo_gym.server_utils import ServerClient
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig
from responses_api_models.scripted_model.script import Scene, Turn

PLACE = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "policy_model"}
CALL = {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}
DONE = {"reasoning": "cold means coat", "text": "Take a coat."}
USER = {"role": "user", "content": "hi"}


@dataclass
class Reply:
    status_code: int
    headers: Any
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Client:
    """Calls a server as its callers do, failures included."""

    def __init__(self, server: ScriptedModel) -> None:
        self.app = server.prepare_webserver({})

    def post(self, path: str, *, json: Any, headers: dict[str, str] | None = None) -> Reply:
        async def call() -> Reply:
            reply = await local.dispatch(self.app, "POST", f"http://model{path}", json=json, headers=headers)
            return Reply(reply.status, reply.headers, await reply.text())

        return asyncio.run(call())


def model(**settings: Any) -> ScriptedModel:
    config = ScriptedModelConfig(**PLACE, **settings)
    return ScriptedModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))


def http(*script: Any, **settings: Any) -> Client:
    return Client(model(script=list(script), **settings))


def ask(client: Client, items: Any = "hi", **more: Any) -> dict[str, Any]:
    reply = client.post("/v1/responses", json={"input": items, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def said(answer: dict[str, Any]) -> str:
    return answer["output"][-1]["content"][0]["text"]


def test_the_turn_is_read_from_the_input_alone():
    """No session, no counter: the same request always gets the same answer, from any process."""
    client = http(CALL, DONE)
    user = {"role": "user", "content": "weather?"}

    first = ask(client, [user])
    call = first["output"][0]
    second = ask(client, [user, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "cold"}])

    assert json.loads(call["arguments"]) == {"city": "Oslo"}
    assert [item["type"] for item in second["output"]] == ["reasoning", "message"]
    assert ask(client, [user]) == first


def test_several_items_of_one_answer_are_one_turn():
    """Reasoning, a message and calls that follow each other were said in one breath."""
    client = http({"text": "one"}, {"text": "two"}, {"text": "three"})
    said = ask(http(DONE))["output"]

    answer = ask(client, [{"role": "user", "content": "hi"}, *said, {"role": "user", "content": "and?"}])

    assert answer["output"][0]["content"][0]["text"] == "two"


@pytest.mark.parametrize(("after_last", "text"), [("repeat", "two"), ("cycle", "one")])
def test_a_conversation_can_outlive_its_script(after_last, text):
    """Load tests talk longer than anybody wants to write."""
    client = http({"text": "one"}, {"text": "two"}, after_last=after_last)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2

    assert ask(client, turns)["output"][0]["content"][0]["text"] == text


def test_a_conversation_can_be_held_to_its_script():
    """A test that expects two turns wants to hear about the third."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    reply = http({"text": "one"}, after_last="fail").post("/v1/responses", json={"input": turns})

    assert reply.status_code == 400
    assert "1 turns and turn 2" in reply.text


def test_chat_plays_the_same_script():
    """Agents that speak chat completions are tested with the same file."""
    client = http(CALL, DONE)
    user, call = {"role": "user", "content": "weather?"}, {"role": "assistant", "content": "let me see"}

    first = client.post("/v1/chat/completions", json={"messages": [user]}).json()["choices"][0]
    second = client.post("/v1/chat/completions", json={"messages": [user, call]}).json()["choices"][0]

    assert first["finish_reason"] == "tool_calls"
    assert first["message"]["tool_calls"][0]["function"] == {"arguments": '{"city": "Oslo"}', "name": "get_weather"}
    assert second["message"]["content"] == "<think>cold means coat</think>Take a coat."
    assert second["finish_reason"] == "stop"


def test_an_answer_can_be_cut_by_the_token_limit():
    """Agents must notice an incomplete answer."""
    answer = ask(http({"text": "I was about", "incomplete": "max_output_tokens"}))

    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


def test_arguments_can_be_bad_json():
    """That is what models write now and then."""
    answer = ask(http({"tool_calls": [{"name": "f", "arguments": '{"a": '}]}))

    assert answer["output"][0]["arguments"] == '{"a": '


def test_it_fails_with_the_status_it_is_told():
    """Retry policies are tested against real statuses and headers."""
    fault = {"kind": "status", "status": 429, "message": "slow down", "headers": {"Retry-After": "1"}}

    reply = http({"fault": fault}).post("/v1/responses", json={"input": "hi"})

    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert "slow down" in reply.text


def test_it_fails_only_as_often_as_it_is_told():
    """The second try succeeds, so a retry can be shown to work."""
    client = http({"text": "now", "fault": {"kind": "status", "times": 2}})

    statuses = [client.post("/v1/responses", json={"input": "hi"}).status_code for _ in range(3)]

    assert statuses == [503, 503, 200]


@pytest.mark.parametrize("kind", ["not_json", "cut_off"])
def test_it_answers_with_something_that_is_not_json(kind):
    """Proxies and crashed backends do; callers must name the culprit."""
    reply = http({"text": "fine", "fault": {"kind": kind}}).post("/v1/responses", json={"input": "hi"})

    assert reply.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        reply.json()


def test_it_answers_with_json_of_another_shape():
    """Valid JSON is not a valid answer."""
    reply = http({"fault": {"kind": "wrong_shape"}}).post("/v1/responses", json={"input": "hi"})

    assert reply.json() == {"unexpected": "the script says so"}


def test_a_stall_ends():
    """Nothing waits for ever, not even on purpose."""
    answer = ask(http({"text": "at last", "fault": {"kind": "stall", "seconds": 0.01}}))

    assert answer["output"][0]["content"][0]["text"] == "at last"


@pytest.mark.parametrize(
    "script",
    [[], [{}], [{"txt": "typo"}], [{"text": "a", "fault": {"kind": "status", "status": 200}}]],
    ids=["no turn", "silent turn", "unknown field", "status that is no failure"],
)
def test_a_script_that_makes_no_sense_is_refused_at_the_start(script):
    """A typo in a test's script should not look like a bug of the system."""
    with pytest.raises(ValidationError):
        ScriptedModelConfig(**PLACE, script=script)


def count_the_words(scene: Scene) -> str:
    return f"{scene.number}: {len(scene.conversation[-1]['content'].split())} words"


def roll_a_die(scene: Scene) -> dict[str, Any]:
    return {"text": str(scene.chance.randint(1, 10**9)), "reasoning": f"{len(scene.tools)} tools"}


def first_tool(scene: Scene) -> Turn:
    return Turn.model_validate({"tool_calls": [{"name": scene.tools[0]["name"]}]})


HERE = __name__


def test_a_function_can_play_the_model():
    """A script cannot react to what a tool answered; a function can."""
    client = Client(model(function=f"{HERE}:count_the_words"))
    turns = [USER, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "one two three"}]

    assert said(ask(client, turns)) == "1: 3 words"
    chat = client.post("/v1/chat/completions", json={"messages": turns}).json()
    assert chat["choices"][0]["message"]["content"] == "1: 3 words"


def test_a_function_may_call_the_tools_it_is_given():
    """So one function serves every environment."""
    tool = {"type": "function", "name": "get_weather", "parameters": None, "strict": False}

    answer = ask(Client(model(function=f"{HERE}.first_tool")), "hi", tools=[tool])

    assert answer["output"][0]["name"] == "get_weather"


def test_chance_depends_on_the_seed_and_the_conversation_alone():
    """Repeats differ when they are told to, and a rerun does not."""
    client, again = (Client(model(function=f"{HERE}:roll_a_die")) for _ in range(2))
    seeded = {"metadata": {"extra_body": '{"seed": 7}'}}

    assert said(ask(client)) == said(ask(again))
    assert said(ask(client)) != said(ask(client, **seeded))
    assert said(ask(client, **seeded)) == said(ask(again, **seeded))
    assert said(ask(client)) != said(ask(client, "something else"))


def test_a_turn_can_be_a_choice_by_seed():
    """Scores with a known spread, for testing what is computed from them."""
    client = http([{"text": "right"}, {"text": "wrong"}])
    chat = [
        client.post("/v1/chat/completions", json={"messages": [USER], "seed": seed}).json()["choices"][0]["message"]
        for seed in (*range(20), *range(20))
    ]

    texts = [message["content"] for message in chat]
    assert texts[:20] == texts[20:]
    assert set(texts) == {"right", "wrong"}


@pytest.mark.parametrize("path", ["no_such_module:f", f"{HERE}:no_such_name", f"{HERE}:HERE", "f"])
def test_a_function_that_is_not_there_is_a_configuration_error(path):
    """Told when the server starts, not with the first rollout."""
    with pytest.raises(ConfigError, match="function"):
        model(function=path)


@pytest.mark.parametrize("settings", [{}, {"script": [DONE], "function": "a:b"}])
def test_there_is_one_source_of_answers(settings):
    """Which of two would win is nobody's guess."""
    with pytest.raises(ValidationError, match="a script or a function"):
        model(**settings)


def test_messages_play_the_same_script():
    """Agents that speak Anthropic's dialect are tested with the same file."""
    client = http(CALL, DONE)
    first = client.post("/v1/messages", json={"messages": [USER], "max_tokens": 9, "model": "m"}).json()
    use = first["content"][0]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "cold"}
    later = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    second = client.post("/v1/messages", json={"messages": later, "max_tokens": 9, "model": "m"}).json()

    assert (use["name"], use["input"]) == ("get_weather", {"city": "Oslo"})
    assert [block["type"] for block in second["content"]] == ["thinking", "text"]


def test_it_fails_in_every_dialect():
    """The same fault, whoever asks."""
    client = http({"fault": {"kind": "status", "status": 502}})
    body = {"messages": [USER], "max_tokens": 9, "model": "m"}

    statuses = [client.post(path, json=body).status_code for path in ("/v1/messages", "/v1/chat/completions")]

    assert statuses == [502, 502]


@pytest.mark.parametrize(("path", "gone"), [("/v1/responses", "output"), ("/v1/chat/completions", "choices")])
def test_it_answers_without_what_was_said(path, gone):
    """Gateways strip fields; callers must notice."""
    client = http({"text": "fine", "fault": {"kind": "missing_fields"}})

    reply = client.post(path, json={"input": "hi"} if gone == "output" else {"messages": [USER]})

    assert reply.status_code == 200
    assert gone not in reply.json()
    assert "id" in reply.json()


def test_a_stall_lasts_no_longer_than_the_caller_waits():
    """The deadline ends it, and the answer says so."""
    client = http({"text": "never", "fault": {"kind": "stall"}})

    reply = client.post("/v1/responses", json={"input": "hi"}, headers={DEADLINE_HEADER: "0.05"})

    assert reply.status_code == 504
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"


@contextmanager
def over_http(server: ScriptedModel) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))  # callers queue from here on: nobody has to wait for readiness
    http_server = uvicorn.Server(uvicorn.Config(server.prepare_webserver({}), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=http_server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        http_server.should_exit = True
        thread.join()
        listening.close()


def test_half_a_body_breaks_the_connection():
    """What a crashed backend looks like to its caller."""
    server = model(script=[{"text": "fine", "fault": {"kind": "half_body"}}])

    with over_http(server) as url, pytest.raises(ServerUnreachable, match="broke off"):
        asyncio.run(NeMoGymAsyncOpenAI(base_url=url, api_key="k").create_response(input="hi"))
