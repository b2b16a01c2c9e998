"""Fingerprints of conversations: the part that the model wrote, and the context before it.

Both are equal for the three dialects as far as the dialects can express the same conversation. Items are Responses
items, Chat messages or Messages turns.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel

FINGERPRINT_VERSION = 2
ENVELOPE_ROLE = "_ng_request_envelope"
"""Role of the pseudo-turn that stands for instructions and tools of a request."""

_ASSISTANT_DOMAIN = b"nemo-gym-lineage"
_CONTEXT_DOMAIN = b"nemo-gym-lineage-context"
_TEXT_TYPES = frozenset({None, "", "text", "input_text", "output_text"})
_REASONING_TYPES = frozenset({"reasoning", "thinking", "redacted_thinking"})
_TOOL_BLOCKS = frozenset({"tool_use", "tool_result"})

Item = Mapping[str, Any]
ToolCall = tuple[str, str, str]
"""Call id, name and canonical arguments."""


class RequestItems(list[Item]):
    """The items of a request; each one is encoded once for all its fingerprints."""

    @cached_property
    def encodings(self) -> list["Encoding"]:
        return list(map(_encode_item, self))


def assistant_fingerprint(items: Iterable[Any], more: Iterable[Any] = ()) -> str:
    """Return the fingerprint of the items that the model wrote, reasoning excepted; empty if there are no such items.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    encodings = [*_encodings(items), *_encodings(more)]
    parts = [encoding.by_model for encoding in encodings if encoding.by_model is not None]
    return hashlib.sha256(_ASSISTANT_DOMAIN + b"".join(parts)).hexdigest() if parts else ""


def conversation_digest(items: Iterable[Any], length: int | None = None) -> str:
    """Return the digest of every item, or of the first `length` ones, reasoning excepted.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    parts = [encoding.in_context for encoding in _encodings(items)[:length]]
    return hashlib.sha256(_CONTEXT_DOMAIN + b"".join(parts)).hexdigest()


class Encoding(NamedTuple):
    """The bytes of one item in the two fingerprints; `by_model` is None for an item of another author."""

    by_model: bytes | None
    in_context: bytes


def _encodings(items: Iterable[Any]) -> list[Encoding]:
    return items.encodings if isinstance(items, RequestItems) else list(map(_encode_item, items))


def _encode_item(element: Any) -> Encoding:
    item = as_object(element)
    parts, calls = _content_parts(item), list(_tool_calls(item))
    by_model: list[bytes] | None = None
    if item.get("role") == "assistant" or item.get("type") == "function_call":
        by_model = []
        for kind, payload in parts:
            by_model += (_field(0, kind), _field(1, payload))
        for call in calls:
            by_model += (_field(2 + offset, text) for offset, text in enumerate(call))
    if item.get("type") in _REASONING_TYPES:
        return Encoding(None, b"")
    context = [_field(0, str(item.get("role") or item.get("type") or ""))]
    for kind, payload in parts:
        context += (_field(1, kind), _field(2, payload))
    for call in calls:
        context += (_field(3 + offset, text) for offset, text in enumerate(call))
    for call_id, output in _tool_results(item):
        context += (_field(6, call_id), _field(7, output))
    return Encoding(None if by_model is None else b"".join(by_model), b"".join(context))


def is_model_authored(item: Item) -> bool:
    """Return whether the model wrote an item: an assistant message or a tool call."""
    item = as_object(item)
    return item.get("role") == "assistant" or item.get("type") == "function_call"


def request_items(body: Any) -> RequestItems:
    """Return the turns of a Responses, Chat or Messages request, after a pseudo-turn for instructions and tools.

    Reasoning items are left out, because agents may drop them when they continue a conversation.
    """
    body = as_object(body)
    turns = body.get("messages", body.get("input"))
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    turns = [turn for turn in map(as_object, turns or ()) if turn.get("type") not in _REASONING_TYPES]
    instructions = body.get("instructions") or body.get("system")
    envelope = {"instructions": instructions, "tools": body.get("tools")}
    envelope = {name: value for name, value in envelope.items() if value}
    if not envelope:
        return RequestItems(turns)
    return RequestItems([{"role": ENVELOPE_ROLE, "content": _canonical_json(envelope)}, *turns])


def as_object(item: Any) -> Item:
    """Return a mapping unchanged, and a model as a shallow mapping of the fields that were set."""
    if isinstance(item, Mapping):
        return item
    if isinstance(item, BaseModel):
        values, names = item.__dict__, item.model_fields_set
        return {**{name: value for name, value in values.items() if name in names}, **(item.__pydantic_extra__ or {})}
    raise ValueError(f"a conversation item must be an object, not {type(item).__name__}")


def _field(tag: int, text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"%c%b%b" % (tag, len(data).to_bytes(8, "big"), data)


def _content_parts(item: Item) -> list[tuple[str, str]]:
    """Return the type and payload of each content part that is neither empty text, reasoning nor a tool block."""
    content = item.get("content")
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [("text", content)]
    if not isinstance(content, Sequence):
        raise ValueError(f"content must be text or a list of parts, not {type(content).__name__}")
    parts: list[tuple[str, str]] = []
    for element in content:
        if isinstance(element, str):
            parts.append(("text", element))
            continue
        part = as_object(element)
        kind = part.get("type")
        if kind in _TEXT_TYPES:
            if part.get("text"):
                parts.append(("text", str(part["text"])))
        elif kind not in _TOOL_BLOCKS and kind not in _REASONING_TYPES:
            parts.append((str(kind), _canonical_json(part)))
    return parts


def _tool_calls(item: Item) -> Iterable[ToolCall]:
    """Yield the tool calls of an item in any dialect."""
    if item.get("type") == "function_call":
        yield _tool_call(item.get("call_id"), item, item.get("arguments"))
    for call in map(as_object, item.get("tool_calls") or ()):
        function = as_object(call.get("function") or call.get("custom") or {})
        yield _tool_call(call.get("id"), function, function.get("arguments", function.get("input")))
    if isinstance(item.get("content"), list):
        for block in item["content"]:
            if isinstance(block, Mapping) and block.get("type") == "tool_use":
                yield _tool_call(block.get("id"), block, block.get("input"))


def _tool_call(call_id: Any, named: Item, arguments: Any) -> ToolCall:
    name, namespace = str(named.get("name") or ""), named.get("namespace")
    return str(call_id or ""), f"{namespace}__{name}" if namespace else name, _canonical_arguments(arguments)


def _tool_results(item: Item) -> Iterable[tuple[str, str]]:
    """Yield the call id and output of every tool result of an item."""
    if item.get("type") == "function_call_output":
        yield str(item.get("call_id") or ""), _result_text(item.get("output"))
    elif item.get("role") == "tool":
        yield str(item.get("tool_call_id") or ""), ""  # the output is the content of the item
    if isinstance(item.get("content"), list):
        for block in item["content"]:
            if isinstance(block, Mapping) and block.get("type") == "tool_result":
                yield str(block.get("tool_use_id") or ""), _result_text(block.get("content"))


def _result_text(output: Any) -> str:
    return output if isinstance(output, str) else _canonical_json(output)


def _canonical_arguments(arguments: Any) -> str:
    if not isinstance(arguments, str):
        return _canonical_json(arguments)
    try:
        return _canonical_json(json.loads(arguments))
    except ValueError:
        return arguments.strip()


def _canonical_json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=_dump_model, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # a number beyond 64 bits, or half of a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_dump_model)


def _dump_model(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise ValueError(f"a value of type {type(value).__name__} has no fingerprint")
    return dump(exclude_unset=True)
