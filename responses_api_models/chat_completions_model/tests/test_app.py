"""The Chat Completions model against a fake endpoint that sends what providers send."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import http
from responses_api_models.chat_completions_model.app import ChatCompletionsModel, ChatCompletionsModelConfig
from responses_api_models.openai_model.tests.endpoint import OpenStream, Reply, ask, listening

CONFIGS = Path(__file__).parents[1] / "configs"
USER = {"role": "user", "content": "What is the weather in Paris?"}
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
SIGNATURE = {"google": {"thought_signature": "c2ln"}}
DETAILS = [{"type": "reasoning.text", "text": "I need the tool.", "signature": "c2ln", "index": 0}]


def call(**extra: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    return {"id": "call_1", "type": "function", "function": function, **extra}


def completion(content: str | None = "cold", finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests() -> None:
    http.health.clear()


def model(url: str, **settings: Any) -> ChatCompletionsModel:
    fields: dict[str, Any] = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "policy_model"}
    config = ChatCompletionsModelConfig(**(fields | {"base_url": url, "api_key": "k", "model": "small"} | settings))
    return ChatCompletionsModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))


async def request_of(body: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the request that the endpoint receives."""
    async with listening(chat=Reply(completion())) as endpoint:
        reply = await ask(model(endpoint.url, **settings), "/v1/responses", body)
        assert reply.status == 200, await reply.text()
    return endpoint.bodies[0]


async def test_only_fields_that_every_endpoint_accepts_are_sent():
    """Many endpoints refuse unknown fields and roles."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    earlier = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "A", "annotations": []}],
    }
    items = [{"role": "developer", "content": "Be brief."}, USER, thought, earlier, USER]

    request = await request_of({"input": items, "max_output_tokens": 9, "tools": [TOOL]})

    assert request.keys() == {"messages", "max_tokens", "tools", "model"}
    assert [message["role"] for message in request["messages"]] == ["system", "user", "assistant", "user"]
    assert request["messages"][2] == {"role": "assistant", "content": "A"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"send_reasoning": "reasoning_content"}, {"content": "A", "reasoning_content": "hm"}),
        ({"send_reasoning": "reasoning"}, {"content": "A", "reasoning": "hm"}),
        ({"send_reasoning": "think_tags"}, {"content": "<think>hm</think>A"}),
    ],
)
async def test_earlier_reasoning_is_sent_where_the_endpoint_reads_it(settings, expected):
    """DeepSeek, OpenRouter and plain chat templates have three places for it."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    earlier = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "A", "annotations": []}],
    }

    request = await request_of({"input": [USER, thought, earlier, USER]}, **settings)

    assert request["messages"][1] == {"role": "assistant", **expected}


async def test_the_limit_of_the_answer_has_the_configured_name():
    """Reasoning models of OpenAI refuse `max_tokens`."""
    request = await request_of({"input": "?", "max_output_tokens": 9}, token_limit_field="max_completion_tokens")

    assert request["max_completion_tokens"] == 9 and "max_tokens" not in request


