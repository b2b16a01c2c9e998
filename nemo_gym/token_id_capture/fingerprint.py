"""Fingerprints of conversations: the part that the model wrote, and the context before it.

Both are equal for the three dialects as far as the dialects can express the same conversation. Items are Responses
items, Chat messages or Messages turns.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, overload

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


class RequestItems(Sequence[Item]):
    """The items of a request, as mappings; each one is encoded once for all its fingerprints."""

    def __init__(self, elements: Sequence[Any] = ()) -> None:
        """Take mappings and models; a model becomes a mapping only if an item is read."""
        self._elements = elements

    def __len__(self) -> int:
        return len(self._elements)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        chosen = self._elements[index]
        return list(map(as_object, chosen)) if isinstance(index, slice) else as_object(chosen)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    @cached_property
    def encodings(self) -> list["Encoding"]:
        return list(map(_encode_item, self._elements))


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


def text_fingerprints(items: Iterable[Any]) -> list[str]:
    """Return the fingerprint of each item, as if it were the only one; empty for an item of another author."""
    parts = (encoding.by_model for encoding in _encodings(items))
    return ["" if part is None else hashlib.sha256(_ASSISTANT_DOMAIN + part).hexdigest() for part in parts]


def has_model_text(items: Iterable[Any]) -> bool:
    """Return whether the model wrote an item: `assistant_fingerprint` then returns a fingerprint.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    return any(encoding.by_model is not None for encoding in _encodings(items))


_PLAIN_FIELDS = (
    "type", "role", "content", "call_id", "tool_call_id", "name", "namespace", "arguments", "output", "tool_calls",
)  # fmt: skip
"""All fields that an encoding depends on."""
_MAX_CACHED_CHARACTERS = 1_000
"""Longest text in an item whose encoding is kept: each request of a rollout repeats the items of those before it."""


def _encode_item(element: Any) -> Encoding:
    item = _all_fields(element)
    fields = tuple(map(item.get, _PLAIN_FIELDS))
    for value in fields:
        if value is not None and (type(value) is not str or len(value) > _MAX_CACHED_CHARACTERS):
            return _encode_fields(item)
    return _encode_plain_fields(*fields)


@lru_cache(maxsize=2048)
def _encode_plain_fields(*values: str | None) -> Encoding:
    """Return the encoding of an item whose fields are short texts."""
    return _encode_fields(dict(zip(_PLAIN_FIELDS, values, strict=True)))


def _encode_fields(item: Item) -> Encoding:
    kind, role = item.get("type"), item.get("role")
    if kind in _REASONING_TYPES:
        return _NO_ENCODING
    is_by_model = role == "assistant" or kind == "function_call"
    by_model: list[bytes] = []
    context = [b"\0", _with_size(str(role or kind or ""))]
    for part_kind, payload in _content_parts(item):
        label, text = _TEXT if part_kind == "text" else _with_size(part_kind), _with_size(payload)
        context += (b"\1", label, b"\2", text)
        by_model += (b"\0", label, b"\1", text)
    for call in _tool_calls(item):
        call_id, name, arguments = map(_with_size, call)
        context += (b"\3", call_id, b"\4", name, b"\5", arguments)
        by_model += (b"\2", call_id, b"\3", name, b"\4", arguments)
    for call_id, output in map(_pair_with_sizes, _tool_results(item)):
        context += (b"\6", call_id, b"\7", output)
    return Encoding(b"".join(by_model) if is_by_model else None, b"".join(context))


def is_model_authored(item: Any) -> bool:
    """Return whether the model wrote an item: an assistant message or a tool call."""
    fields = _all_fields(item)
    return fields.get("role") == "assistant" or fields.get("type") == "function_call"


def request_items(body: Any) -> RequestItems:
    """Return the turns of a Responses, Chat or Messages request, after a pseudo-turn for instructions and tools.

    Reasoning items are left out, because agents may drop them when they continue a conversation.
    """
    fields = _all_fields(body)
    turns = fields.get("messages", fields.get("input"))
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    turns = [turn for turn in turns or () if _all_fields(turn).get("type") not in _REASONING_TYPES]
    instructions = fields.get("instructions") or fields.get("system")
    envelope = {"instructions": instructions, "tools": fields.get("tools")}
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


def _all_fields(item: Any) -> Item:
    """Return a mapping unchanged, and all fields of a model: defaults do not change a fingerprint."""
    if type(item) is dict:
        return item
    if isinstance(item, BaseModel):
        extra = item.__pydantic_extra__
        return {**item.__dict__, **extra} if extra else item.__dict__
    return as_object(item)


def _with_size(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "big") + data


def _pair_with_sizes(texts: tuple[str, str]) -> tuple[bytes, bytes]:
    return _with_size(texts[0]), _with_size(texts[1])


_TEXT = _with_size("text")
_NO_ENCODING = Encoding(None, b"")


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
        part = _all_fields(element)
        kind = part.get("type")
        if kind in _TEXT_TYPES:
            if part.get("text"):
                parts.append(("text", str(part["text"])))
        elif kind not in _TOOL_BLOCKS and kind not in _REASONING_TYPES:
            parts.append((str(kind), _canonical_json(as_object(element))))
    return parts


def _tool_calls(item: Item) -> Iterable[ToolCall]:
    """Yield the tool calls of an item in any dialect."""
    if item.get("type") == "function_call":
        yield _tool_call(item.get("call_id"), item, item.get("arguments"))
    for call in map(_all_fields, item.get("tool_calls") or ()):
        function = _all_fields(call.get("function") or call.get("custom") or {})
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
    # The calls of a conversation are encoded again with each request that contains them.
    return _parse_arguments(arguments) if len(arguments) > _CACHED_ARGUMENTS else _cached_arguments(arguments)


def _parse_arguments(text: str) -> str:
    try:
        return _canonical_json(json.loads(text))
    except ValueError:
        return text.strip()


_CACHED_ARGUMENTS = 2_000
"""Arguments up to this length are kept with their canonical form."""
_cached_arguments = lru_cache(maxsize=1024)(_parse_arguments)


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
