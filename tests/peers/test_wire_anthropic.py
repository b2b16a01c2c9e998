"""Objects of the anthropic package are accepted wherever ours are expected."""

import pytest

from nemo_gym.anthropic_utils import NeMoGymAnthropicMessage, NeMoGymAnthropicMessageCreateParamsNonStreaming

types = pytest.importorskip("anthropic.types")

BODY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "4"},
        {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 1, "output_tokens": 2},
}


def test_a_message_becomes_ours_without_loss():
    """Model servers that use the client package return its object."""
    theirs = types.Message.model_validate(BODY)

    assert NeMoGymAnthropicMessage.model_validate(theirs).model_dump(exclude_unset=True) == BODY


def test_blocks_can_be_sent_back_inside_a_request():
    """A tool loop appends the content it received."""
    theirs = types.Message.model_validate(BODY)

    request = NeMoGymAnthropicMessageCreateParamsNonStreaming(
        model="m",
        max_tokens=1,
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": theirs.content}],
    )

    assert request.messages[1]["content"] == BODY["content"]
