"""The record of one captured model call: request, response, times and error category."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal
from uuid import uuid4

import aiohttp
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from nemo_gym.convert import sse
from nemo_gym.convert.chat_stream import completion_from_chunks
from nemo_gym.convert.gemini_answer import gemini_from_chunks
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.convert.response_events import FINAL_EVENTS, response_from_events
from nemo_gym.errors import ConversionError
from nemo_gym.wire.observations import Dialect, ModelRef

ErrorCategory = Literal[
    "timeout",
    "rate_limit",
    "auth",
    "not_found",
    "client_error",
    "upstream_error",
    "connection",
    "exception",
    "incomplete",
    "stream_truncated",
    "capture_parse_error",
    "cancelled",  # this and the next one are only read, in files of NeMo Gym 0.7
    "context_length_exceeded",
]

_CATEGORY_OF_STATUS: dict[int, ErrorCategory] = {
    401: "auth",
    403: "auth",
    404: "not_found",
    408: "timeout",
    429: "rate_limit",
    504: "timeout",
}

_ASSEMBLERS: dict[Dialect, Callable[[Iterable[Any]], dict[str, Any]]] = {
    "responses": response_from_events,
    "chat": completion_from_chunks,
    "messages": message_from_events,
    "gemini": gemini_from_chunks,
}
"""Functions that build the complete answer from the events of a stream."""

_USAGE_FIELDS = {
    "tokens_in": ("input_tokens", "prompt_tokens", "promptTokenCount"),
    "tokens_out": ("output_tokens", "completion_tokens", "candidatesTokenCount"),
    "tokens_total": ("total_tokens", "totalTokenCount"),
    "tokens_reasoning": (
        "output_tokens_details.reasoning_tokens",
        "completion_tokens_details.reasoning_tokens",
        "thoughtsTokenCount",
    ),
    "cached_tokens": (
        "input_tokens_details.cached_tokens",
        "prompt_tokens_details.cached_tokens",
        "cache_read_input_tokens",
        "cachedContentTokenCount",
    ),
    "cache_creation_tokens": ("cache_creation_input_tokens",),
}
"""Token counts of a record, with the paths in `usage` where the dialects report them."""


class CapturedExchange(BaseModel):
    """One line of a capture file."""

    model_config = ConfigDict(protected_namespaces=())

    model_call_id: str
    dialect: Dialect | None = None
    model_ref: ModelRef | None = None
    started_at: float | None = None
    """Seconds since the epoch."""
    completed_at: float | None = None
    latency_ms: float | None = None
    latency_ttft_ms: float | None = None
    """Time to the first byte of the response body, which may be a comment of a stream; a whole answer has one time."""
    status_code: int | None = None
    """Status of the provider if it answered with an error, else of this server; None without an answer."""
    error_category: ErrorCategory | None = None
    """None for a successful call."""
    request: dict[str, Any] | None = None
    response: Any = None
    model_answer: dict[str, Any] | None = None
    """The model's own answer with its token ids, for clients of Messages, Gemini and streamed Chat."""
    request_raw: str | None = None
    """The request body as text if it is not a JSON object, else None."""
    response_raw: str | None = None
    """The response body as text if it could not be parsed, else None."""
    client_session_id: str | None = None
    """The header `x-session-id` of the request; None without it, or with different values."""
    upstream_attempted: bool | None = None
    """Whether the server called its endpoint. This and the next three are None if the server does not report them."""
    response_source: Literal["upstream", "local"] | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None


class ModelCallRecord(CapturedExchange):
    """A captured call with what its response contains: ids, token counts, tool calls and reasoning."""

    call_index: int
    """Position among the calls of the rollout, from 0."""
    response_id: str | None = None
    model: str | None = None
    response_status: str | None = None
    finish_reason: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    tokens_total: int | None = None
    tool_calls: list[Any] = []
    reasoning_content: str | None = None
    cache_hit: bool | None = None
    cached_tokens: int | None = None
    cache_creation_tokens: int | None = None
    latency_total_ms: float | None = None

    @classmethod
    def of(cls, exchange: CapturedExchange, call_index: int) -> "ModelCallRecord":
        """Return the record of a stored exchange."""
        counts: dict[str, Any] = {**usage_of(exchange)}
        cached = counts.get("cached_tokens")
        fields = {name: getattr(exchange, name) for name in CapturedExchange.model_fields}
        return cls.model_construct(
            **fields,
            **_response_fields(exchange),
            **counts,
            call_index=call_index,
            cache_hit=None if cached is None else cached > 0,
            latency_total_ms=exchange.latency_ms,
        )


