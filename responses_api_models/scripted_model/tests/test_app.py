"""The scripted model: its turns, its dialects and its faults."""

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
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process
from nemo_gym.transport.model_client import NeMoGymAsyncOpenAI
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
    """Calls a server in process; failures become replies, as for any caller."""

    def __init__(self, server: ScriptedModel) -> None:
        self.app = server.prepare_webserver({})

    def post(self, path: str, *, json: Any, headers: dict[str, str] | None = None) -> Reply:
        async def call() -> Reply:
            reply = await in_process.dispatch(self.app, "POST", f"http://model{path}", json=json, headers=headers)
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


def reply_text(answer: dict[str, Any]) -> str:
    return answer["output"][-1]["content"][0]["text"]


def test_the_turn_is_read_from_the_input_alone():
    """The same request must get the same reply from any process, without sessions or counters."""
    client = http(CALL, DONE)
    user = {"role": "user", "content": "weather?"}

    first = ask(client, [user])
    call = first["output"][0]
    second = ask(client, [user, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "cold"}])

    assert json.loads(call["arguments"]) == {"city": "Oslo"}
    assert [item["type"] for item in second["output"]] == ["reasoning", "message"]
    assert ask(client, [user]) == first


def test_several_items_of_one_answer_are_one_turn():
    """Reasoning, message and calls in a row come from one reply, so they must count once."""
    client = http({"text": "one"}, {"text": "two"}, {"text": "three"})
    reply_text = ask(http(DONE))["output"]

    answer = ask(client, [{"role": "user", "content": "hi"}, *reply_text, {"role": "user", "content": "and?"}])

    assert answer["output"][0]["content"][0]["text"] == "two"


@pytest.mark.parametrize(("after_last", "text"), [("repeat", "two"), ("cycle", "one")])
def test_a_conversation_can_outlive_its_script(after_last, text):
    """Load tests need longer conversations than a script has turns."""
    client = http({"text": "one"}, {"text": "two"}, after_last=after_last)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2

    assert ask(client, turns)["output"][0]["content"][0]["text"] == text


