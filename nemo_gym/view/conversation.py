"""A stored record as the conversation people read: who said what, what tools were called with, what came back.

Long texts are cut and can be asked for piece by piece; a rollout may have any number of events.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nemo_gym.keys import NG_MODEL_CALL_CAPTURE_KEY
from nemo_gym.view.facts import phases_of, text_of

LONGEST_TEXT = 20_000
MOST_JUDGEMENTS = 50
TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")

Event = dict[str, Any]


def events(record: Mapping[str, Any], start: int = 0, count: int = 200) -> tuple[int, list[Event]]:
    """How many events the record has, and some of them with their texts cut."""
    items = list(_items(record))
    chosen = items[start : start + count]
    return len(items), [_shown(start + place, side, item) for place, (side, item) in enumerate(chosen)]


def event_text(record: Mapping[str, Any], number: int, start: int = 0, count: int = LONGEST_TEXT) -> str:
    """A piece of the whole text of an event."""
    items = list(_items(record))
    return _text(items[number][1])[start : start + count] if 0 <= number < len(items) else ""


def event_tokens(record: Mapping[str, Any], number: int, start: int = 0, count: int = 2000) -> dict[str, Any]:
    """The token ids and log-probabilities of an event, and how many there are, where they were recorded."""
    items = list(_items(record))
    item = items[number][1] if 0 <= number < len(items) else {}
    prompt, made, chances = (_listed(item.get(name)) for name in TOKEN_FIELDS)
    return {
        "prompt_count": len(prompt),
        "prompt_tail": prompt[-50:],
        "count": len(made),
        "ids": made[start : start + count],
        "log_probs": chances[start : start + count],
    }


def timings(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the time of the rollout went: by phase, or by recorded call where only calls were measured."""
    spent = phases_of(record)
    if any(spent.values()):
        return [{"name": name, "ms": seconds * 1000.0} for name, seconds in spent.items() if seconds]
    capture = record.get(NG_MODEL_CALL_CAPTURE_KEY)
    calls = _listed(capture.get("calls")) if isinstance(capture, dict) else []
    named = [(call.get("model_ref"), call.get("latency_ms")) for call in calls if isinstance(call, dict)]
    return [
        {"name": str(whom.get("name") if isinstance(whom, dict) else whom or "model"), "ms": float(taken)}
        for whom, taken in named
        if isinstance(taken, int | float)
    ]


def judgements(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """What judges were asked and what they answered, for the page to show like a conversation."""
    entries = [entry for name, value in record.items() if "judge" in name for entry in _listed(value)]
    return [
        {
            "asked": _side(entry, "asked"),
            "answered": _side(entry, "came"),
            "verdict": str(entry.get("verdict_label") or entry.get("verdict") or "none")[:200],
        }
        for entry in entries[:MOST_JUDGEMENTS]
        if isinstance(entry, dict) and isinstance(entry.get("response"), dict)
    ]


def _side(entry: dict[str, Any], wanted: str) -> str:
    """Everything that one side of a conversation said, cut to what a page can show."""
    whole = "\n\n".join(_text(item) for side, item in _items(entry) if side == wanted)
    return whole if len(whole) <= LONGEST_TEXT else f"{whole[:LONGEST_TEXT]}… ({len(whole)} characters)"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _items(record: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything that was said, in order, with the side it is from: what was asked, or what came of it."""
    asked = record.get("responses_create_params")
    asked = asked if isinstance(asked, dict) else {}
    if asked.get("instructions"):
        yield "asked", {"role": "system", "content": asked["instructions"]}
    given = asked.get("input")
    if isinstance(given, str):
        yield "asked", {"role": "user", "content": given}
    for item in given if isinstance(given, list) else ():
        yield "asked", _as_item(item)
    response = record.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    for item in output if isinstance(output, list) else ():
        yield "came", _as_item(item)


def _as_item(item: Any) -> dict[str, Any]:
    return item if isinstance(item, dict) else {"type": "unknown", "content": json.dumps(item, default=str)}


def _shown(number: int, side: str, item: dict[str, Any]) -> Event:
    text = _text(item)
    kind = _kind(item)
    event: Event = {
        "number": number,
        "side": side,
        "kind": kind,
        "role": str(item.get("role") or {"tool_call": "assistant", "reasoning": "assistant"}.get(kind, "tool")),
        "text": text[:LONGEST_TEXT],
        "length": len(text),
    }
    for name in ("name", "call_id", "status"):
        if isinstance(item.get(name), str):
            event[name] = item[name]
    images = list(_images(item.get("content")))
    if images:
        event["images"] = images
    if isinstance(item.get(TOKEN_FIELDS[1]), list):
        event["tokens"] = len(item[TOKEN_FIELDS[1]])
    return event


def _kind(item: dict[str, Any]) -> str:
    kinds = {"function_call": "tool_call", "function_call_output": "tool_result", "reasoning": "reasoning"}
    kind = item.get("type")
    if kind in kinds:
        return kinds[str(kind)]
    return "message" if kind in (None, "message") else "other"


def _text(item: dict[str, Any]) -> str:
    kind = _kind(item)
    if kind == "tool_call":
        return _pretty(item.get("arguments"))
    if kind == "tool_result":
        output = item.get("output")
        return _pretty(output) if isinstance(output, str) else text_of(output)
    if kind == "reasoning":
        return "\n".join(filter(None, [text_of(item.get("summary")), text_of(item.get("content"))]))
    if kind == "message":
        return text_of(item.get("content"))
    return json.dumps(item, indent=2, ensure_ascii=False, default=str)


def _pretty(text: Any) -> str:
    """JSON with its lines broken; anything else as it is."""
    if not isinstance(text, str):
        return json.dumps(text, indent=2, ensure_ascii=False, default=str)
    if len(text) > LONGEST_TEXT or text[:1] not in "{[":
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _images(content: Any) -> Iterator[str]:
    """Pictures that came with a message: only those that are in the record itself are shown."""
    for part in content if isinstance(content, list) else ():
        url = part.get("image_url") if isinstance(part, dict) else None
        url = url.get("url") if isinstance(url, dict) else url
        if isinstance(url, str):
            shown = url.startswith(("data:image/png;base64,", "data:image/jpeg;base64,", "data:image/webp;base64,"))
            yield url if shown else f"not shown: {url[:200]}"
