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


def test_a_streaming_request_is_reduced_to_what_a_model_takes() -> None:
    body = {"messages": [], "temperature": 1, "stream": True, "stream_options": {"include_usage": True}, "top_k": 3}

    assert sanitise_request(body) == ({"messages": [], "temperature": 1}, ["top_k: not a field of a request"])


def test_a_replayed_completion_is_the_completion() -> None:
    assert completion_from_chunks(sse.decode(replay(COMPLETION, include_usage=True))) == COMPLETION


def test_the_stream_ends_the_way_clients_wait_for_and_counts_only_when_asked() -> None:
    silent, counted = b"".join(replay(COMPLETION, False)), b"".join(replay(COMPLETION, True))

    assert silent.endswith(b"data: [DONE]\n\n")
    assert counted.endswith(b"data: [DONE]\n\n")
    assert b'"total_tokens":3' not in silent
    assert b'"choices":[],' in counted or b'"choices":[]}' in counted
