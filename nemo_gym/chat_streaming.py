"""Streaming for Chat Completions: the whole completion is made first, then told as chunks."""

from collections.abc import Iterator
from typing import Any

from nemo_gym.convert import chat_chunks, sse
from nemo_gym.convert.shapes import as_dict
from nemo_gym.wire.chat_params import NeMoGymChatCompletionCreateParamsNonStreaming

_ABOUT_STREAMING = ("stream", "stream_options")


def sanitise_request(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A streaming request without what only streaming needs, and the unknown fields that were left out of it."""
    known = NeMoGymChatCompletionCreateParamsNonStreaming.model_fields
    asked = {key: value for key, value in as_dict(body, "request").items() if key not in _ABOUT_STREAMING}
    dropped = [f"{key}: not a field of a request" for key in asked if key not in known]
    return {key: value for key, value in asked.items() if key in known}, dropped


def replay(completion: dict[str, Any], include_usage: bool = False) -> Iterator[bytes]:
    """A finished completion, told as server-sent events; `include_usage` adds the chunk that counts tokens."""
    for chunk in chat_chunks.chunks_from_completion(completion, include_usage=include_usage):
        yield sse.encode(chunk)
    yield sse.DONE
