"""Any answer, in every dialect and streaming mode, says the same: content, tool calls, usage and stop reason."""

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.convert import sse
from nemo_gym.convert.chat_stream import ChunkDecoder, CompletionBuilder, completion_from_chunks
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.convert.response_events import events_from_response, response_from_events
from nemo_gym.convert.responses_anthropic import message_from_response
from nemo_gym.convert.responses_chat import response_from_completion
from nemo_gym.convert.stream_encoders import ChatEncoder, MessagesEncoder, ResponsesEncoder, StreamEncoder
from nemo_gym.convert.usage import with_numeric_usage
from nemo_gym.wire.responses import NeMoGymResponse
from tests.dialects.strategies import (
    Json,
    chunk_streams,
    completions,
    meaning_of_completion,
    meaning_of_message,
    meaning_of_response,
    responses,
)

law = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def new_id(prefix: str) -> str:
    return f"{prefix}_new"


def stream_of(encoder: StreamEncoder, events: list[Json], answer: Json) -> list[Json]:
    """Return what a client reads: the events as they come, then the end."""
    return list(sse.decode(b"".join(map(encoder.event, events)) + encoder.finish(answer)))


def answered_response(completion: Json) -> Json:
    """Return the response that a model server answers with: token counts that the endpoint does not report are 0."""
    response = response_from_completion({}, completion, new_id=new_id)
    usage: Any = with_numeric_usage(NeMoGymResponse.model_validate(response)).usage
    return {**response, "usage": usage.model_dump()}


def text_of(events: list[Json], name: str) -> str:
    return "".join(event["delta"] for event in events if event["type"] == f"response.{name}.delta")


@given(responses(), st.booleans())
@law
def test_a_response_is_the_same_in_a_responses_stream(response: Json, is_live: bool) -> None:
    """Clients that build the answer from deltas, from finished items or from the last event must agree."""
    live = list(events_from_response(response))[:-1] if is_live else []

    events = stream_of(ResponsesEncoder("m", {}, new_id), live, response)

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert response_from_events(events) == response
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == response["output"]
    meaning = meaning_of_response(response)
    assert text_of(events, "output_text") == meaning.text
    assert text_of(events, "reasoning_summary_text") == meaning.reasoning.replace("\n", "") or "\n" in meaning.reasoning


@given(responses(), st.booleans())
@law
def test_a_response_says_the_same_to_a_messages_client(response: Json, is_live: bool) -> None:
    """Claude Code streams always, other clients never; both are scored by the same answer."""
    live = list(events_from_response(response))[:-1] if is_live else []

    events = stream_of(MessagesEncoder("m", new_id), live, response)

    assert meaning_of_message(message_from_events(events)) == meaning_of_response(response)
    assert meaning_of_message(message_from_response(response, model="m", new_id=new_id)) == meaning_of_response(
        response
    )
    blocks = [event["index"] for event in events if event["type"] == "content_block_start"]
    assert blocks == list(range(len(blocks)))


@given(completions())
@law
def test_a_completion_says_the_same_in_a_chat_stream_and_as_a_response(completion: Json) -> None:
    """A chat client that streams must see exactly what one that waits sees."""
    encoder = ChatEncoder(include_usage=True)

    chunks = stream_of(encoder, [], completion)

    assert meaning_of_completion(completion_from_chunks(chunks)) == meaning_of_completion(completion)
    response = answered_response(completion)
    assert meaning_of_response(response) == meaning_of_completion(completion)


@given(chunk_streams(), st.booleans())
@law
def test_the_chunks_of_an_endpoint_say_the_same_in_every_dialect(
    streamed: tuple[Json, list[Json]], split_tags: bool
) -> None:
    """However an endpoint cuts an answer, and whichever dialect the client speaks, it is the same answer."""
    completion, chunks = streamed
    expected = meaning_of_completion(completion)
    response = answered_response(completion_from_chunks(chunks))
    live: list[Any] = []
    decoder = ChunkDecoder(new_id=new_id, split_tags=split_tags)
    for chunk in chunks:
        live += decoder.feed(chunk)
    live += decoder.finish()

    to_chat = stream_of(ChatEncoder(include_usage=True), chunks, completion)
    to_responses = stream_of(ResponsesEncoder("m", {}, new_id), live, response)
    to_messages = stream_of(MessagesEncoder("m", new_id), live, response)

    assert meaning_of_completion(completion_from_chunks(to_chat)) == expected
    assert meaning_of_response({**response, "output": decoder.items}) == expected
    assert meaning_of_response(response_from_events(to_responses)) == expected
    assert meaning_of_message(message_from_events(to_messages)) == expected
    assert text_of(to_responses, "output_text") == expected.text


