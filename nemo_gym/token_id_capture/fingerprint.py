"""Fingerprints of conversations: the part that the model wrote, and the context before it.

Both are equal for the three dialects as far as the dialects can express the same conversation. Items are Responses
items, Chat messages or Messages turns.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

FINGERPRINT_VERSION = 2
ENVELOPE_ROLE = "_ng_request_envelope"
"""Role of the pseudo-turn that stands for instructions and tools of a request."""

_ASSISTANT_DOMAIN = b"nemo-gym-lineage"
_CONTEXT_DOMAIN = b"nemo-gym-lineage-context"
_TEXT_TYPES = frozenset({None, "", "text", "input_text", "output_text"})
_REASONING_TYPES = frozenset({"reasoning", "thinking", "redacted_thinking"})
_TOOL_BLOCKS = frozenset({"tool_use", "tool_result"})

Item = Mapping[str, Any]
AddField = Callable[[int, str], None]
ToolCall = tuple[str, str, str]
"""Call id, name and canonical arguments."""


def assistant_fingerprint(items: Iterable[Item]) -> str:
    """Return the fingerprint of the items that the model wrote, reasoning excepted; empty if there are no such items.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    digest = hashlib.sha256(_ASSISTANT_DOMAIN)
    add = _field_writer(digest.update)
    is_empty = True
    for item in items:
        if not is_model_authored(item):
            continue
        is_empty = False
        for kind, payload in _content_parts(item):
            add(0, kind)
            add(1, payload)
        _add_tool_calls(item, add, first_tag=2)
    return "" if is_empty else digest.hexdigest()


def conversation_digest(items: Iterable[Item]) -> str:
    """Return the digest of every item, reasoning excepted.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    digest = hashlib.sha256(_CONTEXT_DOMAIN)
    add = _field_writer(digest.update)
    for item in items:
        if _object(item).get("type") in _REASONING_TYPES:
            continue
        add(0, str(item.get("role") or item.get("type") or ""))
        for kind, payload in _content_parts(item):
            add(1, kind)
            add(2, payload)
        _add_tool_calls(item, add, first_tag=3)
        for call_id, output in _tool_results(item):
            add(6, call_id)
            add(7, output)
    return digest.hexdigest()


def is_model_authored(item: Item) -> bool:
    """Return whether the model wrote an item: an assistant message or a tool call."""
    return _object(item).get("role") == "assistant" or item.get("type") == "function_call"


def request_items(body: Mapping[str, Any]) -> list[Any]:
    """Return the turns of a Responses, Chat or Messages request, after a pseudo-turn for instructions and tools.

    Reasoning items are left out, because agents may drop them when they continue a conversation.
    """
    turns = body.get("messages", body.get("input"))
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    turns = [turn for turn in turns or () if not (isinstance(turn, Mapping) and turn.get("type") in _REASONING_TYPES)]
    instructions = body.get("instructions") or body.get("system")
    envelope = {"instructions": instructions, "tools": body.get("tools")}
    envelope = {name: value for name, value in envelope.items() if value}
    if not envelope:
        return turns
    return [{"role": ENVELOPE_ROLE, "content": _canonical_json(envelope)}, *turns]


def _field_writer(update: Callable[[bytes], None]) -> AddField:
    def add(tag: int, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        update(bytes((tag,)) + len(data).to_bytes(8, "big") + data)

    return add


def _object(item: Any) -> Item:
    if not isinstance(item, Mapping):
        raise ValueError(f"a conversation item must be an object, not {type(item).__name__}")
    return item


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
        kind = _object(part).get("type")
        if kind in _TEXT_TYPES:
            if part.get("text"):
                parts.append(("text", str(part["text"])))
        elif kind not in _TOOL_BLOCKS and kind not in _REASONING_TYPES:
            parts.append((str(kind), _canonical_json(part)))
    return parts


def _add_tool_calls(item: Item, add: AddField, *, first_tag: int) -> None:
    for call in _tool_calls(item):
        for offset, text in enumerate(call):
            add(first_tag + offset, text)


def _tool_calls(item: Item) -> Iterable[ToolCall]:
    """Yield the tool calls of an item in any dialect."""
    if item.get("type") == "function_call":
        yield _tool_call(item.get("call_id"), item, item.get("arguments"))
    for call in item.get("tool_calls") or ():
        function = _object(call).get("function") or call.get("custom") or {}
        yield _tool_call(call.get("id"), _object(function), function.get("arguments", function.get("input")))
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
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_dump_model)


def _dump_model(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise ValueError(f"a value of type {type(value).__name__} has no fingerprint")
    return dump(exclude_unset=True)
