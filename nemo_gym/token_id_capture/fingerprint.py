"""Fingerprints of conversations: the part that the model wrote, and the context before it.

Both are equal for the three dialects as far as the dialects can express the same conversation. Items are Responses
items, Chat messages or Messages turns.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import orjson
from pydantic import BaseModel

if TYPE_CHECKING:
    from hashlib import _Hash

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
    """The items of a request, as mappings; each one is encoded and hashed once for all its fingerprints."""

    __slots__ = ("_context", "_elements", "_encodings", "_model_hash")

    def __init__(self, elements: Sequence[Any] = ()) -> None:
        """Take mappings and models; a model becomes a mapping only if an item is read."""
        self._elements = elements
        self._encodings: list[Encoding] | None = None
        self._model_hash: _Hash | None = None
        self._context: tuple[int, _Hash] | None = None

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

    @property
    def encodings(self) -> list["Encoding"]:
        if self._encodings is None:
            self._encodings = list(map(_encode_item, self._elements))
        return self._encodings

    def model_hash(self) -> "_Hash | None":
        """Return the hash of the items that the model wrote; None without such items. Copy it to extend it."""
        if self._model_hash is None:
            parts = _parts_by_model(self.encodings)
            self._model_hash = hashlib.sha256(_ASSISTANT_DOMAIN + b"".join(parts)) if parts else None
        return self._model_hash

    def context_hash(self, length: int) -> "_Hash":
        """Return the hash of the first `length` items. The hash of a shorter beginning is extended."""
        done, digest = self._context or (length + 1, None)
        if digest is None or length < done:
            parts = [part for _, part in self.encodings[:length]]
            digest = hashlib.sha256(_CONTEXT_DOMAIN + b"".join(parts))
        elif length > done:
            digest = digest.copy()
            digest.update(b"".join([part for _, part in self.encodings[done:length]]))
        self._context = length, digest
        return digest


def assistant_fingerprint(items: Iterable[Any], more: Iterable[Any] = ()) -> str:
    """Return the fingerprint of the items that the model wrote, reasoning excepted; empty if there are no such items.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    digest = items.model_hash() if isinstance(items, RequestItems) else RequestItems([*items]).model_hash()
    parts = _parts_by_model(_encodings(more)) if more else []
    if parts:
        digest = hashlib.sha256(_ASSISTANT_DOMAIN) if digest is None else digest.copy()
        digest.update(b"".join(parts))
    return "" if digest is None else digest.hexdigest()


def conversation_digest(items: Iterable[Any], length: int | None = None) -> str:
    """Return the digest of every item, or of the first `length` ones, reasoning excepted.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    items = items if isinstance(items, RequestItems) else RequestItems([*items])
    return items.context_hash(len(items) if length is None else min(length, len(items))).hexdigest()


class Encoding(NamedTuple):
    """The bytes of one item in the two fingerprints; `by_model` is None for an item of another author."""

    by_model: bytes | None
    in_context: bytes


def _encodings(items: Iterable[Any]) -> list[Encoding]:
    return items.encodings if isinstance(items, RequestItems) else list(map(_encode_item, items))


def _parts_by_model(encodings: list[Encoding]) -> list[bytes]:
    return [part for part, _ in encodings if part is not None]


def text_fingerprints(items: Iterable[Any]) -> list[str]:
    """Return the fingerprint of each item, as if it were the only one; empty for an item of another author."""
    parts = (encoding.by_model for encoding in _encodings(items))
    return ["" if part is None else hashlib.sha256(_ASSISTANT_DOMAIN + part).hexdigest() for part in parts]


def has_model_text(items: Iterable[Any]) -> bool:
    """Return whether the model wrote an item: `assistant_fingerprint` then returns a fingerprint.

    Raises:
        ValueError: an item is not an object, or its content has an unknown form.
    """
    return bool(_parts_by_model(_encodings(items)))


_PLAIN_FIELDS = (
    "type", "role", "content", "call_id", "tool_call_id", "name", "namespace", "arguments", "output", "tool_calls",
)  # fmt: skip
"""All fields that an encoding depends on."""
_NAMES_OF_PLAIN_FIELDS = frozenset(_PLAIN_FIELDS)
_MAX_CACHED_CHARACTERS = 1_000
"""Longest text in an item whose encoding is kept: each request of a rollout repeats the items of those before it."""


_MAX_CACHED_ENCODINGS = 4096

_short_encodings: dict[Any, Encoding] = {}
"""Encodings of items whose fields are short texts, by these texts: agents may change an item."""
_field_getters: dict[type, Callable[[Any], Any]] = {}
"""For each class of items, the function that returns the key of an item in `_short_encodings`."""


def _encode_item(element: Any) -> Encoding:
    kind = type(element)
    try:
        key = (_field_getters.get(kind) or _field_getter(kind))(element)
        encoding = _short_encodings.get(key)
    except (KeyError, TypeError):  # an item of another class, without a field, with content in parts or tool calls
        return _encode_fields(_all_fields(element))
    return encoding or _encode_and_keep(element, key)


def _field_getter(kind: type) -> Callable[[Any], Any]:
    names = [name for name in _PLAIN_FIELDS if name in getattr(kind, "model_fields", ())]

    def values_of_dict(item: Any) -> Any:
        return tuple(map(item.get, _PLAIN_FIELDS))

    def values_of_model(item: Any) -> Any:
        extra = item.__pydantic_extra__
        if extra and not _NAMES_OF_PLAIN_FIELDS.isdisjoint(extra):
            raise KeyError("extra fields are part of the encoding")
        return kind, values(item.__dict__)

    def no_values(_: Any) -> Any:
        raise KeyError(kind)

    values = itemgetter(*names) if names else no_values
    is_model = issubclass(kind, BaseModel)
    getter = values_of_dict if kind is dict else values_of_model if is_model else no_values
    return _field_getters.setdefault(kind, getter)


def _encode_and_keep(element: Any, key: Any) -> Encoding:
    """Return the encoding of an item, and keep it if all its fields are short texts."""
    fields = _all_fields(element)
    encoding = _encode_fields(fields)
    values = [fields[name] for name in _PLAIN_FIELDS if fields.get(name) is not None]
    if all(type(value) is str and len(value) <= _MAX_CACHED_CHARACTERS for value in values):
        if len(_short_encodings) >= _MAX_CACHED_ENCODINGS:
            _short_encodings.clear()
        _short_encodings[key] = encoding
    return encoding


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
    turns = [turn for turn in turns or () if _kind(turn) not in _REASONING_TYPES]
    instructions = fields.get("instructions") or fields.get("system")
    envelope = {"instructions": instructions, "tools": fields.get("tools")}
    envelope = {name: value for name, value in envelope.items() if value}
    if not envelope:
        return RequestItems(turns)
    return RequestItems([{"role": ENVELOPE_ROLE, "content": _canonical_json(envelope)}, *turns])


def _kind(item: Any) -> Any:
    return getattr(item, "type", None) if isinstance(item, BaseModel) else _all_fields(item).get("type")


def as_object(item: Any) -> Item:
    """Return a mapping unchanged, and a model as a shallow mapping of the fields that were set."""
    if isinstance(item, BaseModel):
        fields, extra = item.__dict__.copy(), item.__pydantic_extra__
        for name in fields.keys() - item.__pydantic_fields_set__:
            del fields[name]
        return {**fields, **extra} if extra else fields
    if isinstance(item, Mapping):
        return item
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
