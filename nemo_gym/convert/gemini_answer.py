"""Convert answers: Responses API → Gemini, whole or as a stream, and errors.

`GeminiEncoder` translates the events of an answer while they arrive. A function call is one part of one chunk, because
Gemini has no part of a call.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from nemo_gym.convert import sse
from nemo_gym.convert.anthropic_blocks import UNPARSED_ARGUMENTS
from nemo_gym.convert.chat_conversation import DROPPED_ITEMS, item_kind, reasoning_texts
from nemo_gym.convert.error_bodies import ApiError
from nemo_gym.convert.gemini_request import GEMINI, encode_signature
from nemo_gym.convert.json_access import (
    Json,
    expect_dict,
    inexpressible,
    iter_dicts,
    optional_dict_at,
    optional_list_at,
    short_repr,
    text_at,
)
from nemo_gym.convert.response_events import events_from_response
from nemo_gym.convert.usage import usage_detail
from nemo_gym.errors import ConversionError
from nemo_gym.wire.call_reply import parse_tool_arguments

_FINISH_REASONS = {"max_output_tokens": "MAX_TOKENS", "content_filter": "SAFETY"}


def gemini_from_response(response: Json, *, model: str, include_thoughts: bool) -> Json:
    """Convert a finished response to the answer of `generateContent`."""
    response = expect_dict(response, "response")
    parts: list[Json] = []
    for item, path in iter_dicts(response.get("output"), "output"):
        parts += item_parts(item, path, include_thoughts=include_thoughts)
    return _chunk(response, model, parts) | _closing_fields(response, parts)


def item_parts(item: Json, path: str, *, include_thoughts: bool) -> list[Json]:
    """Convert one item of the model to parts."""
    kind = item_kind(item, path)
    if kind == "function_call":
        return [{"functionCall": _function_call(item, path)}]
    if kind == "reasoning":
        return _thought_parts(item, path) if include_thoughts else []
    if kind in DROPPED_ITEMS:
        return []  # of a tool that ran at the provider
    if kind != "message":
        raise inexpressible(kind, GEMINI, path)
    content = item.get("content")
    if isinstance(content, str):
        return [{"text": content}] if content else []
    texts = [
        text_at(part, "refusal" if part.get("type") == "refusal" else "text", location)
        for part, location in iter_dicts(content, f"{path}.content")
    ]
    return [{"text": text} for text in texts if text]


def _function_call(item: Json, path: str) -> Json:
    """Convert a call; arguments that are no JSON object stay as text under one key, as in the Messages API."""
    text = text_at(item, "arguments", path)
    try:
        args = parse_tool_arguments(text)
    except ValueError:
        args = {UNPARSED_ARGUMENTS: text}
    return {"id": text_at(item, "call_id", path), "name": text_at(item, "name", path), "args": args}


def _thought_parts(item: Json, path: str) -> list[Json]:
    """Convert reasoning; its ciphertext becomes the signature of the part."""
    thought = "\n".join(reasoning_texts(item, path))
    part: Json = {"text": thought, "thought": True}
    if item.get("encrypted_content"):
        part["thoughtSignature"] = encode_signature(text_at(item, "encrypted_content", path))
    return [part] if thought or "thoughtSignature" in part else []


class GeminiEncoder:
    """Translates answer events to the chunks of `streamGenerateContent` while they arrive."""

    _THOUGHTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
    _TEXTS = ("response.output_text.delta", "response.refusal.delta")

    def __init__(self, model: str, *, include_thoughts: bool) -> None:
        self._model = model
        self._include_thoughts = include_thoughts
        self._response: Json = {}

    def feed(self, event: Json) -> Iterator[Json]:
        """Yield the chunks for one event of the answer."""
        kind = event["type"]
        if not self._response and event.get("response"):
            self._response = event["response"]
        if kind in self._TEXTS:
            yield self._part({"text": event["delta"]})
        elif kind in self._THOUGHTS and self._include_thoughts:
            yield self._part({"text": event["delta"], "thought": True})
        elif kind == "response.reasoning_summary_part.added" and event.get("summary_index") and self._include_thoughts:
            yield self._part({"text": "\n", "thought": True})
        elif kind == "response.output_item.done":
            yield from map(self._part, self._closing_parts(event["item"]))

    def _closing_parts(self, item: Json) -> list[Json]:
        """Return the parts for the end of an item: a call, or the ciphertext of reasoning; texts were sent before."""
        if item.get("type") == "reasoning":
            if not item.get("encrypted_content") or not self._include_thoughts:
                return []
            signature = encode_signature(text_at(item, "encrypted_content", "item"))
            return [{"text": "", "thought": True, "thoughtSignature": signature}]
        return [] if item.get("type") == "message" else item_parts(item, "item", include_thoughts=False)

    def finish(self, response: Json) -> Iterator[Json]:
        """Yield the last chunk; `response` is the whole answer."""
        yield _chunk(self._response or response, self._model, []) | _closing_fields(response, [{"text": ""}])

    def _part(self, part: Json) -> Json:
        return _chunk(self._response, self._model, [part])


class GeminiStreamEncoder:
    """Encodes for a client of `streamGenerateContent`; see `stream_encoders`."""

    keep_alive = b""
    """No comments: the google-genai package fails on them."""

    def __init__(self, model: str, *, include_thoughts: bool) -> None:
        self._encoder = GeminiEncoder(model, include_thoughts=include_thoughts)
        self._has_begun = False

    def event(self, event: Json) -> bytes:
        """Return the bytes for one answer event."""
        self._has_begun = True
        return b"".join(map(sse.encode, self._encoder.feed(event)))

    def finish(self, answer: Json) -> bytes:
        """Return the last chunk, or all chunks of a response that was not streamed."""
        events = b"" if self._has_begun else b"".join(map(self.event, events_from_response(answer)))
        return events + b"".join(map(sse.encode, self._encoder.finish(answer)))

    def failure(self, error: ApiError) -> bytes:
        """Return an error in place of the next chunk."""
        return sse.encode(error.body("gemini"))


class GeminiArrayEncoder(GeminiStreamEncoder):
    """Encodes for a client of `streamGenerateContent` that reads a JSON array of chunks."""

    media_type = "application/json"

    def __init__(self, model: str, *, include_thoughts: bool) -> None:
        super().__init__(model, include_thoughts=include_thoughts)
        self._separator = b"["

    def event(self, event: Json) -> bytes:
        """Return the elements for one answer event."""
        self._has_begun = True
        return b"".join(map(self._element, self._encoder.feed(event)))

    def finish(self, answer: Json) -> bytes:
        """Return the last element and the end of the array, or the whole array."""
        events = b"" if self._has_begun else b"".join(map(self.event, events_from_response(answer)))
        return events + b"".join(map(self._element, self._encoder.finish(answer))) + b"]"

    def failure(self, error: ApiError) -> bytes:
        """Return an error in place of the next element, and the end of the array."""
        return self._element(error.body("gemini")) + b"]"

    def _element(self, chunk: Json) -> bytes:
        separator, self._separator = self._separator, b",\n"
        return separator + orjson.dumps(chunk)


def gemini_from_chunks(chunks: Iterable[Any]) -> Json:
    """Build the answer of `generateContent` from the chunks of a stream; consecutive texts of one kind are joined.

    Raises:
        ConversionError: a chunk reports an error, or the stream has no end.
    """
    answer: Json = {}
    parts: list[Json] = []
    for chunk, path in iter_dicts(iter(chunks), "chunks"):
        if chunk.get("error") is not None:
            raise ConversionError(f"the stream reports an error: {short_repr(chunk['error'])}", where=path)
        candidate = expect_dict(next(iter(optional_list_at(chunk, "candidates", path)), {}), path)
        for part in optional_list_at(optional_dict_at(candidate, "content", path), "parts", path):
            _add_part(parts, expect_dict(part, path))
        last = optional_list_at(answer, "candidates", path)
        merged = {**(last[0] if last else {}), **candidate, "content": {"role": "model", "parts": parts}}
        answer |= {**chunk, "candidates": [merged]}
    if not any(candidate.get("finishReason") for candidate in answer.get("candidates", ())):
        raise ConversionError("the stream stops before the answer is finished", where="stream")
    return answer


def _add_part(parts: list[Json], part: Json) -> None:
    """Add a part; text continues the part before it if both are thoughts or both are not."""
    if parts and part.keys() <= {"text", "thought"} and parts[-1].keys() == part.keys():
        parts[-1] = {**part, "text": f"{parts[-1].get('text')}{part.get('text')}"}
    elif part.get("text") != "":
        parts.append(part)


def _chunk(response: Json, model: str, parts: list[Json]) -> Json:
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
    return {"candidates": [candidate], "modelVersion": model, "responseId": str(response.get("id") or "")}


def _closing_fields(response: Json, parts: list[Json]) -> Json:
    """Return the last candidate of an answer, with the reason of its end, and the token counts."""
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0, "finishReason": _finish_reason(response)}
    return {"candidates": [candidate], "usageMetadata": _usage(response.get("usage"))}


def _finish_reason(response: Json) -> str:
    status = response.get("status")
    if status not in (None, "completed", "incomplete"):
        raise inexpressible(status, f"{GEMINI} as the end of an answer", "status")
    reason = optional_dict_at(response, "incomplete_details", "response").get("reason")
    if reason is not None:
        return _FINISH_REASONS.get(str(reason), "OTHER")
    return "SAFETY" if _has_refusal(response) else "STOP"


def _has_refusal(response: Json) -> bool:
    contents = [item.get("content") for item in response.get("output") or () if item.get("type") == "message"]
    return any(part.get("type") == "refusal" for parts in contents if isinstance(parts, list) for part in parts)


def _usage(usage: Any) -> Json:
    """Return the token counts; thoughts are not part of the candidates in Gemini. 0 where the model says nothing."""
    usage = expect_dict(usage or {}, "usage")
    read, written = int(usage.get("input_tokens") or 0), int(usage.get("output_tokens") or 0)
    thoughts = min(usage_detail(usage, "output_tokens_details", "reasoning_tokens") or 0, written)
    return {
        "promptTokenCount": read,
        "candidatesTokenCount": written - thoughts,
        "thoughtsTokenCount": thoughts,
        "cachedContentTokenCount": usage_detail(usage, "input_tokens_details", "cached_tokens") or 0,
        "totalTokenCount": read + written,
    }
