"""Requests of Chat clients that our request type does not accept as they are, and a completion sent as chunks."""

from collections.abc import Iterator
from typing import Any

from nemo_gym.convert import sse
from nemo_gym.convert.chat_stream import chunks_from_completion
from nemo_gym.convert.json_access import expect_dict, to_dict
from nemo_gym.wire.base import TOKEN_FIELDS, has_token_fields
from nemo_gym.wire.chat_completions import NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.wire.engine_options import ENGINE_OPTIONS

_STREAM_OPTIONS = ("stream", "stream_options")
_FOREIGN_FIELDS = "provider_specific_fields"
"""Where litellm keeps the fields of an answer that it does not know."""


def sanitise_request(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a request without stream options and unknown fields except options of engines, and the dropped fields.

    Token fields inside `provider_specific_fields` of an earlier answer become fields of the message.
    """
    fields = NeMoGymChatCompletionCreateParamsNonStreaming.model_fields
    request = {key: value for key, value in expect_dict(body, "request").items() if key not in _STREAM_OPTIONS}
    dropped = [key for key in request if key not in fields and key not in ENGINE_OPTIONS]
    request = {key: value for key, value in request.items() if key not in dropped}
    if isinstance(request.get("messages"), list):
        request["messages"] = [_with_token_fields(message) for message in request["messages"]]
    return request, [f"{key}: not a field of a request" for key in dropped]


def _with_token_fields(message: Any) -> Any:
    """Return a message with the token fields that litellm keeps apart; other messages are returned unchanged."""
    foreign = message.get(_FOREIGN_FIELDS) if isinstance(message, dict) else None
    if not isinstance(foreign, dict) or not has_token_fields(foreign) or has_token_fields(message):
        return message
    token_fields = {name: foreign[name] for name in TOKEN_FIELDS if foreign.get(name) is not None}
    rest = {name: value for name, value in foreign.items() if name not in TOKEN_FIELDS}
    kept = {name: value for name, value in message.items() if name != _FOREIGN_FIELDS}
    return {**kept, **token_fields, **({_FOREIGN_FIELDS: rest} if rest else {})}


def replay(completion: dict[str, Any], include_usage: bool = False) -> Iterator[bytes]:
    """Encode a finished completion as server-sent events; `include_usage` adds a chunk with the token counts."""
    for chunk in chunks_from_completion(completion, include_usage=include_usage):
        yield sse.encode(chunk)
    yield sse.DONE


def sanitize_streaming_chat_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return a streaming request without stream options and unknown fields."""
    return sanitise_request(body)[0]


def synthesize_chat_completion_sse(completion: Any, include_usage: bool = False) -> Iterator[bytes]:
    """Encode a finished completion, an object or a dictionary, as server-sent events."""
    return replay(to_dict(completion), include_usage=include_usage)
