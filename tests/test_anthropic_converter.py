"""Messages clients and Messages models, with the wire types."""

import logging
from typing import Any

import pytest

from nemo_gym.anthropic_converter import AnthropicConverter
from nemo_gym.convert import sse
from nemo_gym.convert.json_access import warn_once
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.errors import ConversionError
from nemo_gym.wire.anthropic_messages import NeMoGymAnthropicMessage, NeMoGymAnthropicMessageCreateParamsNonStreaming
from nemo_gym.wire.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

BODY: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 9,
    "system": "be",
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "42"}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
}
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
    "usage": {"input_tokens": 2, "output_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0},
}


def test_a_clients_request_is_a_valid_responses_request() -> None:
    """The model servers behind it validate strictly."""
    params = AnthropicConverter().request_to_responses(BODY)

    request = NeMoGymResponseCreateParamsNonStreaming(**params)

    assert [item.type for item in request.input] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert (request.instructions, request.max_output_tokens, request.model) == ("be", 9, "claude")


def test_an_option_that_is_not_passed_on_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The user must be able to see why `top_k` had no effect."""
    warn_once.cache_clear()

    with caplog.at_level(logging.WARNING):
        AnthropicConverter().request_to_responses({**BODY, "top_k": 5})

    assert "'top_k' of a Messages request is not passed on" in caplog.text


def test_an_answer_of_a_model_is_a_valid_response_with_its_usage() -> None:
    """Cost and token metrics are computed from the usage, cached tokens included."""
    request = NeMoGymResponseCreateParamsNonStreaming(input="hi", temperature=0.5)

    response = AnthropicConverter().anthropic_to_responses(NeMoGymAnthropicMessage(**MESSAGE), request, "claude")

    assert isinstance(response, NeMoGymResponse)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert (response.output_text, response.temperature, response.model) == ("ok", 0.5, "claude")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (6, 3)


def test_a_response_object_becomes_the_message_it_came_from() -> None:
    """An agent in front of a Messages model must see the answer unchanged."""
    converter = AnthropicConverter()
    response = converter.anthropic_to_responses(MESSAGE, {"input": "hi"}, "claude")

    message = converter.response_to_message(response, "claude")

    assert message["id"] == response.id  # token capture finds the generation of a message by it
    assert message | {"id": "msg_1"} == MESSAGE


def test_a_replayed_message_equals_the_original() -> None:
    """A client that streams must see exactly what one that waits sees."""
    assert message_from_events(sse.decode(b"".join(AnthropicConverter().replay(MESSAGE)))) == MESSAGE


def test_a_request_to_a_messages_model_wins_over_the_extra_body() -> None:
    """`extra_body` fills in what the request leaves open; it cannot change the question."""
    request = NeMoGymResponseCreateParamsNonStreaming(input="hi", max_output_tokens=5)
    extra = {"max_tokens": 1, "top_k": 3}

    converted = AnthropicConverter().responses_to_anthropic(request, "claude", 100, "adaptive", None, extra)

    assert converted == {
        "model": "claude",
        "max_tokens": 5,
        "top_k": 3,
        "messages": [{"role": "user", "content": "hi"}],
        "thinking": {"type": "adaptive"},
    }
    NeMoGymAnthropicMessageCreateParamsNonStreaming(**converted)


def test_an_answer_that_is_not_a_valid_response_is_one_clear_error() -> None:
    """A pydantic traceback would not name the field to fix."""
    with pytest.raises(ConversionError, match=r"NeMoGymResponse\.temperature"):
        AnthropicConverter().anthropic_to_responses(MESSAGE, {"input": "", "temperature": "warm"}, "m")
