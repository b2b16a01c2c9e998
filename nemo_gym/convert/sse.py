"""Encode and decode server-sent events with JSON payloads."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from nemo_gym.convert.json_access import Json, expect_dict
from nemo_gym.errors import ConversionError
from nemo_gym.wire.call_reply import replace_surrogates

DONE = b"data: [DONE]\n\n"


_LINE_SEPARATORS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\u0085\u2028\u2029")


def encode(payload: Any, event: str | None = None) -> bytes:
    """Encode one event."""
    try:
        text = orjson.dumps(payload)
    except TypeError:  # orjson cannot write huge integers and lone surrogates
        text = _slow_dumps(payload)
    for separator, escape in _LINE_SEPARATORS:  # some clients end a line there
        text = text.replace(separator, escape)
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
    decoder = StreamDecoder()
    yield from decoder.feed(stream)
    yield from decoder.finish()


class StreamDecoder:
    """Decodes a stream that arrives in pieces. `replaces_surrogates` puts U+FFFD in place of lone surrogates."""

    def __init__(self, *, replaces_surrogates: bool = False) -> None:
        self._replaces_surrogates = replaces_surrogates
        self._rest = b""
        self._data: list[bytes] = []
        self._number = 0

    def feed(self, piece: bytes) -> Iterator[Json]:
        """Yield the JSON payloads of the events that `piece` completes; skip `[DONE]` and comments.

        Raises:
            ConversionError: a payload is not a JSON object.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw_line in lines:
            line = raw_line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                payload, self._data = b"\n".join(self._data), []
                if payload.strip() != b"[DONE]":
                    yield _parse_payload(payload, f"event {self._number}", self._replaces_surrogates)
                self._number += 1

    def finish(self) -> Iterator[Json]:
        """Yield the last event if the stream ends without the empty line after it, as that of some endpoints does.

        Raises:
            ConversionError: the stream ends inside an event.
        """
        try:
            yield from self.feed(b"\n\n")
        except ConversionError as error:
            raise ConversionError("the stream ends inside an event", where=error.where) from error


def _parse_payload(payload: bytes, path: str, replaces_surrogates: bool) -> Json:
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        value = _slow_loads(payload, path)
        if replaces_surrogates:
            value = json.loads(replace_surrogates(json.dumps(value, ensure_ascii=False)))
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