def category_of_status(status: int) -> ErrorCategory | None:
    """Return the error category of an HTTP status; None for a status below 400."""
    if status < 400:
        return None
    return _CATEGORY_OF_STATUS.get(status, "client_error" if status < 500 else "upstream_error")


def category_of_exception(failure: BaseException) -> ErrorCategory:
    """Return the error category of an exception; `incomplete` for a cancellation."""
    if isinstance(failure, aiohttp.ClientResponseError):
        return category_of_status(failure.status) or "upstream_error"
    if isinstance(failure, TimeoutError):
        return "timeout"
    if isinstance(failure, aiohttp.ClientConnectionError | ConnectionError):
        return "connection"
    return "exception" if isinstance(failure, Exception) else "incomplete"


def build_model_call_record(
    *, request_body: bytes, response_body: bytes = b"", streamed: bool = False, **fields: Any
) -> CapturedExchange:
    """Build a line of a capture file: parse both bodies, copy the other `fields`, and set the error category.

    An `error_category` in `fields`, for example of an exception, has priority over that of the status, and the status
    over that of the bodies.
    """
    record = CapturedExchange(**{"model_call_id": f"mc_{uuid4().hex}", **fields})
    request, _ = _json_value(request_body)
    if isinstance(request, dict):
        record.request = request
    else:
        record.request_raw = request_body.decode("utf-8", "replace")
    body_category = _read_response(record, response_body, streamed=streamed)
    status_category = None if record.status_code is None else category_of_status(record.status_code)
    request_category: ErrorCategory | None = "capture_parse_error" if record.request is None else None
    record.error_category = record.error_category or status_category or body_category or request_category
    return record