def test_a_turn_beyond_the_script_can_be_an_error():
    """A test that expects two turns must notice the third."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    reply = http({"text": "one"}, after_last="fail").post("/v1/responses", json={"input": turns})

    assert reply.status_code == 400
    assert "1 turns, and the request needs turn 2" in reply.text


def test_chat_uses_the_same_script():
    """Agents that use chat completions are tested with the same script."""
    client = http(CALL, DONE)
    user, call = {"role": "user", "content": "weather?"}, {"role": "assistant", "content": "let me see"}

    answer = client.post("/v1/chat/completions", json={"messages": [user]}).json()
    first = answer["choices"][0]
    second = client.post("/v1/chat/completions", json={"messages": [user, call]}).json()["choices"][0]

    assert first["finish_reason"] == "tool_calls"
    assert first["message"]["tool_calls"][0]["function"] == {"arguments": '{"city": "Oslo"}', "name": "get_weather"}
    assert second["message"]["content"] == "Take a coat."
    assert second["message"]["reasoning_content"] == "cold means coat"
    assert second["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0


def test_call_ids_differ_between_rollouts_and_are_reproducible():
    """A harness or trainer that joins calls by their id must not mix rollouts."""
    client = http(CALL, DONE)

    ids = [
        client.post(f"{prefix}/v1/responses", json={"input": "x"}).json()["output"][-1]["call_id"]
        for prefix in ("", "/ng-rollout/3-1", "/ng-rollout/3-2", "/ng-rollout/3-1")
    ]

    assert ids == ["call_0_0", "call_3-1_0_0", "call_3-2_0_0", "call_3-1_0_0"]


def test_an_answer_can_be_cut_by_the_token_limit():
    """Tests must be able to check that agents notice an incomplete reply."""
    answer = ask(http({"text": "I was about", "incomplete": "max_output_tokens"}))

    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


def test_arguments_can_be_invalid_json():
    """Real models sometimes write invalid JSON, and agents must handle it."""
    answer = ask(http({"tool_calls": [{"name": "f", "arguments": '{"a": '}]}))

    assert answer["output"][0]["arguments"] == '{"a": '


def test_a_fault_has_the_configured_status():
    """Retry policies are tested against real statuses and headers."""
    fault = {"kind": "status", "status": 429, "message": "slow down", "headers": {"Retry-After": "1"}}

    reply = http({"fault": fault}).post("/v1/responses", json={"input": "hi"})

    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert "slow down" in reply.text


def test_a_fault_ends_after_the_configured_number_of_requests():
    """A test of retries needs a later attempt to succeed."""
    client = http({"text": "now", "fault": {"kind": "status", "times": 2}})

    statuses = [client.post("/v1/responses", json={"input": "hi"}).status_code for _ in range(3)]

    assert statuses == [503, 503, 200]


@pytest.mark.parametrize("kind", ["not_json", "cut_off"])
def test_a_reply_can_be_no_json(kind):
    """Proxies and crashed backends send such replies, and callers must name the server."""
    reply = http({"text": "fine", "fault": {"kind": kind}}).post("/v1/responses", json={"input": "hi"})

    assert reply.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        reply.json()


def test_a_reply_can_have_another_shape():
    """Valid JSON is not always a valid reply."""
    reply = http({"fault": {"kind": "wrong_shape"}}).post("/v1/responses", json={"input": "hi"})

    assert reply.json() == {"unexpected": "the script injects this fault"}


def test_a_stall_ends():
    """Even an intended stall must have an end."""
    answer = ask(http({"text": "at last", "fault": {"kind": "stall", "seconds": 0.01}}))

    assert answer["output"][0]["content"][0]["text"] == "at last"


@pytest.mark.parametrize(
    "script",
    [[], [{}], [{"txt": "typo"}], [{"text": "a", "fault": {"kind": "status", "status": 200}}]],
    ids=["no turn", "silent turn", "unknown field", "status that is no failure"],
)
def test_an_invalid_script_is_refused_at_start(script):
    """A typo in the script of a test must not look like a bug of the system."""
    with pytest.raises(ValidationError):
        ScriptedModelConfig(**PLACE, script=script)


def count_the_words(scene: Scene) -> str:
    return f"{scene.number}: {len(scene.conversation[-1]['content'].split())} words"


def roll_a_die(scene: Scene) -> dict[str, Any]:
    return {"text": str(scene.chance.randint(1, 10**9)), "reasoning": f"{len(scene.tools)} tools"}


def first_tool(scene: Scene) -> Turn:
    return Turn.model_validate({"tool_calls": [{"name": scene.tools[0]["name"]}]})


HERE = __name__


def test_a_function_can_replace_the_script():
    """A script cannot react to the output of a tool; a function can."""
    client = Client(model(function=f"{HERE}:count_the_words"))
    turns = [USER, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "one two three"}]

    assert reply_text(ask(client, turns)) == "1: 3 words"
    chat = client.post("/v1/chat/completions", json={"messages": turns}).json()
    assert chat["choices"][0]["message"]["content"] == "1: 3 words"


def test_a_function_may_call_the_tools_of_the_request():
    """One function can then serve every environment."""
    tool = {"type": "function", "name": "get_weather", "parameters": None, "strict": False}

    answer = ask(Client(model(function=f"{HERE}.first_tool")), "hi", tools=[tool])

    assert answer["output"][0]["name"] == "get_weather"


def test_chance_depends_on_the_seed_and_the_conversation_alone():
    """Repeats with different seeds must differ, and a rerun must not."""
    client, second = (Client(model(function=f"{HERE}:roll_a_die")) for _ in range(2))
    seeded = {"metadata": {"extra_body": '{"seed": 7}'}}

    assert reply_text(ask(client)) == reply_text(ask(second))
    assert reply_text(ask(client)) != reply_text(ask(client, **seeded))
    assert reply_text(ask(client, **seeded)) == reply_text(ask(second, **seeded))
    assert reply_text(ask(client)) != reply_text(ask(client, "something else"))


def test_a_turn_can_be_a_choice_by_seed():
    """Tests of statistics need scores with a known spread."""
    client = http([{"text": "right"}, {"text": "wrong"}])
    chat = [
        client.post("/v1/chat/completions", json={"messages": [USER], "seed": seed}).json()["choices"][0]["message"]
        for seed in (*range(20), *range(20))
    ]

    texts = [message["content"] for message in chat]
    assert texts[:20] == texts[20:]
    assert set(texts) == {"right", "wrong"}


@pytest.mark.parametrize("path", ["no_such_module:f", f"{HERE}:no_such_name", f"{HERE}:HERE", "f"])
def test_a_missing_function_is_a_configuration_error(path):
    """The error must come when the server starts, not with the first rollout."""
    with pytest.raises(ConfigError, match="function"):
        model(function=path)


@pytest.mark.parametrize("settings", [{}, {"script": [DONE], "function": "a:b"}])
def test_a_model_has_a_script_or_a_function(settings):
    """With both, it would be unclear which one counts."""
    with pytest.raises(ValidationError, match="a script or a function"):
        model(**settings)


def test_messages_use_the_same_script():
    """Agents that use Anthropic's Messages API are tested with the same script."""
    client = http(CALL, DONE)
    first = client.post("/v1/messages", json={"messages": [USER], "max_tokens": 9, "model": "m"}).json()
    use = first["content"][0]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "cold"}
    later = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    second = client.post("/v1/messages", json={"messages": later, "max_tokens": 9, "model": "m"}).json()

    assert (use["name"], use["input"]) == ("get_weather", {"city": "Oslo"})
    assert [block["type"] for block in second["content"]] == ["thinking", "text"]


def test_faults_work_in_every_dialect():
    """Retry tests of every kind of agent need the same faults."""
    client = http({"fault": {"kind": "status", "status": 502}})
    body = {"messages": [USER], "max_tokens": 9, "model": "m"}

    statuses = [client.post(path, json=body).status_code for path in ("/v1/messages", "/v1/chat/completions")]

    assert statuses == [502, 502]


@pytest.mark.parametrize(("path", "gone"), [("/v1/responses", "output"), ("/v1/chat/completions", "choices")])
def test_a_reply_can_lack_its_content(path, gone):
    """Gateways remove fields, and callers must notice."""
    client = http({"text": "fine", "fault": {"kind": "missing_fields"}})

    reply = client.post(path, json={"input": "hi"} if gone == "output" else {"messages": [USER]})

    assert reply.status_code == 200
    assert gone not in reply.json()
    assert "id" in reply.json()


def test_a_stall_ends_at_the_callers_deadline():
    """A stalled server must not keep resources after its caller has left."""
    client = http({"text": "never", "fault": {"kind": "stall"}})

    reply = client.post("/v1/responses", json={"input": "hi"}, headers={DEADLINE_HEADER: "0.05"})

    assert reply.status_code == 504
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"


@contextmanager
def over_http(server: ScriptedModel) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))  # queues connections: no caller waits
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
    """A crashed backend looks like this to its caller."""
    server = model(script=[{"text": "fine", "fault": {"kind": "half_body"}}])

    with over_http(server) as url, pytest.raises(ServerUnreachable, match="broke off"):
        asyncio.run(NeMoGymAsyncOpenAI(base_url=url, api_key="k").create_response(input="hi"))
