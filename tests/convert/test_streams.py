"""Streams: a finished answer told as events, and the events put together again, in all three dialects."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.convert import sse
from nemo_gym.convert.chat_stream import chunks_from_completion, completion_from_chunks
from nemo_gym.convert.message_stream import events_from_message, message_from_events
from nemo_gym.convert.response_events import (
    events_from_response,
    events_of_failure,
    numbered_events,
    response_from_events,
)
from nemo_gym.errors import ConversionError

Json = dict[str, Any]
law = settings(max_examples=50, deadline=None)

text = st.text(max_size=8)
some = st.text(alphabet="abé\n", min_size=1, max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
item = st.dictionaries(st.sampled_from(["type", "id", "text", "x"]), values, max_size=4)
response = st.fixed_dictionaries(
    {"id": some, "output": st.lists(item, max_size=3), "status": st.sampled_from(["completed", "incomplete"])},
    optional={"usage": values, "model": some, "incomplete_details": values},
)

call = st.builds(
    lambda i, n, a: {"id": i, "type": "function", "function": {"name": n, "arguments": a}}, some, some, text
)
message = st.builds(
    lambda content, extra: {"role": "assistant", "content": content, **extra},
    st.none() | text,
    st.fixed_dictionaries(
        {},
        optional={
            "reasoning_content": some,
            "refusal": some,
            "tool_calls": st.lists(call, min_size=1, max_size=2),
            "annotations": st.just([{"type": "url_citation"}]),
        },
    ),
)
logprobs = st.none() | st.just({"content": [{"token": "a", "logprob": -1.0}], "refusal": None})
completion = st.builds(
    lambda messages, probs, usage: {
        "id": "c",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {"index": index, "message": one, "finish_reason": "stop", "logprobs": probs}
            for index, one in enumerate(messages)
        ],
        "usage": usage,
    },
    st.lists(message, min_size=1, max_size=2),
    logprobs,
    st.none() | st.just({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
)

block = st.one_of(
    st.builds(lambda t: {"type": "text", "text": t}, text),
    st.builds(lambda t, s: {"type": "thinking", "thinking": t, "signature": s}, text, text),
    st.builds(lambda d: {"type": "redacted_thinking", "data": d}, text),
    st.builds(
        lambda i, v: {"type": "tool_use", "id": i, "name": "f", "input": v},
        some,
        st.dictionaries(st.text(max_size=3), values, max_size=2),
    ),
)
anthropic = st.builds(
    lambda content, stop, n: {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": n},
    },
    st.lists(block, max_size=3),
    st.sampled_from(["end_turn", "max_tokens", "tool_use"]),
    st.integers(0, 9),
)


@given(response)
@law
def test_the_events_of_a_response_add_up_to_it(finished: Json) -> None:
    """A client that streams sees exactly what one that waits sees."""
    assert response_from_events(sse.decode(b"".join(sse.encode_typed(events_from_response(finished))))) == finished


@given(completion)
@law
def test_the_chunks_of_a_completion_add_up_to_it(finished: Json) -> None:
    """A chat client that streams must see exactly what one that waits sees."""
    chunks = list(chunks_from_completion(finished, include_usage=True))

    assert completion_from_chunks(sse.decode(b"".join(map(sse.encode, chunks)))) == finished


@given(anthropic)
@law
def test_the_events_of_a_message_add_up_to_it(finished: Json) -> None:
    """A Messages client that streams must see exactly what one that waits sees."""
    assert message_from_events(sse.decode(b"".join(sse.encode_typed(events_from_message(finished))))) == finished


@given(st.lists(st.dictionaries(text, values, max_size=3), max_size=4))
@law
def test_the_payloads_of_a_stream_are_read_back(payloads: list[Json]) -> None:
    """Captured streams are parsed from the bytes that a server sent."""
    stream = b"".join(sse.encode(payload, "e") for payload in payloads) + sse.DONE

    assert list(sse.decode(stream)) == payloads


def test_the_events_of_a_response_are_those_clients_wait_for() -> None:
    """Clients build the answer from the deltas, or wait for the end of an item; none may be missing."""
    text = {"type": "output_text", "text": "hi", "annotations": []}
    reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "why"}]}
    message = {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [text]}
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"}
    custom = {"type": "custom_tool_call", "id": "ct", "call_id": "d", "name": "g", "input": "free"}
    finished = {
        "id": "r",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [reasoning, message, call, custom],
        "usage": {"input_tokens": 1},
    }

    events = list(numbered_events(events_from_response(finished)))

    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, added = events[0], [event["item"] for event in events if event["type"].endswith("item.added")]
    assert (created["response"]["status"], created["response"]["output"], created["response"]["usage"]) == (
        "in_progress",
        [],
        None,
    )
    assert [item.get("content", item.get("summary", item.get("arguments"))) for item in added[:3]] == [[], [], ""]
    assert {event["output_index"] for event in events if event.get("item_id") == "fc"} == {2}
    assert events[-1]["response"] == finished


def test_a_failure_becomes_the_events_of_a_failed_response() -> None:
    """A stream that simply ends would leave the client waiting or with half an answer."""
    created, failed = events_of_failure("boom", code="server_error", model="m", response_id="r", created_at=1)

    assert (created["type"], failed["type"]) == ("response.created", "response.failed")
    assert failed["response"]["status"] == "failed"
    assert response_from_events([created, failed])["error"] == {"code": "server_error", "message": "boom"}


def test_items_fill_in_for_an_empty_last_event() -> None:
    """Some servers send the output only item by item."""
    events = [
        {"type": "response.output_item.done", "output_index": 1, "item": {"n": 1}},
        {"type": "response.output_text.delta", "delta": "x"},
        {"type": "response.output_item.done", "output_index": 0, "item": {"n": 0}},
        {"type": "response.completed", "response": {"id": "r", "output": []}},
    ]

    assert response_from_events(events)["output"] == [{"n": 0}, {"n": 1}]


def test_token_ids_are_not_streamed_in_chunks() -> None:
    """Many clients read a line of a stream into a small buffer."""
    message = {"role": "assistant", "content": "x", "prompt_token_ids": [1] * 5}
    finished = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    assert "prompt_token_ids" not in json.dumps(list(chunks_from_completion(finished)))


def test_chunks_come_in_the_order_clients_expect() -> None:
    """Clients build the message as chunks arrive; the role must come first and the usage last."""
    message = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        "content": "x",
        "reasoning_content": "why",
    }
    finished = {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"total_tokens": 3},
    }

    *chunks, usage = chunks_from_completion(finished, include_usage=True)

    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant"},
        {"reasoning_content": "why"},
        {"content": "x"},
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["tool_calls"]
    assert (usage["choices"], usage["usage"]) == ([], {"total_tokens": 3})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len(list(chunks_from_completion(finished))) == 5


def test_pieces_of_a_tool_call_are_put_together() -> None:
    """A provider streams arguments a few characters at a time, several calls interleaved."""

    def piece(index: int, arguments: str, **extra: Any) -> Json:
        function = {"arguments": arguments, **extra.pop("function", {})}
        calls = [{"index": index, "function": function, **extra}]
        return {"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}]}

    chunks = [
        piece(0, "", id="a", type="function", function={"name": "f"}),
        piece(1, "{", id="b", type="function", function={"name": "g"}),
        piece(0, '{"x":'),
        piece(1, "}"),
        piece(0, "1}"),
        {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]

    assert completion_from_chunks(chunks)["choices"][0]["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


@pytest.mark.parametrize(
    ("read", "events", "problem"),
    [
        (response_from_events, [], "stops before the response is finished"),
        (response_from_events, [{"type": "error", "message": "overloaded"}], "overloaded"),
        (completion_from_chunks, [], "contains no answer"),
        (completion_from_chunks, [{"choices": [{"delta": {"content": "x"}}]}], "stops before the answer is finished"),
        (completion_from_chunks, [{"error": {"message": "overloaded"}}], "overloaded"),
        (message_from_events, [{"type": "message_start", "message": {}}], "stops before the message is finished"),
        (message_from_events, [{"type": "error", "error": {"type": "overloaded_error"}}], "overloaded"),
        (
            message_from_events,
            [{"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta"}}],
            "block 3",
        ),
    ],
)
def test_a_stream_that_breaks_off_is_an_error(read: Any, events: list[Json], problem: str) -> None:
    """Half an answer must never pass for a whole one."""
    with pytest.raises(ConversionError, match=problem):
        read(events)


@pytest.mark.parametrize(
    ("stream", "problem"),
    [(b"data: nope\n\n", "not JSON"), (b"data: [1]\n\n", "expected an object"), (b'data: {"a":1', "ends inside")],
)
def test_bytes_that_are_not_events_are_an_error(stream: bytes, problem: str) -> None:
    """An error page of a proxy must not pass for an empty answer."""
    with pytest.raises(ConversionError, match=problem):
        list(sse.decode(stream))


def test_comments_carriage_returns_and_split_data_lines_are_understood() -> None:
    """The format allows them, and proxies add them."""
    stream = b': ping\r\nevent: x\r\nid: 1\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\r\n\r\n'

    assert list(sse.decode(stream)) == [{"a": 1}]


def test_values_that_the_fast_json_writer_refuses_are_still_written() -> None:
    """Models generate huge numbers and lone surrogates; the client must still get the answer."""
    payload = {"big": 2**70, "half": "\ud800"}

    assert list(sse.decode(sse.encode(payload))) == [payload]


def test_values_without_a_json_form_are_an_error() -> None:
    """A TypeError in the middle of a stream would break the connection without a reason."""
    with pytest.raises(ConversionError, match="cannot be written as JSON"):
        sse.encode({"x": object()})
