"""Answers and errors of endpoints that are unusual or wrong: every dialect, whole and streamed, shows the same."""

import json
from typing import Any

import pytest

from nemo_gym.convert import sse
from nemo_gym.convert.chat_stream import completion_from_chunks
from nemo_gym.convert.response_events import events_from_response, numbered_events
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from tests.dialects.strategies import Json
from tests.dialects.test_live_streams import (
    BODIES,
    CHUNKS,
    EVENTS,
    MEANING,
    RESPONSE,
    SERVERS,
    TOKEN_CHUNKS,
    chunk,
    openai_model,
    vllm_model,
)

GEMINI = "/v1beta/models/m:generateContent"
GEMINI_STREAM = "/v1beta/models/m:streamGenerateContent?alt=sse"
GEMINI_BODY: Json = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
CLIENTS: dict[str, tuple[str, Json]] = {
    "responses": ("/v1/responses", BODIES["/v1/responses"]),
    "responses streamed": ("/v1/responses", {**BODIES["/v1/responses"], "stream": True}),
    "messages": ("/v1/messages", BODIES["/v1/messages"]),
    "messages streamed": ("/v1/messages", {**BODIES["/v1/messages"], "stream": True}),
    "gemini": (GEMINI, GEMINI_BODY),
    "gemini streamed": (GEMINI_STREAM, GEMINI_BODY),
}
CHAT_CLIENTS: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", BODIES["/v1/chat/completions"]),
    "chat streamed": ("/v1/chat/completions", {**BODIES["/v1/chat/completions"], "stream": True}),
}
CONVERTED = [name for name in CLIENTS if "responses" not in name]


def replies_of(response: Json, *, streams: bool = True) -> Json:
    """Return the replies of an endpoint of the Responses API, whole or streamed as the client requests it."""
    events = list(numbered_events(events_from_response(response)))
    return {"responses": Reply(events=events) if streams else Reply(response)}


def numbers_of_usage(usage: Json) -> list[Any]:
    """Return the token counts of an answer, also those inside its details."""
    values = [each for each in usage.values() if not isinstance(each, dict)]
    return values + [each for inner in usage.values() if isinstance(inner, dict) for each in inner.values()]


def usage_of(body: bytes) -> Json:
    """Return the token counts of a whole or streamed answer in any dialect."""
    try:
        answers = [json.loads(body)]
    except ValueError:
        answers = list(sse.decode(body))
    answers = [each for answer in answers for each in (answer if isinstance(answer, list) else [answer])]
    last: Json = {}
    for answer in answers:
        for holder in (answer, answer.get("response") or {}, answer.get("message") or {}):
            last |= holder.get("usage") or holder.get("usageMetadata") or {}
    return last


@pytest.mark.parametrize(("make", "path"), SERVERS)
@pytest.mark.parametrize("status", [429, 503])
async def test_an_overload_inside_a_stream_does_not_send_the_answer_twice(make: Any, path: str, status: int) -> None:
    """The client already has the first pieces; those of a second request would be added to them."""
    error = {"message": "too many requests", "code": status}
    failing = {"chat": [*CHUNKS[:4], {"error": error}], "responses": [*EVENTS[:11], {"type": "error", "error": error}]}

    async with listening(**{name: Reply(events=events) for name, events in failing.items()}) as endpoint:
        reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": True})
        text = await reply.text()

    assert len(endpoint.calls) == 1
    assert "too many requests" in text


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ({"code": "invalid_prompt"}, "invalid_request_error"),
        ({"type": "invalid_request_error"}, "invalid_request_error"),
        ({"code": "rate_limit_exceeded"}, "rate_limit_error"),
        ({"code": "server_error"}, "api_error"),
        ({"code": 7}, "api_error"),
    ],
)
async def test_the_code_of_an_error_inside_a_stream_tells_whether_it_is_permanent(code: Json, kind: str) -> None:
    """A client sends a request again after a server error; after a refusal that is useless."""
    events = [*EVENTS[:11], {"type": "error", "error": {"message": "no", **code}}]

    async with listening(responses=Reply(events=events)) as endpoint:
        reply = await ask(openai_model(endpoint.url), "/v1/messages", {**BODIES["/v1/messages"], "stream": True})

    assert list(sse.decode(await reply.read()))[-1]["error"] == {"type": kind, "message": "no"}


@pytest.mark.parametrize("client", CONVERTED)
@pytest.mark.parametrize("streams", [True, False], ids=["streaming endpoint", "whole endpoint"])
@pytest.mark.parametrize(("code", "status"), [("server_error", 500), ("rate_limit_exceeded", 429)])
async def test_a_failed_response_is_an_error_in_dialects_that_have_no_such_answer(
    client: str, streams: bool, code: str, status: int
) -> None:
    """The reason of the endpoint must reach the client; half an answer must not pass for a whole one."""
    failed = {**RESPONSE, "output": [], "status": "failed", "error": {"code": code, "message": "the model is down"}}
    path, body = CLIENTS[client]

    async with listening(**replies_of(failed, streams=streams and "streamed" in client)) as endpoint:
        reply = await ask(openai_model(endpoint.url), path, body)
        text = await reply.text()

    assert "the model is down" in text
    if "streamed" not in client or not streams:
        assert reply.status == status