async def two_turns(first_reply: Reply, *, stream: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer a tool call of the model; return its first response and the second request to the endpoint."""
    async with listening(chat=[first_reply, Reply(completion())]) as endpoint:
        server = model(endpoint.url)
        body = {"input": [USER], "tools": [TOOL]}
        if stream:
            async with OpenStream(server, "/v1/responses", {**body, "stream": True}) as open_stream:
                lines = (await open_stream.read_all()).decode().splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            response = events[-1]["response"]
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert [item["type"] for item in done] == [item["type"] for item in response["output"]]
        else:
            response = await (await ask(server, "/v1/responses", body)).json()
        output = {"type": "function_call_output", "call_id": "call_1", "output": "4 degrees"}
        reply = await ask(server, "/v1/responses", {**body, "input": [USER, *response["output"], output]})
        assert reply.status == 200, await reply.text()
    return response, endpoint.bodies[1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_signed_tool_call_of_gemini_is_sent_again_with_its_signature(stream):
    """Gemini refuses the output of a tool whose call has lost its signature."""
    signed = call(extra_content=SIGNATURE)
    if stream:
        events = [chunk({"role": "assistant", "tool_calls": [{"index": 0, **signed}]}), chunk({}, "tool_calls")]
        reply = Reply(events=events)
    else:
        reply = Reply(completion(None, "tool_calls", tool_calls=[signed]))

    _, request = await two_turns(reply, stream=stream)

    assistant, output = request["messages"][1:]
    assert assistant["tool_calls"] == [signed]
    assert output["content"] == "4 degrees"


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_details_of_openrouter_are_sent_again(stream):
    """Models behind OpenRouter that think between tool calls must see their thoughts again."""
    if stream:
        pieces = [{"type": "reasoning.text", "index": 0, "text": part} for part in ("I need ", "the tool.")]
        signature = {"type": "reasoning.text", "index": 0, "signature": "c2ln"}
        deltas = [{"reasoning_details": [piece]} for piece in (*pieces, signature)]
        reply = Reply(events=[*map(chunk, deltas), chunk({"tool_calls": [{"index": 0, **call()}]}, "tool_calls")])
    else:
        reply = Reply(completion(None, "tool_calls", tool_calls=[call()], reasoning_details=DETAILS))

    response, request = await two_turns(reply, stream=stream)

    assert request["messages"][1]["reasoning_details"] == DETAILS
    assert request["messages"][1]["content"] is None
    assert response["output"][-1]["summary"] == []


async def test_signed_thoughts_that_arrive_in_pieces_are_sent_again_as_they_were():
    """litellm streams Claude's thoughts in pieces, the signature last; Claude refuses a thought that was changed."""
    first = {"type": "thinking", "thinking": "I need the tool.", "signature": "c2ln"}
    hidden, second = {"type": "redacted_thinking", "data": "eHh4"}, {**first, "thinking": "Now.", "signature": "c2Nu"}
    pieces = [{"type": "thinking", "thinking": part} for part in ("I need ", "the tool.")]
    pieces += [{"type": "thinking", "thinking": "", "signature": "c2ln"}, hidden]
    pieces += [{"type": "thinking", "thinking": "Now."}, {"type": "thinking", "thinking": "", "signature": "c2Nu"}]
    deltas = [{"thinking_blocks": [piece]} for piece in pieces]
    reply = Reply(events=[*map(chunk, deltas), chunk({"tool_calls": [{"index": 0, **call()}]}, "tool_calls")])

    _, request = await two_turns(reply, stream=True)

    assert request["messages"][1]["thinking_blocks"] == [first, hidden, second]


async def test_an_answer_without_tool_calls_has_no_item_of_the_provider():
    """Verifiers read the last item of a response."""
    async with listening(chat=Reply(completion("four", reasoning="2 and 2", reasoning_details=DETAILS))) as endpoint:
        answer = await (await ask(model(endpoint.url), "/v1/responses", {"input": "2+2?"})).json()

    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert answer["output"][0]["summary"][0]["text"] == "2 and 2"


@pytest.mark.parametrize("name", ["chat_completions_model", "gemini", "openrouter", "ollama"])
def test_every_variant_is_a_valid_configuration(name):
    """`--model-type chat_completions_model/gemini` needs no URL, and only Ollama needs no key."""
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    block = config["policy_model"]["responses_api_models"]["chat_completions_model"]
    fields = {key: value for key, value in block.items() if not str(value).startswith("${")}

    settings = ChatCompletionsModelConfig(
        **{"host": "h", "port": 1, "name": "n", "base_url": "u", "api_key": "k", "model": "m", **fields}
    )

    assert ("policy_base_url" in config) is (name != "chat_completions_model")
    assert ("policy_api_key" in config) is (name == "ollama")
    assert settings.send_reasoning == ("reasoning" if name == "openrouter" else "no")
