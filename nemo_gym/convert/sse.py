"""Encode and decode server-sent events with JSON payloads."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from nemo_gym.convert.json_access import Json, expect_dict
from nemo_gym.errors import ConversionError

DONE = b"data: [DONE]\n\n"


def encode(payload: Any, event: str | None = None) -> bytes:
    """Encode one event."""
    try:
        text = orjson.dumps(payload)
    except TypeError:  # orjson cannot write huge integers and lone surrogates
        text = _slow_dumps(payload)
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + text + b"\n\n"


def encode_typed(events: Iterable[Json]) -> Iterator[bytes]:
    """Encode events with their `type` as event name, as OpenAI and Anthropic do."""
    for event in events:
        yield encode(event, event["type"])


def decode(stream: bytes) -> Iterator[Json]:
    """Yield the JSON payloads of a stream; skip `[DONE]` and comments.

    Raises:
        ConversionError: a payload is not a JSON object, or the stream ends inside an event.
    """
    data: list[bytes] = []
    number = 0
    for raw_line in stream.split(b"\n"):
        line = raw_line.removesuffix(b"\r")
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            payload, data = b"\n".join(data), []
            if payload.strip() != b"[DONE]":
                yield _parse_payload(payload, f"event {number}")
            number += 1
    if data and b"\n".join(data).strip() != b"[DONE]":
        raise ConversionError("the stream ends inside an event", where=f"event {number}")


def _parse_payload(payload: bytes, path: str) -> Json:
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        value = _slow_loads(payload, path)
    return expect_dict(value, path)


def _slow_loads(payload: bytes, path: str) -> Any:
    """Parse JSON with huge integers or lone surrogates, which `encode` may write and orjson rejects."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ConversionError("is not JSON", where=path) from error


def _slow_dumps(payload: Any) -> bytes:
    try:
        return json.dumps(payload, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversionError("cannot be written as JSON", where="event") from error
