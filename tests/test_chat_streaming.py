"""Streaming requests and answers of Chat Completions."""

from typing import Any

from nemo_gym.chat_streaming import replay, sanitise_request
from nemo_gym.convert import sse
from nemo_gym.convert.chat_stream import completion_from_chunks

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
    options = {"stream": True, "stream_options": {"include_usage": True}, "novelty": 3}
    kept = {"messages": [], "temperature": 1, "top_k": 3, "chat_template_kwargs": {"a": 1}}

    assert sanitise_request({**kept, **options}) == (kept, ["novelty: not a field of a request"])


def test_token_ids_that_litellm_keeps_apart_are_read() -> None:
    """A harness that returns them lets the engine continue from the tokens it sampled."""
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    message = {"role": "assistant", "content": "x", "provider_specific_fields": {**tokens, "refusal": None}}

    (accepted,) = sanitise_request({"messages": [message]})[0]["messages"]

    assert accepted == {"role": "assistant", "content": "x", **tokens, "provider_specific_fields": {"refusal": None}}


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