def test_calls_that_an_endpoint_writes_at_once_come_one_after_the_other() -> None:
    """Some clients know one open call only; arguments of another one in between would be added to it."""

    def piece(index: int, arguments: str, **fields: Any) -> Json:
        function = {"arguments": arguments, **fields.pop("function", {})}
        calls = [{"index": index, "function": function, **fields}]
        return {"choices": [{"index": 0, "delta": {"tool_calls": calls}}]}

    chunks = [
        piece(0, "", id="a", function={"name": "f"}),
        piece(1, "{", id="b", function={"name": "g"}),
        piece(0, '{"x":'),
        piece(1, "}"),
        piece(0, "1}"),
    ]
    decoder = ChunkDecoder(new_id=new_id)

    events = [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.finish()

    assert [(item["call_id"], item["arguments"]) for item in decoder.items] == [("a", '{"x":1}'), ("b", "{}")]
    order = [event["output_index"] for event in events if "output_index" in event]
    assert order == sorted(order)


def call_chunk(call_id: str | None, name: str | None, arguments: str | None) -> Json:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": 0, "id": call_id, "function": function}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


END_OF_CALLS: Json = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            [("a", "f", "{"), (None, None, "}"), ("b", "g", '{"x"'), ("b", None, ":1}")],
            [("a", "f", "{}"), ("b", "g", '{"x":1}')],
        ),
        ([("a", "f", "{"), ("random", None, "}")], [("a", "f", "{}")]),
        ([("a", "f", None), ("b", "g", None)], [("a", "f", "{}"), ("b", "g", "{}")]),
    ],
    ids=["each call has the index 0", "each piece has another id", "no arguments"],
)
def test_calls_are_told_apart_and_have_arguments(
    pieces: list[tuple[str | None, str | None, str | None]], expected: list[tuple[str, str, str]]
) -> None:
    """Two calls in one would be a call of no tool; one without arguments would lose the whole answer."""
    chunks = [*(call_chunk(*piece) for piece in pieces), END_OF_CALLS]
    decoder = ChunkDecoder(new_id=new_id)
    live = [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.finish()

    calls = completion_from_chunks(chunks)["choices"][0]["message"]["tool_calls"]
    to_chat = stream_of(ChatEncoder(include_usage=False), chunks, {})
    client: dict[int, str] = {}
    for piece in (piece for chunk in to_chat for piece in chunk["choices"][0]["delta"].get("tool_calls") or []):
        client[piece["index"]] = client.get(piece["index"], "") + (piece["function"].get("arguments") or "")

    assert [(item["call_id"], item["name"], item["arguments"]) for item in decoder.items] == expected
    names = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    assert names == [call[1:] for call in expected]
    assert client == {number: call[2] for number, call in enumerate(expected)}
    deltas = [event["delta"] for event in live if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == "".join(call[2] for call in expected)


def test_text_that_looks_like_the_begin_of_a_tag_stays_before_the_call_that_follows() -> None:
    """Held back until the end of the answer, it would be a second message after the call."""
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    deltas: list[Json] = [{"content": "a <"}, {"tool_calls": [call]}]
    decoder = ChunkDecoder(new_id=new_id, split_tags=True)

    for delta in deltas:
        decoder.feed({"choices": [{"index": 0, "delta": delta}]})
    decoder.finish()

    assert [item["type"] for item in decoder.items] == ["message", "function_call"]
    assert decoder.items[0]["content"][0]["text"] == "a <"


def test_a_long_answer_is_collected_in_linear_time() -> None:
    """Quadratic copying of a hundred thousand pieces would block the server for seconds."""
    entry = {"token": "x", "logprob": -0.5}
    choice = {"index": 0, "delta": {"content": "x" * 20}, "token_ids": [1], "logprobs": {"content": [entry]}}
    builder = CompletionBuilder()
    seconds = []
    for _ in range(2):
        started = time.process_time()
        for _ in range(40_000):
            builder.add({"choices": [choice]})
        seconds.append(time.process_time() - started)

    builder.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    answer = builder.completion()["choices"][0]
    assert (len(answer["message"]["content"]), len(answer["token_ids"])) == (1_600_000, 80_000)
    assert choice["token_ids"] == [1], "the chunk of the endpoint is not changed"
    assert seconds[1] < 3 * seconds[0] + 0.1
