"""Encode a live or finished answer as the bytes of a stream, one encoder for each dialect of a client.

`event` encodes what an endpoint streams: answer events (`response_events`), or chunks for a Chat client. `finish`
encodes the end of the answer, or all of it if nothing was streamed before; `failure` the failure of an answer.
"""

from collections.abc import Iterator
from time import time
from typing import Protocol

from nemo_gym.convert import sse
from nemo_gym.convert.answer_repair import NO_ARGUMENTS
from nemo_gym.convert.chat_stream import CallPieces, chunks_from_completion, usage_chunk, with_one_reasoning
from nemo_gym.convert.error_bodies import ApiError
from nemo_gym.convert.flattened_tools import NamespacedNames, split_event
from nemo_gym.convert.json_access import Json, NewId
from nemo_gym.convert.message_stream import MessageEncoder, events_from_message
from nemo_gym.convert.response_events import closing_event, events_from_response, events_of_failure, failed_event
from nemo_gym.convert.responses_anthropic import message_from_response
from nemo_gym.wire.base import GENERATION_FIELDS, TOKEN_FIELDS

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients skip; an encoder whose clients do not has the attribute `keep_alive`."""

_NOT_STREAMED = frozenset({*TOKEN_FIELDS, *GENERATION_FIELDS, "token_ids"}) - {"stop_reason", "finish_reason"}


class StreamEncoder(Protocol):
    """Encodes an answer for the client of one dialect."""

    def event(self, event: Json) -> bytes:
        """Return the bytes for one event of the endpoint."""

    def finish(self, answer: Json) -> bytes:
        """Return the bytes for the end of an answer, or for all of it if there was no event."""

    def failure(self, error: ApiError) -> bytes:
        """Return the bytes for the failure of an answer that has or has not begun."""


class ResponsesEncoder:
    """Encodes for a client of the Responses API: numbered events, with the namespaces of tools in `names`."""

    def __init__(self, model: str, names: NamespacedNames, new_id: NewId) -> None:
        self._model = model
        self._names = names
        self._new_id = new_id
        self._number = 0
        self._start: Json | None = None

    def event(self, event: Json) -> bytes:
        """Return the bytes for one answer event."""
        if self._start is None:
            self._start = event.get("response") or {}
        event = split_event(event, self._names) if self._names else event
        numbered = {"type": event["type"], "sequence_number": self._number, **event}
        self._number += 1
        return sse.encode(numbered, event["type"])

    def finish(self, answer: Json) -> bytes:
        """Return the last event, or all events of a response that was not streamed."""
        if self._start is None:
            return b"".join(map(self.event, events_from_response(answer)))
        return self.event(closing_event(answer))

    def failure(self, error: ApiError) -> bytes:
        """Return the event `failed`, after `created` if there was none."""
        if self._start is not None:
            return self.event(failed_event(self._start, error.message, error.event_code))
        events = events_of_failure(
            error.message,
            code=error.event_code,
            model=self._model,
            response_id=self._new_id("resp"),
            created_at=int(time()),
        )
        return b"".join(map(self.event, events))


class ChatEncoder:
    """Encodes for a Chat client. The chunks with which choices end wait for `finish`."""

    def __init__(self, *, include_usage: bool, keeps_token_ids: bool = False) -> None:
        self._include_usage = include_usage
        self._keeps_token_ids = keeps_token_ids
        self._has_begun = False
        self._last_chunks: list[bytes] = []
        self._head: Json = {}
        self._calls: dict[int, CallPieces] = {}
        """The tool calls of each choice."""

    def event(self, event: Json) -> bytes:
        """Return the bytes for one chunk of an endpoint, in the form that all endpoints should use."""
        self._has_begun = True
        choices = event.get("choices") or []
        if not choices:  # the token counts, which come last and only on request
            return b""
        chunk = self._client_chunk(event, choices)
        if not self._last_chunks and not any(choice.get("finish_reason") for choice in choices):
            return sse.encode(chunk)
        calls, end = _without_end(chunk)
        self._last_chunks.append(sse.encode(end))
        return b"" if calls is None else sse.encode(calls)

    def finish(self, answer: Json) -> bytes:
        """Return the end of the stream, or all of it if nothing was streamed."""
        if not self._has_begun:
            self._last_chunks = [sse.encode(chunk) for chunk in chunks_from_completion(answer)]
        usage = [sse.encode(usage_chunk(answer))] if self._include_usage else []
        return b"".join([*self._missing_arguments(), *self._last_chunks, *usage, sse.DONE])

    def failure(self, error: ApiError) -> bytes:
        """Return an error event and the end of the stream."""
        return sse.encode(error.body("chat")) + sse.DONE

    def _client_chunk(self, chunk: Json, choices: list[Json]) -> Json:
        """Return a chunk without token counts and, unless requested, token ids; reasoning has one name."""
        if not self._keeps_token_ids:
            chunk = {key: value for key, value in chunk.items() if key not in _NOT_STREAMED}
            choices = [{key: value for key, value in choice.items() if key not in _NOT_STREAMED} for choice in choices]
        head = {key: value for key, value in chunk.items() if key not in ("choices", "usage")}
        if self._include_usage:
            head["usage"] = None
        self._head = head
        return {**head, "choices": [{**choice, "delta": self._client_delta(choice)} for choice in choices]}

    def _client_delta(self, choice: Json) -> Json:
        """Return a delta whose pieces of tool calls have the number of their call, which clients rely on."""
        delta = with_one_reasoning(choice.get("delta") or {})
        pieces = delta.get("tool_calls")
        if not pieces:
            return delta
        calls = self._calls.setdefault(choice.get("index") or 0, CallPieces())
        return {**delta, "tool_calls": [{**piece, "index": calls.note(piece, "chunk")} for piece in pieces]}

    def _missing_arguments(self) -> Iterator[bytes]:
        """Yield a chunk for each call whose endpoint has left out the arguments."""
        for index, calls in self._calls.items():
            for number in (number for number, call in calls.items() if not call["has_arguments"]):
                piece = {"index": number, "function": {"arguments": NO_ARGUMENTS}}
                yield sse.encode({**self._head, "choices": [{"index": index, "delta": {"tool_calls": [piece]}}]})


def _without_end(chunk: Json) -> tuple[Json | None, Json]:
    """Divide the chunk with which choices end: tool calls leave before it, because their arguments may follow them."""
    if not any(choice["delta"].get("tool_calls") for choice in chunk["choices"]):
        return None, chunk
    calls = {**chunk, "choices": [{**choice, "finish_reason": None} for choice in chunk["choices"]]}
    kept = ("index", "finish_reason", "stop_reason")
    ends = [{**{key: choice[key] for key in kept if key in choice}, "delta": {}} for choice in chunk["choices"]]
    return calls, {**chunk, "choices": ends}


class MessagesEncoder:
    """Encodes for a client of the Messages API."""

    def __init__(self, model: str, new_id: NewId) -> None:
        self._model = model
        self._new_id = new_id
        self._encoder = MessageEncoder(model)

    def event(self, event: Json) -> bytes:
        """Return the bytes for one answer event."""
        return b"".join(sse.encode_typed(self._encoder.feed(event)))

    def finish(self, answer: Json) -> bytes:
        """Return the last events, or all events of a response that was not streamed."""
        message = message_from_response(answer, model=self._model, new_id=self._new_id)
        has_begun = self._encoder.has_begun
        return b"".join(sse.encode_typed(self._encoder.finish(message) if has_begun else events_from_message(message)))

    def failure(self, error: ApiError) -> bytes:
        """Return an `error` event."""
        return sse.encode(error.body("messages"), "error")
