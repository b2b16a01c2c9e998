"""Convert wire objects (pydantic models) to dictionaries and back."""

import logging
from collections.abc import Collection
from functools import lru_cache
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from nemo_gym.convert.json_access import Json
from nemo_gym.errors import ConversionError
from nemo_gym.wire.base import TOKEN_METADATA_FIELDS

log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=BaseModel)

_ATOMS = frozenset({str, int, float, bool, type(None)})
_TAGS = frozenset({"type", "role"})


def to_dict(value: Any, leave_out: Collection[str] = ()) -> Any:
    """Return a wire object as new dictionaries and lists, without unset fields.

    Unlike `model_dump`, this keeps `type` and `role` even if unset, because they identify the kind of object, and does
    not copy the long token arrays. `leave_out` names fields of the outermost object to leave out.
    """
    try:
        if leave_out and isinstance(value, BaseModel):
            return _model_dict(value, leave_out)
        if leave_out and isinstance(value, dict):
            return _plain_value({key: item for key, item in value.items() if key not in leave_out})
        return _plain_value(value)
    except RecursionError:
        raise ConversionError("is nested too deeply", where=type(value).__name__) from None


def from_dict(cls: type[Model], data: Json) -> Model:
    """Validate `data` as an object of `cls`.

    Raises:
        ConversionError: `data` is invalid; the message is that of the first error.
    """
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(str(step) for step in first["loc"])
        raise ConversionError(first["msg"], where=f"{cls.__name__}.{location}") from error


def response_skeleton(response_id: str, created_at: Any, model: Any) -> Json:
    """Return a Responses reply without output, with the required fields."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "model": model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def new_id(prefix: str) -> str:
    """Return a random id."""
    return f"{prefix}_{uuid4().hex}"


@lru_cache(maxsize=256)
def warn_once(text: str) -> None:
    """Log a warning the first time only."""
    log.warning(text)


def _plain_value(value: Any) -> Any:
    """Return a value with all models in it converted to dictionaries."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, BaseModel):
        return _model_dict(value)
    if isinstance(value, dict):
        return {key: _plain_field(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    return value


def _plain_field(key: Any, value: Any) -> Any:
    return value if type(value) in _ATOMS or key in TOKEN_METADATA_FIELDS else _plain_value(value)


def _model_dict(model: BaseModel, leave_out: Collection[str] = ()) -> Json:
    """Return the set fields, tags and extra fields of a model as a dictionary."""
    set_fields = model.model_fields_set
    aliases = _aliases(type(model))
    data = {
        aliases.get(key, key): _plain_field(key, value)
        for key, value in model.__dict__.items()
        if (key in set_fields or key in _TAGS) and key not in leave_out
    }
    extras = model.model_extra or {}
    return data | {key: _plain_field(key, value) for key, value in extras.items() if key not in leave_out}


@lru_cache(maxsize=1024)
def _aliases(cls: type[BaseModel]) -> dict[str, str]:
    """Return the names in JSON of the fields of `cls` whose JSON name differs."""
    names = {key: field.serialization_alias or field.alias for key, field in cls.model_fields.items()}
    return {key: name for key, name in names.items() if name}
