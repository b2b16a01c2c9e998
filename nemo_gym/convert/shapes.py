"""Reading foreign JSON with care: every surprise becomes a `ConversionError` that names the place."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from nemo_gym.errors import ConversionError

Json = dict[str, Any]
NewId = Callable[[str], str]
"""Prefix -> fresh id, for example `new_id("msg") -> "msg_0f3c…"`."""

CHAT = "Chat Completions"
RESPONSES = "the Responses API"
MESSAGES = "the Anthropic Messages API"


def as_dict(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise ConversionError(f"expected an object, got {_kind(value)}", where=where)
    return value


def as_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConversionError(f"expected a list, got {_kind(value)}", where=where)
    return value


def each_dict(values: Any, where: str) -> Iterator[tuple[Json, str]]:
    """The objects of a list, each with its place; `values` may also be a stream."""
    for index, value in enumerate(values if isinstance(values, Iterator) else as_list(values, where)):
        place = f"{where}[{index}]"
        yield as_dict(value, place), place


def as_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConversionError(f"expected a string, got {_kind(value)}", where=where)
    return value


def as_count(value: Any, where: str) -> int:
    """A whole number; JSON written by others sometimes says `3.0`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value in (_INF, -_INF):
        raise ConversionError(f"expected a number, got {_kind(value)}", where=where)
    return int(value)


def text_at(holder: Json, key: str, where: str) -> str:
    value = holder.get(key)
    if type(value) is str:  # the way nearly all of a conversation goes: no place to spell out
        return value
    return as_text(_required(holder, key, where), f"{where}.{key}")


def dict_at(holder: Json, key: str, where: str) -> Json:
    return as_dict(_required(holder, key, where), f"{where}.{key}")


def list_at(holder: Json, key: str, where: str) -> list[Any]:
    return as_list(_required(holder, key, where), f"{where}.{key}")


def optional_list_at(holder: Json, key: str, where: str) -> list[Any]:
    """The list under `key`; nothing there, or null, is an empty list."""
    value = holder.get(key)
    return [] if value is None else as_list(value, f"{where}.{key}")


def optional_dict_at(holder: Json, key: str, where: str) -> Json:
    """The object under `key`; nothing there, or null, is an empty object."""
    value = holder.get(key)
    return {} if value is None else as_dict(value, f"{where}.{key}")


def optional_text_at(holder: Json, key: str, where: str) -> str:
    """The string under `key`; nothing there, or null, is the empty string."""
    value = holder.get(key)
    return "" if value is None else as_text(value, f"{where}.{key}")


def unsayable(what: Any, dialect: str, where: str, fix: str | None = None) -> ConversionError:
    return ConversionError(f"{shown(what)} cannot be said in {dialect}", where=where, fix=fix)


def dump_json(value: Any, where: str) -> str:
    """`value` as compact JSON text, the way a model would write it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversionError("is not JSON that can be written down", where=where) from error


def _required(holder: Json, key: str, where: str) -> Any:
    if key not in holder:
        raise ConversionError(f"'{key}' is missing", where=where)
    return holder[key]


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def shown(value: Any) -> str:
    """A value as it may appear in a message: short, and never itself a cause of trouble."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {_kind(value)}"
    return text if len(text) <= 80 else text[:77] + "…"


_INF = float("inf")
