"""A captured stream: the answer its events add up to, and its end."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nemo_gym.convert import sse
from nemo_gym.convert.streams import completion_from_chunks, message_from_events, response_from_events
from nemo_gym.errors import ConversionError

_FOLD: dict[str, Callable[[Iterable[Any]], dict[str, Any]]] = {
    "responses": response_from_events,
    "chat": completion_from_chunks,
    "messages": message_from_events,
}

_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "message_stop", "error"})
_FAILED_EVENTS = frozenset({"response.failed", "error"})


@dataclass(frozen=True)
class StreamReading:
    """The answer of a stream and how it ended."""

    response: dict[str, Any] | None = None
    """The complete answer; None when the events do not add up to one."""
    finished: bool = False
    """The dialect's own end mark was seen."""
    failed: bool = False
    """The stream reported a failure of the model."""
    garbled: bool = False
    """An event that was not cut off is not JSON."""


def read_stream(dialect: str, body: bytes) -> StreamReading:
    """Read a whole stream. Nothing is raised: a stream that cannot be parsed has no `response`."""
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
    return StreamReading(_answer(dialect, events), finished=finished, failed=failed, garbled=garbled)


def _answer(dialect: str, events: list[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return _FOLD[dialect](events)
    except ConversionError:
        return None