def incomplete_completion(**changes: Any) -> Json:
    completion = {**completion_from_chunks(CHUNKS), **changes}
    return {key: value for key, value in completion.items() if value != "missing"}


@pytest.mark.parametrize("client", [*CLIENTS, *CHAT_CLIENTS])
@pytest.mark.parametrize("streams", [True, False], ids=["streaming endpoint", "whole endpoint"])
@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"prompt_tokens": 7, "completion_tokens": None, "total_tokens": None},
        {"prompt_tokens": 7},
        {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16, "prompt_tokens_details": None},
    ],
    ids=["missing", "null", "incomplete", "no details"],
)
async def test_token_counts_that_a_chat_endpoint_leaves_out_are_numbers(client: str, streams: bool, usage: Any) -> None:
    """Codex fails on a count that is null, and a failed rollout of a model without usage would be our fault."""
    path, body = (CLIENTS | CHAT_CLIENTS)[client]
    chunks = CHUNKS[:-1] + ([{**CHUNKS[-1], "usage": usage}] if usage else [])
    is_live = streams and "streamed" in client
    reply = Reply(events=chunks) if is_live else Reply(incomplete_completion(usage=usage))

    async with listening(chat=reply) as endpoint:
        answer = await ask(vllm_model(endpoint.url), path, body)

    assert answer.status == 200
    counts = usage_of(await answer.read())
    assert counts
    assert all(type(count) is int for count in numbers_of_usage(counts))
    if client.startswith("chat"):
        assert counts["prompt_tokens_details"]["cached_tokens"] == 0
        assert counts["completion_tokens_details"]["reasoning_tokens"] >= 0
    if client.startswith("messages"):
        assert counts["cache_creation_input_tokens"] == counts["cache_read_input_tokens"] == 0


@pytest.mark.parametrize("client", [*CLIENTS, *CHAT_CLIENTS])
@pytest.mark.parametrize("details", [{"cached_tokens": None, "audio_tokens": None}, {"cached_tokens": 90}])
async def test_odd_details_of_token_counts_are_numbers_that_are_not_negative(client: str, details: Json) -> None:
    """A null ends a client; more cached than read tokens would make the count of Messages negative."""
    path, body = (CLIENTS | CHAT_CLIENTS)[client]
    usage = {**CHUNKS[-1]["usage"], "prompt_tokens_details": details}
    chunks = [*CHUNKS[:-1], {**CHUNKS[-1], "usage": usage}]
    reply = Reply(events=chunks) if "streamed" in client else Reply(incomplete_completion(usage=usage))

    async with listening(chat=reply) as endpoint:
        answer = await ask(vllm_model(endpoint.url), path, body)

    counts = usage_of(await answer.read())
    numbers = numbers_of_usage(counts)
    assert numbers
    assert all(type(count) is int and count >= 0 for count in numbers)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("streams", [True, False], ids=["streaming endpoint", "whole endpoint"])
@pytest.mark.parametrize("usage", [None, {**RESPONSE["usage"], "input_tokens_details": None}, {"input_tokens": 7}])
async def test_token_counts_that_a_responses_endpoint_leaves_out_are_numbers(
    client: str, streams: bool, usage: Any
) -> None:
    """The answer of an endpoint is passed on as it is, except for counts that clients cannot read."""
    path, body = CLIENTS[client]

    async with listening(
        **replies_of({**RESPONSE, "usage": usage}, streams=streams and "streamed" in client)
    ) as endpoint:
        answer = await ask(openai_model(endpoint.url), path, body)

    assert answer.status == 200
    counts = usage_of(await answer.read())
    assert counts
    assert all(type(count) is int for count in numbers_of_usage(counts))


@pytest.mark.parametrize("client", [*CLIENTS, *CHAT_CLIENTS])
@pytest.mark.parametrize("field", ["id", "created", "object"])
async def test_a_completion_without_formal_fields_is_an_answer(client: str, field: str) -> None:
    """Small servers leave out what no program reads; a text that a model wrote must not be lost for that."""
    path, body = (CLIENTS | CHAT_CLIENTS)[client]
    chunks = [{key: value for key, value in each.items() if key != field} for each in CHUNKS]
    reply = Reply(events=chunks) if "streamed" in client else Reply(incomplete_completion(**{field: "missing"}))

    async with listening(chat=reply) as endpoint:
        answer = await ask(vllm_model(endpoint.url), path, body)

    assert answer.status == 200
    text = await answer.text()
    assert "Hello" in text
    assert "ModelFailed" not in text


