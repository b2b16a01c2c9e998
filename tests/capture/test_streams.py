"""A captured stream is read into the answer its events add up to, with its end."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.capture.record import parse_stream
from nemo_gym.wire.observations import Dialect


def stream(*events: Any) -> bytes:
    return "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events).encode()


STREAMS: dict[Dialect, tuple[Any, ...]] = {
    "responses": (
        {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": {"type": "message"}},
        {"type": "response.completed", "response": {"id": "r", "output": [{"type": "message"}]}},
    ),
    "chat": (
        {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hel"}}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]},
        {"id": "c", "choices": [], "usage": {"prompt_tokens": 3}},
        "[DONE]",
    ),
    "messages": (
        {"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ),
}


def test_each_dialect_s_events_add_up_to_its_answer() -> None:
    """Token totals must not depend on whether the agent asked for a stream."""
    whole = {dialect: parse_stream(dialect, stream(*events)) for dialect, events in STREAMS.items()}

    assert all(category is None for _, category in whole.values())
    answers = {dialect: answer or {} for dialect, (answer, _) in whole.items()}
    assert answers["responses"] == {"id": "r", "output": [{"type": "message", "id": "item_0"}]}
    assert answers["chat"]["choices"][0]["message"]["content"] == "Hello"
    assert answers["chat"]["usage"] == {"prompt_tokens": 3}
    assert answers["messages"]["content"] == [{"type": "text", "text": "Hello"}]
    assert answers["messages"]["usage"] == {"input_tokens": 3, "output_tokens": 9}


@pytest.mark.parametrize("dialect", list(STREAMS))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stream_cut_anywhere_is_unfinished_and_never_an_error(dialect: Dialect, data: st.DataObject) -> None:
    """A connection may break after any byte."""
    body = stream(*STREAMS[dialect])
    cut = data.draw(st.integers(0, len(body) - 3))

    assert parse_stream(dialect, body[:cut])[1] == "stream_truncated"


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        ("responses", {"type": "response.failed", "response": {"id": "r", "error": {"message": "no"}}}),
        ("responses", {"type": "error", "message": "no"}),
        ("chat", {"error": {"message": "no"}}),
        ("messages", {"type": "error", "error": {"message": "no"}}),
    ],
)
def test_a_stream_that_reports_a_failure_failed(dialect: Dialect, event: dict[str, Any]) -> None:
    """The status of a stream is 200 even when the model failed."""
    assert parse_stream(dialect, stream(event))[1] == "upstream_error"


WORDS = st.sampled_from(["type", "index", "delta", "choices", "message", "usage", "tool_calls", "message_start"])
ANYTHING = st.recursive(
    st.none() | st.integers(-1, 3) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("dialect", list(STREAMS))
@settings(max_examples=60, deadline=None)
@given(events=st.lists(ANYTHING, max_size=4))
def test_events_of_another_shape_are_never_an_error(dialect: Dialect, events: list[Any]) -> None:
    """A subclass may send what it likes; capturing it must not break its answer."""
    assert parse_stream(dialect, stream(*[json.dumps(event) for event in events]))[1] is not None
