"""Wire objects as the plain dicts the converters work on."""

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from nemo_gym.convert.tokens import TOKEN_FIELDS
from nemo_gym.errors import ConversionError

_AS_IS = frozenset(TOKEN_FIELDS)
_ATOMS = frozenset({str, int, float, bool, type(None)})
_TAGS = frozenset({"type", "role"})


def plain(value: Any, leave_out: Collection[str] = ()) -> Any:
    """What a wire object says, without its unset fields, as fresh dicts and lists.

    Unlike `model_dump` it keeps a `type` or `role` that was left to its default — without it nobody could tell what
    the dict is — and shares the long token arrays instead of copying them. Fields to `leave_out` are those of the
    outermost object.
    """
    try:
        if leave_out and isinstance(value, BaseModel):
            return _plain_model(value, leave_out)
        if leave_out and isinstance(value, dict):
            return _plain({key: item for key, item in value.items() if key not in leave_out})
        return _plain(value)
    except RecursionError:
        raise ConversionError("is nested too deeply", where=type(value).__name__) from None


def _plain(value: Any) -> Any:
    if type(value) in _ATOMS:
        return value
    if isinstance(value, BaseModel):
        return _plain_model(value)
    if isinstance(value, dict):
        return {key: item if key in _AS_IS or type(item) in _ATOMS else _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _plain_model(model: BaseModel, leave_out: Collection[str] = ()) -> dict[str, Any]:
    given = model.model_fields_set
    names = _names(type(model))
    said = {
        names.get(key, key): value if key in _AS_IS or type(value) in _ATOMS else _plain(value)
        for key, value in model.__dict__.items()
        if (key in given or key in _TAGS) and key not in leave_out
    }
    for key, value in (model.model_extra or {}).items():
        if key not in leave_out:
            said[key] = value if key in _AS_IS else _plain(value)
    return said


@lru_cache(maxsize=1024)
def _names(cls: type[BaseModel]) -> dict[str, str]:
    """The fields of `cls` that are called something else on the wire."""
    return {
        key: field.serialization_alias or field.alias or key
        for key, field in cls.model_fields.items()
        if field.serialization_alias or field.alias
    }
