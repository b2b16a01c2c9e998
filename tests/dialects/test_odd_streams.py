"""Endpoints that number, name and place the pieces of an answer in their own way: every client gets the same answer."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from nemo_gym.convert import sse
from nemo_gym.convert.chat_stream import completion_from_chunks
from nemo_gym.convert.chunk_repair import ChunkRepair
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.convert.response_events import response_from_events
from nemo_gym.errors import ConversionError
from nemo_gym.openai_utils import NeMoGymChatCompletion
from nemo_gym.transport.model_client import validate_answer
from responses_api_models.chat_completions_model.app import ChatCompletionsModel, ChatCompletionsModelConfig
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from tests.dialects.strategies import Json, meaning_of_completion, meaning_of_message, meaning_of_response
from tests.dialects.test_live_streams import (
    BODIES,
    CHUNKS,
    EVENTS,
    MEANING,
    PLACE,
    RESPONSE,
    chunk,
    client_of,
    openai_model,
    vllm_model,
)

ROLE, USAGE = CHUNKS[0], CHUNKS[-1]
END = chunk({}, "tool_calls")
CALL: Json = {"index": 0, "id": "k1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
ONE = (("k1", "f", '{"a": 1}'),)
TWO = (*ONE, ("k2", "f", '{"a": 1}'))
EMPTY = (("k1", "f", "{}"),)


def calls(*pieces: Json) -> Json:
    return chunk({"tool_calls": list(pieces)})


def without(call: Json, *fields: str) -> Json:
    return {key: value for key, value in call.items() if key not in fields}


def function(arguments: Any, name: str = "f") -> Json:
    return {"name": name, "arguments": arguments}


STREAMS: dict[str, tuple[list[Json], tuple[Any, ...]]] = {
    "index null": ([calls({**CALL, "index": None}), END], ONE),
    "index as text": ([calls({**CALL, "index": "0"}), END], ONE),
    "indices from 1": ([calls({**CALL, "index": 1}), calls({**CALL, "index": 2, "id": "k2"}), END], TWO),
    "no index, in pieces": (
        [
            calls(without({**CALL, "function": function('{"a"')}, "index")),
            calls({"function": {"arguments": ": 1}"}}),
            END,
        ],
        ONE,
    ),
    "id and name again": (
        [calls({**CALL, "function": function('{"a"')}), calls({**CALL, "function": function(": 1}")}), END],
        ONE,
    ),
    "no index, id and name again": (
        [
            calls(without({**CALL, "function": function('{"a"')}, "index")),
            calls(without({**CALL, "function": function(": ")}, "index")),
            calls(without({**CALL, "function": function("1}")}, "index")),
            END,
        ],
        ONE,
    ),
    "empty id and name later": (
        [
            calls({**CALL, "function": function('{"a"')}),
            calls({**CALL, "id": "", "function": function(": 1}", "")}),
            END,
        ],
        ONE,
    ),
    "arguments as an object": ([calls({**CALL, "function": function({"a": 1})}), END], ONE),
    "arguments empty": ([calls({**CALL, "function": function("")}), END], EMPTY),
    "call and end at once": ([chunk({"tool_calls": [CALL]}, "tool_calls")], ONE),
    "no arguments, with the end": (
        [chunk({"tool_calls": [{**CALL, "function": {"name": "f"}}]}, "tool_calls")],
        EMPTY,
    ),
    "a message in place of a delta": (
        [{**chunk({}), "choices": [{"index": 0, "message": {"tool_calls": [CALL]}, "finish_reason": "tool_calls"}]}],
        ONE,
    ),
}


def chat_completions_model(url: str) -> Any:
    config = ChatCompletionsModelConfig(**PLACE, base_url=url, api_key="k", model="big")
    return ChatCompletionsModel(config=config, server_client=client_of())


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("make", [openai_model, vllm_model, chat_completions_model])
@pytest.mark.parametrize("path", BODIES)
async def test_a_call_is_the_same_however_an_endpoint_streams_it(make: Any, path: str, name: str) -> None:
    """A client that finds no name, no id or no arguments ends with an error, or silently without a call."""
    chunks, expected = STREAMS[name]
    if make is openai_model and path != "/v1/chat/completions":
        pytest.skip("this server asks the endpoint for a response")

    async with listening(chat=Reply(events=[ROLE, *chunks, USAGE])) as endpoint:
        reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": True})
        received = await reply.read()

    assert MEANING[path](received).calls == expected
    assert MEANING[path](received).stop == "tool_calls"


@pytest.mark.parametrize("missing", [{"id": ""}, {"id": None}])
def test_whole_calls_without_ids_and_with_one_index_are_told_apart_by_their_names(missing: Json) -> None:
    """Their arguments were joined to one call with the name of the second, which no tool could read."""
    both = [{**CALL, **missing, "function": function('{"a": 1}', name)} for name in ("open_file", "list_files")]
    ids = iter(["first", "second"])
    repair = ChunkRepair(lambda _prefix: next(ids))

    completion = completion_from_chunks([repair.repair(each) for each in (*map(calls, both), END)])

    made = completion["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"]) for call in made] == [
        ("first", "open_file"),
        ("second", "list_files"),
    ]
    assert [call["function"]["arguments"] for call in made] == ['{"a": 1}'] * 2


@pytest.mark.parametrize("name", STREAMS)
async def test_the_first_piece_of_a_streamed_call_has_its_id_and_its_name(name: str) -> None:
    """The AI SDK fails on a first piece without them; clients that add up texts would get a name twice."""
    async with listening(chat=Reply(events=[ROLE, *STREAMS[name][0], USAGE])) as endpoint:
        path = "/v1/chat/completions"
        reply = await ask(vllm_model(endpoint.url), path, {**BODIES[path], "stream": True})
        chunks = list(sse.decode(await reply.read()))

    pieces = [piece for each in chunks for choice in each["choices"] for piece in choice["delta"].get("tool_calls", ())]
    for number, (call_id, call_name, _) in enumerate(STREAMS[name][1]):
        own = [piece for piece in pieces if piece["index"] == number]
        assert [piece["id"] for piece in own if "id" in piece] == [call_id]
        assert [piece["function"]["name"] for piece in own if "name" in piece["function"]] == [call_name]
        assert own[0]["id"] == call_id
        assert own[0]["function"]["name"] == call_name


@pytest.mark.parametrize("missing", [None, ""])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_without_an_id_gets_one(stream: bool, missing: Any) -> None:
    """Without it a client cannot say to which call a result belongs; llama.cpp has left it empty."""
    call = {**without(CALL, "index"), "id": missing}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    completion = {
        **completion_from_chunks([ROLE, END, USAGE]),
        "choices": [{"finish_reason": "stop", "message": message}],
    }
    reply = Reply(events=[ROLE, calls({"index": 0, **call}), END, USAGE]) if stream else Reply(completion)
    body = {**BODIES["/v1/responses"], "stream": stream}

    async with listening(chat=reply) as endpoint:
        answer = await (await ask(vllm_model(endpoint.url), "/v1/responses", body)).read()

    response = response_from_events(sse.decode(answer)) if stream else json.loads(answer)
    (item,) = (item for item in response["output"] if item["type"] == "function_call")
    assert item["call_id"].startswith("call_")
    assert item["name"] == "f"
    if stream:
        done = [event["item"] for event in sse.decode(answer) if event["type"] == "response.output_item.done"]
        assert done[-1]["call_id"] == item["call_id"]


PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
    {"type": "text", "text": "Hel"},
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
async def test_content_that_is_a_list_of_parts_is_text_and_reasoning(path: str, stream: bool) -> None:
    """Reasoning models of Mistral answer so; a piece that is not a text was an error of the client."""
    chunks = [ROLE, chunk({"content": PARTS[:1]}), chunk({"content": PARTS[1:]}), chunk({"content": "lo"})]
    message = {"role": "assistant", "content": [*PARTS, {"type": "text", "text": "lo"}]}
    whole = {"id": "x", "choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": USAGE["usage"]}
    reply = (
        Reply(events=[*chunks, chunk({}, "stop"), USAGE]) if stream else Reply({"created": 1, "model": "m", **whole})
    )

    async with listening(chat=reply) as endpoint:
        answer = await ask(chat_completions_model(endpoint.url), path, {**BODIES[path], "stream": stream})
        received = await answer.read()

    read: dict[str, Callable[[Json], Any]] = {
        "/v1/responses": meaning_of_response,
        "/v1/chat/completions": meaning_of_completion,
        "/v1/messages": meaning_of_message,
    }
    meaning = MEANING[path](received) if stream else read[path](json.loads(received))
    assert (meaning.reasoning, meaning.text) == ("hm", "Hello")


def test_content_with_an_image_is_refused() -> None:
    """A part that has no place in the answer must not be lost without a word."""
    message = {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    answer = {
        "id": "x",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }

    with pytest.raises(Exception, match="content"):
        validate_answer(NeMoGymChatCompletion, answer, callee="policy")


def events_without(*fields: str) -> list[Json]:
    return [without(event, *fields) for event in EVENTS]


def events_with_twice(kind: str) -> list[Json]:
    return [each for event in EVENTS for each in [event] * (1 + (event["type"] == kind))]


def events_with_other_ids() -> list[Json]:
    output = [{**item, "id": f"other_{item['id']}"} for item in RESPONSE["output"]]
    return [*EVENTS[:-1], {**EVENTS[-1], "response": {**RESPONSE, "output": output}}]


def events_with_number_0() -> list[Json]:
    return [event | ({"output_index": 0} if "output_index" in event else {}) for event in EVENTS]


def events_without_ids() -> list[Json]:
    events = [without(event, "item_id") | _without_id(event) for event in EVENTS[:-1]]
    output = [without(item, "id") for item in RESPONSE["output"]]
    return [*events, {**EVENTS[-1], "response": {**RESPONSE, "output": output}}]


def _without_id(event: Json) -> Json:
    return {"item": without(event["item"], "id")} if "item" in event else {}


ODD_EVENTS: dict[str, list[Json]] = {
    "no number of the item": events_without("output_index"),
    "no number of the text": events_without("content_index"),
    "no number of the thought": events_without("summary_index"),
    "no id of the item": events_without("item_id"),
    "no place at all": events_without("output_index", "content_index", "summary_index", "item_id"),
    "end of items twice": events_with_twice("response.output_item.done"),
    "begin of items twice": events_with_twice("response.output_item.added"),
    "other ids at the end": events_with_other_ids(),
    "every item has the number 0": events_with_number_0(),
    "items without ids": events_without_ids(),
}


@pytest.mark.parametrize("name", ODD_EVENTS)
async def test_a_text_or_call_arrives_once_and_under_one_id(name: str) -> None:
    """A text that is sent twice is another text, and a client makes a call as often as it gets it."""
    async with listening(responses=Reply(events=ODD_EVENTS[name])) as endpoint:
        server = openai_model(endpoint.url)
        messages = await ask(server, "/v1/messages", {**BODIES["/v1/messages"], "stream": True})
        responses = await ask(server, "/v1/responses", {**BODIES["/v1/responses"], "stream": True})
        message = message_from_events(sse.decode(await messages.read()))
        events = list(sse.decode(await responses.read()))

    assert meaning_of_message(message) == meaning_of_response(RESPONSE)
    kinds = [event["type"] for event in events]
    assert kinds == [event["type"] for event in EVENTS]
    for event, original in zip(events, EVENTS, strict=True):
        for field in ("output_index", "content_index", "summary_index"):
            assert event.get(field) == original.get(field)
    sent = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["id"] for item in sent[:2]] == [item["id"] for item in events[-1]["response"]["output"][:2]]


async def test_items_without_ids_of_a_whole_answer_get_some() -> None:
    """The types of the openai package require them, and ours refused the answer."""
    output = [without(item, "id") for item in RESPONSE["output"]]

    async with listening(responses=Reply({**RESPONSE, "output": output})) as endpoint:
        answer = await (await ask(openai_model(endpoint.url), "/v1/responses", {"input": "hi"})).json()

    assert all(item["id"] for item in answer["output"][:2])
    assert meaning_of_response(answer) == meaning_of_response(RESPONSE)


REFUSALS = {
    "vLLM": "'max_tokens' is too large: 64000. This model's maximum context length is 32768 tokens and your request "
    "has 768 input tokens (64000 > 32768 - 768)",
    "older vLLM": "This model's maximum context length is 32768 tokens. However, you requested 64768 tokens "
    "(768 in the messages, 64000 in the completion).",
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_limit_above_the_context_is_lowered_for_every_chat_endpoint(refusal: str, stream: bool) -> None:
    """Claude Code requests 64000 tokens; an empty answer ended it, and the rollout was scored 0."""
    whole = completion_from_chunks([ROLE, chunk({"content": "ok"}), chunk({}, "stop"), USAGE])
    refused = Reply({"error": {"message": REFUSALS[refusal], "type": "BadRequestError", "code": 400}}, 400)
    path = "/v1/messages"

    async with listening(chat=[refused, Reply(whole)]) as endpoint:
        body = {**BODIES[path], "max_tokens": 64000, "stream": stream}
        reply = await ask(chat_completions_model(endpoint.url), path, body)
        text = await reply.text()

    assert [call.body["max_tokens"] for call in endpoint.calls] == [64000, 32000]
    assert '"ok"' in text
    assert "end_turn" in text


async def test_a_prompt_that_fills_the_context_is_a_limit_and_no_failure() -> None:
    """There is no length that fits; the outcome of the rollout is the limit of the context."""
    problem = "This model's maximum context length is 100 tokens. However, your prompt has 120 input tokens."
    refused = Reply({"error": {"message": problem, "type": "BadRequestError", "code": 400}}, 400)

    async with listening(chat=refused) as endpoint:
        reply = await ask(
            chat_completions_model(endpoint.url), "/v1/responses", {"input": "hi", "max_output_tokens": 50}
        )
        answer = await reply.json()

    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"]["which"] == "context_length"
    assert len(endpoint.calls) == 1


TEXT_CHUNKS = [ROLE, chunk({"content": "Hé"}), chunk({"content": "llo ☃"}), chunk({}, "stop"), USAGE]
TEXT_STREAM = b"".join(map(sse.encode, TEXT_CHUNKS))
LABELS: dict[str, tuple[str, bytes]] = {
    "no empty line at the end": ("text/event-stream", TEXT_STREAM.removesuffix(b"\n\n")),
    "a stream as text": ("text/plain", TEXT_STREAM),
    "a stream without a type": ("application/octet-stream", TEXT_STREAM),
    "an object as a stream": ("text/event-stream", json.dumps(completion_from_chunks(TEXT_CHUNKS)).encode()),
    "an object as text": ("text/plain", b" \n" + json.dumps(completion_from_chunks(TEXT_CHUNKS)).encode()),
}


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_is_read_by_what_it_is_and_not_by_its_label(path: str, label: str) -> None:
    """Frameworks for servers label a stream as nothing unless the author knows better; the counts were lost, too."""
    kind, body = LABELS[label]

    async with listening(chat=Reply(body, headers={"Content-Type": kind})) as endpoint:
        reply = await ask(vllm_model(endpoint.url), path, {**BODIES[path], "stream": True})
        meaning = MEANING[path](await reply.read())

    assert (meaning.text, meaning.usage[0]) == ("Héllo ☃", 7)


def test_a_stream_that_ends_inside_an_event_is_an_error() -> None:
    """The rest of the answer is missing, and half of it must not pass for the whole."""
    with pytest.raises(ConversionError, match="inside an event"):
        list(sse.decode(b'data: {"a": 1'))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
async def test_an_error_with_the_status_of_an_answer_is_an_error(path: str, stream: bool) -> None:
    """OpenRouter reports errors of its providers so; the client must learn the reason and whether to try again."""
    problem = Reply({"error": {"message": "this model has no images", "code": 400}})

    async with listening(chat=problem, responses=problem) as endpoint:
        for make in (openai_model, vllm_model):
            reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": stream})
            assert reply.status == 400
            assert "this model has no images" in await reply.text()


async def test_a_failed_response_keeps_its_form() -> None:
    """It has an `error`, too, and clients of the Responses API read it."""
    failed = {**RESPONSE, "output": [], "status": "failed", "error": {"code": "server_error", "message": "down"}}

    async with listening(responses=Reply(failed)) as endpoint:
        reply = await ask(openai_model(endpoint.url), "/v1/responses", {"input": "hi"})

    assert reply.status == 200
    assert (await reply.json())["status"] == "failed"


INVALID: dict[str, tuple[str, Json]] = {
    "tools that are no list": ("/v1/responses", {"tools": 5}),
    "a namespace without a name": ("/v1/responses", {"tools": [{"type": "namespace", "tools": []}]}),
    "a namespace without tools": ("/v1/responses", {"tools": [{"type": "namespace", "name": "n"}]}),
    "template arguments as text": ("/v1/responses", {"chat_template_kwargs": "x"}),
    "template arguments of Chat": ("/v1/chat/completions", {"chat_template_kwargs": ["x"]}),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", INVALID)
async def test_a_request_that_is_not_valid_is_no_failure_of_the_server(name: str, stream: bool) -> None:
    """Clients send a request again after a server error, some for minutes."""
    path, fields = INVALID[name]

    async with listening(chat=Reply(events=TEXT_CHUNKS)) as endpoint:
        reply = await ask(vllm_model(endpoint.url), path, {**BODIES[path], **fields, "stream": stream})
        body = await reply.json()

    assert reply.status in (400, 422)
    assert body["error"]["type"] == "invalid_request_error"
    assert not endpoint.calls


async def test_empty_options_and_odd_reasoning_of_a_conversation_are_no_failure() -> None:
    """An empty `output_config` and reasoning that is no text were server errors."""
    earlier = {"role": "assistant", "content": "x", "reasoning_content": ["y"]}
    chat = {"messages": [*BODIES["/v1/chat/completions"]["messages"], earlier]}

    async with listening(chat=Reply(completion_from_chunks(TEXT_CHUNKS))) as endpoint:
        server = vllm_model(endpoint.url)
        message = await ask(server, "/v1/messages", {**BODIES["/v1/messages"], "output_config": {}})
        completion = await ask(server, "/v1/chat/completions", chat)

    assert message.status == completion.status == 200


async def test_a_streamed_answer_of_any_chat_endpoint_ends_with_the_items_that_were_streamed() -> None:
    """A client that builds its conversation from events would have another one than we record."""
    thoughts = [chunk({"content": "A"}), chunk({"reasoning_content": "r"}), chunk({"content": "B"}), chunk({}, "stop")]

    async with listening(chat=Reply(events=[ROLE, *thoughts, USAGE])) as endpoint:
        reply = await ask(chat_completions_model(endpoint.url), "/v1/responses", {"input": "hi", "stream": True})
        events = list(sse.decode(await reply.read()))

    sent = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    final = events[-1]["response"]["output"]
    assert [(item["type"], item["id"]) for item in sent] == [(item["type"], item["id"]) for item in final]
    assert [item["type"] for item in sent] == ["message", "reasoning", "message"]
