"""Convert a stored record into events: its messages, tool calls and tool results.

Events are read in pages, and long texts in pieces, because a rollout may have any number of events of any length.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from nemo_gym.view.table_row import content_text, phase_seconds
from nemo_gym.wire.stored_rollout import StoredRollout, finite_float

LONGEST_TEXT = 20_000
MAX_JUDGEMENTS = 50
MAX_HITS = 10_000
PROMPT_TAIL = 50
GENERATED_IDS = "generation_token_ids"
TOKEN_FIELDS = ("prompt_token_ids", GENERATED_IDS, "generation_log_probs")
REQUEST, RESPONSE = "asked", "came"
"""The two sides of a conversation, by the names that the page's JavaScript uses."""
IMAGE_PREFIXES = ("data:image/png;base64,", "data:image/jpeg;base64,", "data:image/webp;base64,")

_KINDS = {
    "function_call": "tool_call",
    "function_call_output": "tool_result",
    "reasoning": "reasoning",
    "message": "message",
    None: "message",
}
"""Type of an item -> kind of its event."""

Event = dict[str, Any]


def read_events(record: Mapping[str, Any], start: int = 0, count: int | None = None) -> tuple[int, list[Event]]:
    """Return the number of events of a record, and `count` of them (or all) from `start` on, with long texts cut."""
    items = list(_items(record))
    chosen = items[start : None if count is None else start + count]
    return len(items), [_event(number, side, item) for number, (side, item) in enumerate(chosen, start)]


def event_text(record: Mapping[str, Any], number: int, start: int = 0, count: int = LONGEST_TEXT) -> str:
    """Return `count` characters of the text of an event, from `start` on."""
    return _text(_item(record, number))[start : start + count]


def find_in_events(record: Mapping[str, Any], phrase: str) -> list[int]:
    """Return the numbers of the events whose whole text contains `phrase` in any case, or whose tool has it as name."""
    text = phrase.casefold()
    if not text:
        return []
    hits = (
        number
        for number, (_, item) in enumerate(_items(record))
        if text in _text(item).casefold() or text in str(item.get("name") or "").casefold()
    )
    return list(islice(hits, MAX_HITS))


def event_tokens(record: Mapping[str, Any], number: int, start: int = 0, count: int = 2000) -> dict[str, Any]:
    """Return `count` generated tokens from `start` on, and the last tokens of the prompt; no tokens if not recorded."""
    item = _item(record, number)
    prompt, generated, log_probs = (_list(item.get(name)) for name in TOKEN_FIELDS)
    return {
        "prompt_count": len(prompt),
        "prompt_tail": prompt[-PROMPT_TAIL:],
        "count": len(generated),
        "ids": generated[start : start + count],
        "log_probs": log_probs[start : start + count],
    }


def read_timings(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the time of the rollout by phase; if phases were not measured, by captured model call."""
    stored = StoredRollout(record)
    phases = phase_seconds(stored)
    if any(phases.values()):
        return [{"name": name, "ms": seconds * 1000.0} for name, seconds in phases.items() if seconds]
    timings = []
    for call in stored.captured_calls:
        model, latency = call.get("model_ref"), call.get("latency_ms")
        if isinstance(latency, int | float):
            name = model.get("name") if isinstance(model, dict) else model or "model"
            timings.append({"name": str(name), "ms": float(latency)})
    return timings


def read_judgements(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return request, answer and verdict of judge calls, from the lists in fields whose name contains `judge`."""
    entries = [entry for name, value in record.items() if "judge" in name for entry in _list(value)]
    return [
        {
            "asked": _side_text(entry, REQUEST),
            "answered": _side_text(entry, RESPONSE),
            "verdict": str(entry.get("verdict_label") or entry.get("verdict") or "none")[:200],
            **_judge_cost(entry),
        }
        for entry in entries[:MAX_JUDGEMENTS]
        if isinstance(entry, dict) and isinstance(entry.get("response"), dict)
    ]


def _judge_cost(entry: dict[str, Any]) -> dict[str, Any]:
    """Return tokens and seconds of a judge call, where recorded."""
    tokens, seconds = StoredRollout(entry).total_tokens, finite_float(entry.get("seconds"))
    return {**({"tokens": tokens} if tokens else {}), **({"seconds": seconds} if seconds is not None else {})}


def _side_text(entry: dict[str, Any], side: str) -> str:
    """Join all texts of one side of a conversation; a long result is cut."""
    text = "\n\n".join(_text(item) for item_side, item in _items(entry) if item_side == side)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _item(record: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the item of an event; an empty message if there is no such event."""
    items = list(_items(record))
    return items[number][1] if 0 <= number < len(items) else {"content": ""}


def _items(record: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every item of the request and of the response, in order, with its side."""
    stored = StoredRollout(record)
    request_input = stored.request.get("input")
    if stored.request.get("instructions"):
        yield REQUEST, {"role": "system", "content": stored.request["instructions"]}
    if isinstance(request_input, str):
        yield REQUEST, {"role": "user", "content": request_input}
    for item in _list(request_input):
        yield REQUEST, _as_mapping(item)
    for item in stored.output:
        yield RESPONSE, _as_mapping(item)


def _as_mapping(item: Any) -> dict[str, Any]:
    return item if isinstance(item, dict) else {"type": "unknown", "content": json.dumps(item, default=str)}


def _event(number: int, side: str, item: dict[str, Any]) -> Event:
    """Build the event of an item, with its text cut."""
    text = _text(item)
    kind = _kind(item)
    event: Event = {
        "number": number,
        "side": side,
        "kind": kind,
        "role": str(item.get("role") or ("assistant" if kind in ("tool_call", "reasoning") else "tool")),
        "text": text[:LONGEST_TEXT],
        "length": len(text),
    }
    for name in ("name", "call_id", "status"):
        if isinstance(item.get(name), str):
            event[name] = item[name]
    images = list(_images(item.get("output" if kind == "tool_result" else "content")))
    if images:
        event["images"] = images
    if isinstance(item.get(GENERATED_IDS), list):
        event["tokens"] = len(item[GENERATED_IDS])
    return event


def _kind(item: dict[str, Any]) -> str:
    kind = item.get("type")
    return _KINDS.get(kind, "other") if isinstance(kind, str | None) else "other"


def _text(item: dict[str, Any]) -> str:
    """Return the whole text of an item, by its kind."""
    kind = _kind(item)
    if kind == "tool_call":
        return _pretty_json(item.get("arguments"))
    if kind == "tool_result":
        output = item.get("output")
        return _pretty_json(output) if isinstance(output, str) else content_text(output)
    if kind == "reasoning":
        return "\n".join(filter(None, [content_text(item.get("summary")), content_text(item.get("content"))]))
    if kind == "message":
        return content_text(item.get("content"))
    return json.dumps(item, indent=2, ensure_ascii=False, default=str)


def _pretty_json(text: Any) -> str:
    """Indent JSON; return any other text unchanged."""
    if not isinstance(text, str):
        return json.dumps(text, indent=2, ensure_ascii=False, default=str)
    if len(text) > LONGEST_TEXT or text[:1] not in "{[":
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _images(content: Any) -> Iterator[str]:
    """Yield the images of a message that are embedded as data URLs; for other URLs a note that they are not shown."""
    for part in _list(content):
        url = part.get("image_url") if isinstance(part, dict) else None
        url = url.get("url") if isinstance(url, dict) else url
        if isinstance(url, str):
            yield url if url.startswith(IMAGE_PREFIXES) else f"not shown: {url[:200]}"
