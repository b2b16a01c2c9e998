"""The Anthropic model against a fake endpoint on loopback that sends what the Messages API sends."""

import json
from typing import Any
from unittest.mock import MagicMock

import pytest

from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import http
from responses_api_models.anthropic_model.app import AnthropicModel, AnthropicModelConfig
from responses_api_models.openai_model.tests.endpoint import OpenStream, Reply, ask, listening

USER = {"role": "user", "content": "What is the weather in Paris?"}
TOOL = {"type": "function", "name": "get_weather", "description": "", "parameters": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
THINKING = {"type": "thinking", "thinking": "I need the tool.", "signature": "c2lnbmF0dXJl"}


def message(*content: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 7},
    }


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def block_events(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


STREAM = [
    {"type": "message_start", "message": {**message(), "stop_reason": None}},
    {"type": "ping"},
    *block_events(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "I need "},
        {"type": "thinking_delta", "thinking": "the tool."},
        {"type": "signature_delta", "signature": "c2lnbmF0dXJl"},
    ),
    *block_events(1, text(""), {"type": "text_delta", "text": "Let me "}, {"type": "text_delta", "text": "look."}),
    *block_events(
        2,
        {**CALL, "input": {}},
        {"type": "input_json_delta", "partial_json": '{"city":'},
        {"type": "input_json_delta", "partial_json": ' "Paris"}'},
    ),
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 7},
    },
    {"type": "message_stop"},
]


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests() -> None:
    http.health.clear()


def model(url: str, **settings: Any) -> AnthropicModel:
    fields: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 1,
        "entrypoint": "app.py",
        "name": "policy_model",
        "anthropic_base_url": url,
        "anthropic_api_key": "sk-ant-secret",
        "anthropic_model": "claude",
    }
    config = AnthropicModelConfig(**(fields | settings))
    return AnthropicModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))


async def request_of(body: dict[str, Any], path: str = "/v1/responses", **settings: Any) -> Any:
    """Return the call that the endpoint receives for a request."""
    async with listening(**{"v1/messages": Reply(message(text("cold")))}) as endpoint:
        reply = await ask(model(endpoint.url, **settings), path, body)
        assert reply.status == 200, await reply.text()
    return endpoint.calls[0]


async def test_a_request_is_sent_as_the_messages_api_expects():
    """Key, version, limit and system prompt have other places than at OpenAI."""
    call = await request_of({"input": [USER], "instructions": "Be brief.", "tools": [TOOL]}, anthropic_beta=["a", "b"])

    assert call.path == "/v1/messages"
    assert call.headers["x-api-key"] == "sk-ant-secret" and "Authorization" not in call.headers
    assert (call.headers["anthropic-version"], call.headers["anthropic-beta"]) == ("2023-06-01", "a,b")
    assert (call.body["model"], call.body["max_tokens"], call.body["system"]) == ("claude", 8192, "Be brief.")
    assert call.body["messages"] == [{"role": "user", "content": [{"type": "text", "text": USER["content"]}]}]
    assert call.body["tools"][0]["name"] == "get_weather" and "input_schema" in call.body["tools"][0]


@pytest.mark.parametrize(
    ("body", "settings", "expected"),
    [
        ({"max_output_tokens": 9, "temperature": 0.5}, {}, {"max_tokens": 9, "temperature": 0.5}),
        ({}, {"thinking": "adaptive"}, {"thinking": {"type": "adaptive"}}),
        (
            {},
            {"thinking": True, "thinking_budget_tokens": 2048},
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        ),
        ({"reasoning": {"effort": "low"}}, {"effort": "high"}, {"output_config": {"effort": "low"}}),
        ({}, {"effort": "high"}, {"output_config": {"effort": "high"}}),
        ({}, {"extra_body": {"service_tier": "auto"}}, {"service_tier": "auto"}),
        ({"top_k": 3}, {}, {"top_k": 3}),
    ],
)
async def test_options_of_the_caller_and_of_the_configuration(body, settings, expected):
    """The options of a row take precedence over those of the configuration."""
    call = await request_of({"input": "Hi", **body}, **settings)

    assert {name: call.body[name] for name in expected} == expected


