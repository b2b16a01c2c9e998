"""Checked access to JSON of other programs: every unexpected value raises a `ConversionError` with its JSON path.

The parameter `path` of these functions is the JSON path of the value or of its container, for error messages.
`to_dict` and `from_dict` convert pydantic objects to JSON data and back.
"""

import json
import logging
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import BaseModel, TypeAdapter, ValidationError

from nemo_gym.errors import ConversionError
from nemo_gym.wire.base import GENERATION_FIELDS, REQUIRED_TOKEN_FIELDS, TOKEN_FIELDS

log = logging.getLogger(__name__)

Json = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)
NewId = Callable[[str], str]
"""Returns a new id with a prefix, for example `new_id("msg")` -> `"msg_0f3c…"`."""

CHAT = "Chat Completions"
RESPONSES = "the Responses API"
MESSAGES = "the Anthropic Messages API"

_ANY_VALUE: TypeAdapter[Any] = TypeAdapter(Any)


def to_dict(value: Any) -> Any:
    """Return a copy of `value` in which every pydantic object is a dictionary of the fields that were set.

    The long token arrays of wire objects are shared, not copied.
    """
    return _ANY_VALUE.dump_python(value, exclude_unset=True, by_alias=True, warnings=False)


def from_dict(cls: type[Model], data: Json) -> Model:
    """Validate `data` as an object of `cls`.

    Raises:
        ConversionError: `data` is invalid; only the first error is reported.
    """
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(str(step) for step in first["loc"])
        raise ConversionError(first["msg"], where=f"{cls.__name__}.{location}") from error


def new_id(prefix: str) -> str:
    """Return a random id."""
    return f"{prefix}_{uuid4().hex}"


def numbered_ids() -> NewId:
    """Return a source of ids that are unique in one request, and the same whenever it is converted.

    A random id in a conversation would change the prompt of chat templates that print it, and the key of the response
    cache.
    """
    numbers = count(1)
    return lambda prefix: f"{prefix}_request_{next(numbers)}"


@lru_cache(maxsize=256)
def warn_once(text: str) -> None:
    """Log a warning the first time only."""
    log.warning(text)


def expect_dict(value: Any, path: str) -> Json:
    if not isinstance(value, dict):
        raise ConversionError(f"expected an object, got {_type_name(value)}", where=path)
    return value


def expect_list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConversionError(f"expected a list, got {_type_name(value)}", where=path)
    return value


def iter_dicts(values: Any, path: str) -> Iterator[tuple[Json, str]]:
    """Yield each object of a list or iterator, with its JSON path."""
    for index, value in enumerate(values if isinstance(values, Iterator) else expect_list(values, path)):
        location = f"{path}[{index}]"
        yield expect_dict(value, location), location


def expect_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise ConversionError(f"expected a string, got {_type_name(value)}", where=path)
    return value


def expect_count(value: Any, path: str) -> int:
    """Return a number as an integer; some servers send `3.0`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise ConversionError(f"expected a number, got {_type_name(value)}", where=path)
    return int(value)


def text_at(holder: Json, key: str, path: str) -> str:
    value = holder.get(key)
    if type(value) is str:  # the common case: do not build a path
        return value
    return expect_text(_value_at(holder, key, path), f"{path}.{key}")


def dict_at(holder: Json, key: str, path: str) -> Json:
    return expect_dict(_value_at(holder, key, path), f"{path}.{key}")


def optional_list_at(holder: Json, key: str, path: str) -> list[Any]:
    """Return the list under `key`, or an empty list if it is missing or null."""
    value = holder.get(key)
    return [] if value is None else expect_list(value, f"{path}.{key}")


def optional_dict_at(holder: Json, key: str, path: str) -> Json:
    """Return the object under `key`, or an empty object if it is missing or null."""
    value = holder.get(key)
    return {} if value is None else expect_dict(value, f"{path}.{key}")


def optional_text_at(holder: Json, key: str, path: str) -> str:
    """Return the string under `key`, or an empty string if it is missing or null."""
    value = holder.get(key)
    return "" if value is None else expect_text(value, f"{path}.{key}")


def token_fields_at(holder: Json, path: str) -> Json:
    """Return the token fields of a message or item with its generation fields; empty without token fields.

    The long arrays are not copied.

    Raises:
        ConversionError: a token field is set, but a required one is missing or not a list.
    """
    fields = {name: holder[name] for name in TOKEN_FIELDS if holder.get(name) is not None}
    if not fields:
        return fields
    missing = [name for name in REQUIRED_TOKEN_FIELDS if name not in fields]
    if missing:
        raise ConversionError(f"has {', '.join(fields)} but not {', '.join(missing)}", where=path)
    for name in REQUIRED_TOKEN_FIELDS:
        if not isinstance(fields[name], list):
            raise ConversionError("expected a list", where=f"{path}.{name}")
    return fields | {name: holder[name] for name in GENERATION_FIELDS if holder.get(name) is not None}


def inexpressible(what: Any, dialect: str, path: str, fix: str | None = None) -> ConversionError:
    """Build the error for an element that a dialect cannot express."""
    return ConversionError(f"{short_repr(what)} cannot be expressed in {dialect}", where=path, fix=fix)


def dump_json(value: Any, path: str) -> str:
    """Return `value` as JSON text, formatted as models write it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversionError("cannot be written as JSON", where=path) from error


def short_repr(value: Any) -> str:
    """Return the shortened `repr` of a value for error messages; safe for deeply nested values."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {_type_name(value)}"
    return text if len(text) <= 80 else text[:77] + "…"


def _value_at(holder: Json, key: str, path: str) -> Any:
    if key not in holder:
        raise ConversionError(f"'{key}' is missing", where=path)
    return holder[key]


def _type_name(value: Any) -> str:
    return "null" if value is None else type(value).__name__
