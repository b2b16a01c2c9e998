"""Streaming for Chat Completions: a finished completion, sent as chunks."""

from collections.abc import Iterator
from typing import Any

from nemo_gym.convert import sse, streams
from nemo_gym.convert.json_access import expect_dict
from nemo_gym.wire.chat_completions import NeMoGymChatCompletionCreateParamsNonStreaming

_STREAM_OPTIONS = ("stream", "stream_options")


def sanitise_request(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a streaming request without stream options and unknown fields, and the dropped fields."""
    fields = NeMoGymChatCompletionCreateParamsNonStreaming.model_fields
    request = {key: value for key, value in expect_dict(body, "request").items() if key not in _STREAM_OPTIONS}
    dropped = [f"{key}: not a field of a request" for key in request if key not in fields]
    return {key: value for key, value in request.items() if key in fields}, dropped


def replay(completion: dict[str, Any], include_usage: bool = False) -> Iterator[bytes]:
    """Encode a finished completion as server-sent events; `include_usage` adds a chunk with the token counts."""
    for chunk in streams.chunks_from_completion(completion, include_usage=include_usage):
        yield sse.encode(chunk)
    yield sse.DONE