async def test_thinking_and_a_tool_call_come_back_and_are_sent_again_with_the_output():
    """With thinking, the API refuses the output of a tool without the signed thought before the call."""
    replies = [Reply(message(THINKING, text("Let me look."), CALL, stop="tool_use")), Reply(message(text("Cold.")))]
    async with listening(**{"v1/messages": replies}) as endpoint:
        server = model(endpoint.url)
        first = await (await ask(server, "/v1/responses", {"input": [USER], "tools": [TOOL]})).json()
        output = {"type": "function_call_output", "call_id": "toolu_1", "output": "4 degrees"}
        items = [USER, *first["output"], output]
        second = await (await ask(server, "/v1/responses", {"input": items, "tools": [TOOL]})).json()

    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    assert json.loads(first["output"][2]["arguments"]) == {"city": "Paris"}
    usage = first["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]) == (15, 5, 7)
    _, assistant, result = endpoint.bodies[1]["messages"]
    assert assistant == {"role": "assistant", "content": [THINKING, text("Let me look."), CALL]}
    assert result["content"][0] == {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4 degrees"}
    assert second["output"][0]["content"][0]["text"] == "Cold."


async def test_reasoning_of_another_model_is_left_out():
    """A conversation may begin with another model; the endpoint refuses thinking that it has not signed."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    earlier = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "A", "annotations": []}],
    }

    call = await request_of({"input": [USER, thought, earlier, USER]})

    assert call.body["messages"][1] == {"role": "assistant", "content": [text("A")]}


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("max_tokens", "max_output_tokens"),
        ("refusal", "content_filter"),
        ("model_context_window_exceeded", "max_output_tokens"),
    ],
)
async def test_an_answer_that_was_cut_off_or_refused_is_incomplete(stop, reason):
    """Reports count answers that were cut off and refused."""
    async with listening(**{"v1/messages": Reply(message(text("The"), stop=stop))}) as endpoint:
        answer = await (await ask(model(endpoint.url), "/v1/responses", {"input": "Hi"})).json()

    assert (answer["status"], answer["incomplete_details"]["reason"]) == ("incomplete", reason)


async def test_a_chat_client_gets_a_completion():
    """Agents that speak Chat Completions can use the model, too."""
    chat_tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "system", "content": "Be brief."}, USER], "tools": [chat_tool], "stop": ["END"]}
    async with listening(**{"v1/messages": Reply(message(THINKING, text("Look."), CALL, stop="tool_use"))}) as endpoint:
        answer = await (await ask(model(endpoint.url), "/v1/chat/completions", {**body, "seed": 3})).json()

    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Look.")
    assert choice["message"]["reasoning_content"] == "I need the tool."
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    assert answer["usage"]["prompt_tokens"] == 15
    assert endpoint.bodies[0]["stop_sequences"] == ["END"] and endpoint.bodies[0]["system"] == "Be brief."


async def test_a_stream_leaves_as_it_arrives_and_ends_with_the_whole_answer():
    """Every item has its events, and the ids of the answer are those of the events."""
    replies = Reply(events=STREAM, waits_before=9)
    async with listening(**{"v1/messages": replies}) as endpoint:
        body = {"input": [USER], "tools": [TOOL], "stream": True}
        async with OpenStream(model(endpoint.url), "/v1/responses", body) as stream:
            begun = await stream.read_until(b'"Let me "')
            endpoint.resume.set()
            whole = await stream.read_all()

    assert b"look." not in begun
    events = [json.loads(line[6:]) for line in whole.decode().splitlines() if line.startswith("data: {")]
    response = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    assert [item.get("id") for item in done[:2]] == [item.get("id") for item in response["output"][:2]]
    assert response["output"][0]["encrypted_content"] == "c2lnbmF0dXJl"
    assert response["output"][1]["content"][0]["text"] == "Let me look."
    assert (
        "".join(e["delta"] for e in events if e["type"] == "response.reasoning_summary_text.delta")
        == "I need the tool."
    )
    arguments = [e["arguments"] for e in events if e["type"] == "response.function_call_arguments.done"]
    assert arguments == [response["output"][2]["arguments"]] and json.loads(arguments[0]) == {"city": "Paris"}
    assert endpoint.bodies[0]["stream"] is True


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_clients_of_other_dialects_can_stream(path):
    """Claude Code speaks Messages; many agents speak Chat."""
    async with listening(
        **{"v1/messages": Reply(events=STREAM) if path == "/v1/messages" else Reply(message(text("Let me look.")))}
    ) as endpoint:
        body = {"messages": [USER], "stream": True, "max_tokens": 99, "model": "m"}
        async with OpenStream(model(endpoint.url), path, body) as stream:
            whole = await stream.read_all()

    assert stream.status == 200
    assert b"Let me look." in whole or (b'"Let me "' in whole and b'"look."' in whole)


async def test_a_stream_that_ends_inside_a_tool_call_is_an_answer_that_was_cut_off():
    """The model used up its tokens: that is the outcome of the rollout, not a failure of the endpoint."""
    delta = {"type": "input_json_delta", "partial_json": '{"city": "Par'}
    end = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 7}}
    end["usage"] |= {"input_tokens": None, "cache_read_input_tokens": None}  # some gateways repeat them as null
    events = [STREAM[0], *block_events(0, {**CALL, "input": {}}, delta), end, STREAM[-1]]
    async with (
        listening(**{"v1/messages": Reply(events=events)}) as endpoint,
        OpenStream(model(endpoint.url), "/v1/responses", {"input": [USER], "stream": True}) as stream,
    ):
        whole = await stream.read_all()

    last = [json.loads(line[6:]) for line in whole.decode().splitlines() if line.startswith("data: {")][-1]
    assert (last["type"], last["response"]["status"]) == ("response.completed", "incomplete")
    assert last["response"]["output"][0]["arguments"] == '{"city": "Par'
    assert last["response"]["usage"]["input_tokens"] == 15
    assert last["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 5}


async def test_an_endpoint_that_is_overloaded_at_the_begin_of_a_stream_is_asked_again():
    """Anthropic may accept a request before it reports the overload as the first event."""
    busy = Reply(events=[{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}])
    async with (
        listening(**{"v1/messages": [busy, Reply(events=STREAM)]}) as endpoint,
        OpenStream(model(endpoint.url), "/v1/responses", {"input": [USER], "stream": True}) as stream,
    ):
        whole = await stream.read_all()

    assert b"response.completed" in whole and len(endpoint.calls) == 2


async def test_an_empty_answer_has_a_message():
    """Agents read the last message of an answer, also of an empty one, streamed or not."""
    events = [STREAM[0], *STREAM[-2:]]
    async with (
        listening(**{"v1/messages": Reply(events=events)}) as endpoint,
        OpenStream(model(endpoint.url), "/v1/responses", {"input": [USER], "stream": True}) as stream,
    ):
        whole = await stream.read_all()

    assert b"response.output_item.done" in whole and b"response.completed" in whole


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (
            Reply({"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}, 401),
            401,
            "invalid x-api-key",
        ),
        (Reply({"choices": []}), 500, "not a message"),
        (Reply(message({"type": "hologram"})), 500, "not a message"),
        (Reply(b"<html>", headers={"Content-Type": "text/html"}), 500, "not JSON"),
    ],
)
async def test_failures_name_the_model_and_the_reason(reply, status, words):
    """A wrong key and a wrong address have different fixes."""
    async with listening(**{"v1/messages": reply}) as endpoint:
        answer = await ask(model(endpoint.url), "/v1/responses", {"input": "Hi"})

    printed = await answer.text()
    assert answer.status == status
    assert words in printed and "sk-ant-secret" not in printed


async def test_an_overloaded_endpoint_is_asked_again():
    """Status 529 is how Anthropic says that it is overloaded."""
    busy = Reply(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 529, {"Retry-After": "0"}
    )
    async with listening(**{"v1/messages": [busy, Reply(message(text("ok")))]}) as endpoint:
        answer = await ask(model(endpoint.url), "/v1/responses", {"input": "Hi"})

    assert (answer.status, len(endpoint.calls)) == (200, 2)


async def test_prompt_tokens_are_counted_by_the_endpoint():
    """Clients that compact their context count before each request."""
    async with listening(**{"v1/messages/count_tokens": Reply({"input_tokens": 12})}) as endpoint:
        answer = await ask(model(endpoint.url), "/v1/messages/count_tokens", {"messages": [USER], "model": "m"})

    assert (await answer.json())["input_tokens"] == 12
    assert "max_tokens" not in endpoint.bodies[0]


async def test_what_the_api_cannot_express_is_refused_by_name():
    """A system message inside the conversation would change its meaning if it moved."""
    answer = await ask(
        model("http://127.0.0.1:9/v1"), "/v1/responses", {"input": [USER, {"role": "system", "content": "Stop."}]}
    )

    assert answer.status == 400 and "system message inside the conversation" in await answer.text()
