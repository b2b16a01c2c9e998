"""What the converter writes is what the anthropic package reads, and its objects are what it takes."""

from typing import Any

import pytest

pytest.importorskip("anthropic")

from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import TypeAdapter

from nemo_gym.anthropic_converter import AnthropicConverter
from nemo_gym.convert import sse

MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "ok"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 2, "output_tokens": 3},
}


def test_a_message_object_becomes_a_response_and_a_message_again() -> None:
    """Agents pass objects of the anthropic package and expect one back."""
    converter = AnthropicConverter()

    response = converter.anthropic_to_responses(Message(**MESSAGE), {"input": "q"}, "claude")
    theirs = Message.model_validate(converter.response_to_message(response, "claude"))

    assert [block.type for block in theirs.content] == ["thinking", "text", "tool_use"]
    assert theirs.stop_reason == "tool_use"


def test_a_replayed_message_is_events_the_package_reads() -> None:
    """Coding agents built on the package stream from our model servers."""
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

    events = [adapter.validate_python(event) for event in sse.decode(b"".join(AnthropicConverter().replay(MESSAGE)))]

    assert [event.type for event in events if "block" not in event.type] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    assert "".join(e.delta.partial_json for e in events if getattr(getattr(e, "delta", None), "partial_json", "")) == (
        '{"a": 1}'
    )


def test_a_request_matches_the_type_of_the_package() -> None:
    """A field in the wrong form would be refused by the provider on every rollout."""
    params = {
        "instructions": "be",
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
            {"type": "reasoning", "summary": [{"text": "hm"}], "encrypted_content": "s"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": "required",
    }

    request = AnthropicConverter().responses_to_anthropic(params, "claude", 100, True, 50, {})

    TypeAdapter(MessageCreateParamsNonStreaming).validate_python(request)