def usage_of(record: CapturedExchange) -> dict[str, int]:
    """Return the token counts that the response reports: `tokens_in`, `tokens_out`, …"""
    response = record.response if isinstance(record.response, Mapping) else {}
    usage = response.get("usage") or response.get("usageMetadata")
    if not isinstance(usage, Mapping):
        return {}
    counts: dict[str, int] = {}
    for name, paths in _USAGE_FIELDS.items():
        for path in paths:
            value: Any = usage
            for key in path.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if isinstance(value, int):
                counts[name] = value
    if record.dialect == "messages" and "tokens_in" in counts:
        # Only in this dialect `input_tokens` excludes cached tokens.
        cached = (usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens"))
        counts["tokens_in"] += sum(count for count in cached if isinstance(count, int))
    if record.dialect == "gemini" and {"tokens_out", "tokens_reasoning"} <= counts.keys():
        counts["tokens_out"] += counts["tokens_reasoning"]  # only in this dialect thoughts are not output
    if "tokens_total" not in counts and {"tokens_in", "tokens_out"} <= counts.keys():
        counts["tokens_total"] = counts["tokens_in"] + counts["tokens_out"]
    return counts


def _response_fields(exchange: CapturedExchange) -> dict[str, Any]:
    """Return ids, status, tool calls and reasoning of a response in any dialect; a malformed part is left out."""
    response = exchange.response if isinstance(exchange.response, Mapping) else {}
    if exchange.dialect == "gemini":
        return _gemini_fields(response)
    items = _objects(response.get("output"))
    choice = next(iter(_objects(response.get("choices"))), {})
    message: Mapping[str, Any] = next(iter(_objects([choice.get("message")])), {})
    blocks = _objects(response.get("content"))
    thoughts = [
        *(part for item in items if item.get("type") == "reasoning" for part in _objects(item.get("summary"))),
        *({"text": block.get("thinking")} for block in blocks if block.get("type") == "thinking"),
    ]
    texts = [text for part in thoughts if isinstance(text := part.get("text"), str)]
    reasoning = message.get("reasoning_content") or "\n".join(texts)
    details = response.get("incomplete_details")
    incomplete_reason = details.get("reason") if isinstance(details, Mapping) else None
    return {
        "response_id": _text_of(response.get("id")),
        "model": _text_of(response.get("model")),
        "response_status": _text_of(response.get("status")),
        "finish_reason": _text_of(choice.get("finish_reason") or response.get("stop_reason") or incomplete_reason),
        "tool_calls": [
            *(item for item in items if item.get("type") == "function_call"),
            *_objects(message.get("tool_calls")),
            *(block for block in blocks if block.get("type") == "tool_use"),
        ],
        "reasoning_content": _text_of(reasoning) or None,
    }


def _gemini_fields(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return id, finish reason, tool calls and reasoning of an answer of `generateContent`."""
    candidate = next(iter(_objects(response.get("candidates"))), {})
    content: Mapping[str, Any] = next(iter(_objects([candidate.get("content")])), {})
    parts = _objects(content.get("parts"))
    thoughts = [text for part in parts if part.get("thought") is True and isinstance(text := part.get("text"), str)]
    return {
        "response_id": _text_of(response.get("responseId")),
        "model": _text_of(response.get("modelVersion")),
        "response_status": None,
        "finish_reason": _text_of(candidate.get("finishReason")),
        "tool_calls": _objects([part.get("functionCall") for part in parts]),
        "reasoning_content": "\n".join(thoughts) or None,
    }


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _text_of(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _read_response(record: CapturedExchange, body: bytes, *, streamed: bool) -> ErrorCategory | None:
    """Set `response` or `response_raw` of a record; return the error category of the body, None without an error."""
    if not body:
        return "incomplete"
    if not streamed:
        record.response, record.response_raw = _json_value(body)
        if record.dialect == "gemini" and isinstance(record.response, list):  # a stream without `alt=sse`
            return _read_gemini_array(record, record.response)
        return "capture_parse_error" if record.response_raw is not None else None
    record.response, category = parse_stream(record.dialect or "responses", body)
    if record.response is None:
        record.response_raw = body.decode("utf-8", "replace")
    return category


def _read_gemini_array(record: CapturedExchange, chunks: list[Any]) -> ErrorCategory | None:
    """Set `response` to the answer that a JSON array of chunks contains; return the error category."""
    try:
        record.response = gemini_from_chunks(chunks)
    except ConversionError:  # `response` stays the array
        is_failed = any(isinstance(chunk, dict) and "error" in chunk for chunk in chunks)
        return "upstream_error" if is_failed else "stream_truncated"
    return None


def parse_stream(dialect: Dialect, body: bytes) -> tuple[dict[str, Any] | None, ErrorCategory | None]:
    """Parse a captured stream of server-sent events; never raises.

    Returns the complete answer, None if it cannot be assembled, and the error category, None without an error.
    """
    events: list[dict[str, Any]] = []
    is_garbled = False
    try:
        events.extend(sse.decode(body))  # keeps the events before an invalid one
    except ConversionError:
        # Either the stream was truncated within its last event, or an event is complete and not JSON (garbled).
        is_garbled = body.endswith((b"\n\n", b"\r\n\r\n"))
    response: dict[str, Any] | None
    try:
        response = _ASSEMBLERS[dialect](events)
    except ConversionError:
        response = None
    if dialect in ("chat", "gemini"):
        is_failed = any("error" in event for event in events)
        is_finished = body.rstrip().endswith(b"[DONE]") if dialect == "chat" else response is not None
    else:
        event_types = {str(event.get("type")) for event in events}
        is_failed = not event_types.isdisjoint(("response.failed", "error"))
        is_finished = not event_types.isdisjoint((*FINAL_EVENTS, "message_stop"))
    if is_failed:
        return response, "upstream_error"
    if not is_finished:
        return response, "capture_parse_error" if is_garbled else "stream_truncated"
    return response, "capture_parse_error" if response is None else None


def _json_value(body: bytes) -> tuple[Any, str | None]:
    """Return the parsed body and None, or None and the body as text."""
    try:
        return from_json(body), None
    except ValueError:
        return None, body.decode("utf-8", "replace")
