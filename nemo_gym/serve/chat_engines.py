"""Helpers of model servers in front of a chat engine (vLLM, llama.cpp, a trainer's engine): settings and replies."""

import re
from collections.abc import Mapping
from time import time
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import ClientResponseError
from fastapi import HTTPException

from nemo_gym.errors import ModelFailed
from nemo_gym.wire.responses import CONTEXT_LENGTH

Json = dict[str, Any]

IN_METADATA = ("extra_body", "chat_template_kwargs")
"""Keys of a request's metadata that hold settings as JSON text, because the Responses API has no field for them."""

_TOO_LONG = (b"context length", b"maximum model length", b"context_length_exceeded")
_NO_ROOM = re.compile(rb"max_tokens must be at least 1, got -")
"""What vLLM answers if it computes the length of the reply itself; a positive length comes from the request."""


def settings_in_metadata(metadata: Mapping[str, str]) -> tuple[Json, Json, Json]:
    """Parse the settings in the metadata; return extra body, chat template arguments and the rest of the metadata.

    Raises:
        HTTPException: 400, the text is not a JSON object.
    """
    values: list[Json] = []
    for name in IN_METADATA:
        text = metadata.get(name)
        try:
            value = orjson.loads(text) if text else {}
        except orjson.JSONDecodeError as error:
            raise HTTPException(400, f"metadata.{name} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise HTTPException(400, f"metadata.{name} is JSON but not an object")
        values.append(value)
    return values[0], values[1], {key: value for key, value in metadata.items() if key not in IN_METADATA}


def is_too_long(refusal: ClientResponseError) -> bool:
    """Return whether the endpoint refused because prompt and reply do not fit into the model's context."""
    text = getattr(refusal, "response_content", b"")
    if refusal.status != 400 or not isinstance(text, bytes):
        return False
    return any(words in text.lower() for words in _TOO_LONG) or _NO_ROOM.search(text) is not None


def empty_completion(model: str) -> Json:
    """Build an empty completion for a prompt that leaves no space for a reply: its outcome is a limit, not a zero."""
    message = {"role": "assistant", "content": ""}
    return {
        "id": f"chatcmpl_{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time()),
        "model": model,
        "choices": [{"index": 0, "finish_reason": "length", "stop_reason": CONTEXT_LENGTH, "message": message}],
    }


def first_choice(reply: Json, where: str) -> Json:
    """Return the first choice of a reply.

    Raises:
        ModelFailed: the reply has no choices.
    """
    choices = reply.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    raise ModelFailed(
        "the endpoint's answer has no choices", where=where, fix="check base_url: does it speak the OpenAI API?"
    )
