"""Checked access to foreign JSON: every unexpected value raises a `ConversionError` with its location."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from nemo_gym.errors import ConversionError
from nemo_gym.wire.tokens import REQUIRED_TOKEN_FIELDS, TOKEN_FIELDS

Json = dict[str, Any]
NewId = Callable[[str], str]
"""Prefix -> fresh id, for example `new_id("msg") -> "msg_0f3c…"`."""

CHAT = "Chat Completions"
RESPONSES = "the Responses API"
MESSAGES = "the Anthropic Messages API"


def expect_dict(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise ConversionError(f"expected an object, got {_type_name(value)}", where=where)
    return value


def expect_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConversionError(f"expected a list, got {_type_name(value)}", where=where)
    return value


def iter_dicts(values: Any, where: str) -> Iterator[tuple[Json, str]]:
    """Yield the objects of a list, each with its location; `values` may also be a stream."""
    for index, value in enumerate(values if isinstance(values, Iterator) else expect_list(values, where)):
        location = f"{where}[{index}]"
        yield expect_dict(value, location), location


def expect_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConversionError(f"expected a string, got {_type_name(value)}", where=where)
    return value


def expect_count(value: Any, where: str) -> int:
    """Return a whole number; some servers write `3.0`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise ConversionError(f"expected a number, got {_type_name(value)}", where=where)
    return int(value)


def text_at(holder: Json, key: str, where: str) -> str:
    value = holder.get(key)
    if type(value) is str:  # the common case: build no location
        return value
    return expect_text(_value_at(holder, key, where), f"{where}.{key}")


def dict_at(holder: Json, key: str, where: str) -> Json:
    return expect_dict(_value_at(holder, key, where), f"{where}.{key}")


def optional_list_at(holder: Json, key: str, where: str) -> list[Any]:
    """Return the list under `key`, or an empty list if it is missing or null."""
    value = holder.get(key)
    return [] if value is None else expect_list(value, f"{where}.{key}")


def optional_dict_at(holder: Json, key: str, where: str) -> Json:
    """Return the object under `key`, or an empty object if it is missing or null."""
    value = holder.get(key)
    return {} if value is None else expect_dict(value, f"{where}.{key}")


def optional_text_at(holder: Json, key: str, where: str) -> str:
    """Return the string under `key`, or an empty string if it is missing or null."""
    value = holder.get(key)
    return "" if value is None else expect_text(value, f"{where}.{key}")


def token_fields_at(holder: Json, where: str) -> Json:
    """Return the token fields of a message or item: all or none. The arrays are long and not copied.

    Raises:
        ConversionError: some required fields are set and some are not.
    """
    fields = {name: holder[name] for name in TOKEN_FIELDS if holder.get(name) is not None}
    if not fields:
        return fields
    missing = [name for name in REQUIRED_TOKEN_FIELDS if name not in fields]
    if missing:
        raise ConversionError(f"has {', '.join(fields)} but not {', '.join(missing)}", where=where)
    for name in REQUIRED_TOKEN_FIELDS:
        if not isinstance(fields[name], list):
            raise ConversionError("expected a list", where=f"{where}.{name}")
    return fields


def inexpressible(what: Any, dialect: str, where: str, fix: str | None = None) -> ConversionError:
    """Return the error for something that a dialect cannot express."""
    return ConversionError(f"{short_repr(what)} cannot be expressed in {dialect}", where=where, fix=fix)


def dump_json(value: Any, where: str) -> str:
    """Return `value` as JSON text in the form a model writes."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversionError("cannot be written as JSON", where=where) from error


def short_repr(value: Any) -> str:
    """Return the `repr` of a value for messages: short, and safe for deeply nested values."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {_type_name(value)}"
    return text if len(text) <= 80 else text[:77] + "…"


def _value_at(holder: Json, key: str, where: str) -> Any:
    if key not in holder:
        raise ConversionError(f"'{key}' is missing", where=where)
    return holder[key]


def _type_name(value: Any) -> str:
    return "null" if value is None else type(value).__name__
