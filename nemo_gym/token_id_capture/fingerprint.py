"""Fingerprints of conversations: the part that the model wrote, and the context before it.

Both are equal for the three dialects as far as the dialects can express the same conversation. Items are Responses
items, Chat messages or Messages turns.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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


def assistant_fingerprint(items: Iterable[Any]) -> str:
    """Return the fingerprint of the items that the model wrote, reasoning excepted; empty if there are no such items.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    fields: list[bytes] = [_ASSISTANT_DOMAIN]
    is_empty = True
    for item in map(as_object, items):
        if item.get("role") != "assistant" and item.get("type") != "function_call":
            continue
        is_empty = False
        for kind, payload in _content_parts(item):
            _add_field(fields, 0, kind)
            _add_field(fields, 1, payload)
        _add_tool_calls(item, fields, first_tag=2)
    return "" if is_empty else hashlib.sha256(b"".join(fields)).hexdigest()


def conversation_digest(items: Iterable[Any]) -> str:
    """Return the digest of every item, reasoning excepted.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    fields: list[bytes] = [_CONTEXT_DOMAIN]
    for item in map(as_object, items):
        if item.get("type") in _REASONING_TYPES:
            continue
        _add_field(fields, 0, str(item.get("role") or item.get("type") or ""))
        for kind, payload in _content_parts(item):
            _add_field(fields, 1, kind)
            _add_field(fields, 2, payload)
        _add_tool_calls(item, fields, first_tag=3)
        for call_id, output in _tool_results(item):
            _add_field(fields, 6, call_id)
            _add_field(fields, 7, output)
    return hashlib.sha256(b"".join(fields)).hexdigest()


def is_model_authored(item: Item) -> bool:
    """Return whether the model wrote an item: an assistant message or a tool call."""
    item = as_object(item)
    return item.get("role") == "assistant" or item.get("type") == "function_call"


def request_items(body: Any) -> list[Any]:
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
        return turns
    return [{"role": ENVELOPE_ROLE, "content": _canonical_json(envelope)}, *turns]


def as_object(item: Any) -> Item:
    """Return a mapping unchanged, and a model as a shallow mapping of the fields that were set."""
    if isinstance(item, Mapping):
        return item
    if isinstance(item, BaseModel):
        values, names = item.__dict__, item.model_fields_set
        return {**{name: value for name, value in values.items() if name in names}, **(item.__pydantic_extra__ or {})}
    raise ValueError(f"a conversation item must be an object, not {type(item).__name__}")


def _add_field(fields: list[bytes], tag: int, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    fields.append(bytes((tag,)) + len(data).to_bytes(8, "big") + data)


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
    for part in content:
        if isinstance(part, str):
            parts.append(("text", part))
            continue
        part = as_object(part)
        kind = part.get("type")
        if kind in _TEXT_TYPES:
            if part.get("text"):
                parts.append(("text", str(part["text"])))
        elif kind not in _TOOL_BLOCKS and kind not in _REASONING_TYPES:
            parts.append((str(kind), _canonical_json(part)))
    return parts


def _add_tool_calls(item: Item, fields: list[bytes], *, first_tag: int) -> None:
    for call in _tool_calls(item):
        for offset, text in enumerate(call):
            _add_field(fields, first_tag + offset, text)


def _tool_calls(item: Item) -> Iterable[ToolCall]:
    """Yield the tool calls of an item in any dialect."""
    if item.get("type") == "function_call":
        yield _tool_call(item.get("call_id"), item, item.get("arguments"))
    for call in item.get("tool_calls") or ():
        call = as_object(call)
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
