"""Streaming requests and answers of Chat Completions."""

from typing import Any

from nemo_gym.chat_streaming import replay, sanitise_request
from nemo_gym.convert import sse
from nemo_gym.convert.streams import completion_from_chunks

COMPLETION: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 7,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop", "logprobs": None}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}


def test_a_streaming_request_is_reduced_to_the_fields_of_a_model() -> None:
    """Coding agents send extra fields; none may stop a rollout, and each is reported."""
    body = {"messages": [], "temperature": 1, "stream": True, "stream_options": {"include_usage": True}, "top_k": 3}

    assert sanitise_request(body) == ({"messages": [], "temperature": 1}, ["top_k: not a field of a request"])


def test_a_replayed_completion_equals_the_original() -> None:
    """A client that streams must see exactly what one that waits sees."""
    assert completion_from_chunks(sse.decode(b"".join(replay(COMPLETION, include_usage=True)))) == COMPLETION


def test_the_stream_ends_with_done_and_has_usage_only_on_request() -> None:
    """Clients wait for the end marker, and some fail on a usage chunk they did not request."""
    silent, counted = b"".join(replay(COMPLETION, False)), b"".join(replay(COMPLETION, True))

    assert silent.endswith(b"data: [DONE]\n\n")
    assert counted.endswith(b"data: [DONE]\n\n")
    assert b'"total_tokens":3' not in silent
    assert b'"choices":[],' in counted or b'"choices":[]}' in counted
