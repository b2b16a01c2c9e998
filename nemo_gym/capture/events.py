"""Parsing of a captured stream of server-sent events: the complete answer, and how the stream ended."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nemo_gym.convert import sse
from nemo_gym.convert.streams import completion_from_chunks, message_from_events, response_from_events
from nemo_gym.errors import ConversionError

_ASSEMBLERS: dict[str, Callable[[Iterable[Any]], dict[str, Any]]] = {
    "responses": response_from_events,
    "chat": completion_from_chunks,
    "messages": message_from_events,
}

_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "message_stop", "error"})
_FAILED_EVENTS = frozenset({"response.failed", "error"})


@dataclass(frozen=True)
class StreamResult:
    """The answer assembled from the events of a stream, and how the stream ended."""

    response: dict[str, Any] | None = None
    """The complete answer; None if it cannot be assembled from the events."""
    is_finished: bool = False
    """True if the stream contains the final event of its dialect."""
    is_failed: bool = False
    """True if the stream contains an error event."""
    is_garbled: bool = False
    """True if a complete event is not JSON."""


def parse_stream(dialect: str, body: bytes) -> StreamResult:
    """Parse a stream. Never raises: if the stream cannot be parsed, `response` is None."""
    events: list[dict[str, Any]] = []
    try:
        events.extend(sse.decode(body))
    except ConversionError:
        garbled = body.endswith((b"\n\n", b"\r\n\r\n"))
    else:
        garbled = False
    kinds = {kind for event in events if isinstance(kind := event.get("type"), str)}
    if dialect == "chat":
        failed = any("error" in event for event in events)
        finished = failed or body.rstrip().endswith(b"[DONE]")
    else:
        failed = bool(kinds & _FAILED_EVENTS)
        finished = bool(kinds & _LAST_EVENTS)
    return StreamResult(_assemble(dialect, events), is_finished=finished, is_failed=failed, is_garbled=garbled)


def _assemble(dialect: str, events: list[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return _ASSEMBLERS[dialect](events)
    except ConversionError:
        return None