@pytest.mark.parametrize("make", [openai_model, vllm_model])
async def test_a_whole_completion_has_its_reasoning_where_a_streamed_one_has_it(make: Any) -> None:
    """Newer vLLM and OpenRouter name the field `reasoning`; the thought of a whole answer was lost to Chat clients."""
    completion = completion_from_chunks(CHUNKS)
    message = {"role": "assistant", "content": "Hello", "reasoning": "hm"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    path, body = CHAT_CLIENTS["chat"]

    async with listening(chat=Reply({**completion, "choices": choices})) as endpoint:
        answer = await (await ask(make(endpoint.url), path, body)).json()

    (choice,) = answer["choices"]
    assert choice["message"]["reasoning_content"] == "hm"
    assert "reasoning" not in choice["message"]
    assert choice["message"]["content"] == "Hello"


@pytest.mark.parametrize("client", [*CLIENTS, *CHAT_CLIENTS])
async def test_a_call_without_arguments_is_a_call(client: str) -> None:
    """Tools without parameters are called without arguments."""
    path, body = (CLIENTS | CHAT_CLIENTS)[client]
    call = {"id": "c1", "type": "function", "function": {"name": "now"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    chunks = [CHUNKS[0], chunk({"tool_calls": [{"index": 0, **call}]}), chunk({}, "tool_calls"), CHUNKS[-1]]
    reply = Reply(events=chunks) if "streamed" in client else Reply(incomplete_completion(choices=[choice]))

    async with listening(chat=reply) as endpoint:
        answer = await ask(vllm_model(endpoint.url), path, body)

    assert answer.status == 200
    text = await answer.text()
    assert "now" in text
    assert "ModelFailed" not in text
    assert "_unparsed" not in text


@pytest.mark.parametrize(("make", "path"), SERVERS[2:])
async def test_an_empty_reason_is_not_the_end_of_an_answer(make: Any, path: str) -> None:
    """Some endpoints send an empty `finish_reason` with every chunk; half an answer must not pass for a whole one."""
    chunks = [chunk(each["choices"][0]["delta"], "") for each in CHUNKS[:5]]

    async with listening(chat=Reply(events=chunks)) as endpoint:
        reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": True})

    assert "the stream stops before the answer is finished" in await reply.text()


@pytest.mark.parametrize(("make", "path"), SERVERS)
async def test_half_a_character_becomes_a_replacement_character(make: Any, path: str) -> None:
    """Parsers of clients refuse a lone surrogate, and with it the whole answer."""
    response = json.loads(json.dumps(RESPONSE).replace("Hello, you", "BAD"))
    usage = {**chunk({}), "choices": [], "usage": CHUNKS[-1]["usage"]}
    lines = {
        "chat": [chunk({"role": "assistant", "content": "BAD"}), chunk({}, "stop"), usage],
        "responses": list(numbered_events(events_from_response(response))),
    }
    raw = {name: b"".join(map(sse.encode, events)).replace(b"BAD", rb"a \udcff b") for name, events in lines.items()}
    headers = {"Content-Type": "text/event-stream"}

    async with listening(**{name: Reply(text, headers=headers) for name, text in raw.items()}) as endpoint:
        reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": True})
        received = await reply.read()

    assert MEANING[path](received).text == "a \ufffd b"
    assert b"udcff" not in received


HOSTED = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
CUSTOM = {"type": "custom_tool_call", "id": "c", "call_id": "c", "name": "patch", "input": "x"}


@pytest.mark.parametrize("client", CONVERTED)
async def test_a_call_of_a_tool_that_ran_at_the_provider_is_left_out(client: str) -> None:
    """The answer that the model wrote with its result is what the client needs."""
    path, body = CLIENTS[client]
    response = {**RESPONSE, "output": [HOSTED, *RESPONSE["output"]]}

    async with listening(**replies_of(response, streams="streamed" in client)) as endpoint:
        reply = await ask(openai_model(endpoint.url), path, body)
        text = await reply.text()

    assert reply.status == 200
    assert "Hello, you" in text
    assert "web_search_call" not in text


@pytest.mark.parametrize("client", CONVERTED)
async def test_an_item_that_a_dialect_cannot_express_is_a_failure_of_the_server(client: str) -> None:
    """The request was right, so 400 would be wrong; an answer without the item would be another answer."""
    path, body = CLIENTS[client]

    async with listening(**replies_of({**RESPONSE, "output": [CUSTOM]}, streams="streamed" in client)) as endpoint:
        reply = await ask(openai_model(endpoint.url), path, body)
        text = await reply.text()

    assert "custom_tool_call" in text
    assert reply.status == 500 or ("streamed" in client and "error" in text)


async def test_token_ids_are_on_the_finished_item_of_a_stream() -> None:
    """A client that builds its conversation from finished items sends them back with the next turn."""
    async with listening(chat=Reply(events=TOKEN_CHUNKS)) as endpoint:
        server = vllm_model(
            endpoint.url, return_token_id_information=True, request_prompt_and_generation_token_ids=True
        )
        reply = await ask(server, "/v1/responses", {"input": "hi", "stream": True})

    events = list(sse.decode(await reply.read()))
    (item,) = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    last = events[-1]["response"]["output"][0]
    assert item["id"] == last["id"]
    for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs"):
        assert item[name] == last[name]
    assert (item["prompt_token_ids"], item["generation_token_ids"]) == ([1, 2], [5, 6])
