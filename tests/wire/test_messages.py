"""The Anthropic Messages API, both directions."""

import pytest
from pydantic import ValidationError

from nemo_gym.anthropic_utils import NeMoGymAnthropicMessage, NeMoGymAnthropicMessageCreateParamsNonStreaming

REQUEST = {
    "model": "m",
    "max_tokens": 10,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 2, "b": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "4"}]},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}},
            ],
        },
    ],
    "tools": [{"name": "add", "description": "d", "input_schema": {"type": "object"}}, {"type": "bash_20250124"}],
    "tool_choice": {"type": "tool", "name": "add"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["END"],
    "top_k": 3,
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "4", "citations": None},
        {"type": "tool_use", "id": "t", "name": "add", "input": {}},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
    ],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 0, "inference_geo": "eu"},
    "diagnostics": {"x": 1},
}


def test_a_request_comes_back_as_it_went_in():
    """Blocks we give no meaning to are for the converter to judge, not for parsing to drop."""
    request = NeMoGymAnthropicMessageCreateParamsNonStreaming.model_validate(REQUEST)

    assert request.model_dump(exclude_unset=True) == REQUEST


def test_a_request_refuses_fields_it_does_not_know():
    """An option that never reaches the model is worse than an error."""
    with pytest.raises(ValidationError, match="max_token"):
        NeMoGymAnthropicMessageCreateParamsNonStreaming.model_validate({**REQUEST, "max_token": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": None},
        {"messages": "hi"},
        {"messages": [{"role": "robot", "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t"}]}]},
        {"messages": [{"role": "user", "content": [{"text": "no type"}]}]},
        {"tool_choice": {"type": "perhaps"}},
        {"stream": True},
    ],
)
def test_wrong_values_are_refused_where_they_stand(wrong):
    """The first element of the error's place is the field the user has to fix."""
    with pytest.raises(ValidationError) as caught:
        NeMoGymAnthropicMessageCreateParamsNonStreaming.model_validate({**REQUEST, **wrong})

    assert {error["loc"][0] for error in caught.value.errors()} == set(wrong)


def test_a_message_keeps_every_field_of_the_provider():
    """Blocks of hosted tools and new fields are part of the record."""
    message = NeMoGymAnthropicMessage.model_validate(MESSAGE)

    assert message.model_dump(exclude_unset=True) == MESSAGE
    assert message.content[1].text == "4"
    assert NeMoGymAnthropicMessage.model_validate_json(message.model_dump_json()) == message
