"""A model that one server sends another in the same process, taken apart instead of written and read again.

A run request carries two models that were validated when they were made: what is asked of the model, and its response.
If the receiver declares the very same classes for them, they pass as they are; every other field goes the way of JSON,
so that the receiver sees what it would see over HTTP. Only senders that say so (`PARTS_ARE_CHECKED = True` on the
class) are trusted to have put nothing unchecked into these models.
"""

import inspect
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nemo_gym.net.encode import encode_json
from nemo_gym.serve.requests import parse_json


@dataclass(frozen=True)
class Parts:
    """Which fields of a declared body pass as they are."""

    kinds: dict[str, type[BaseModel]]
    """The fields that are declared as a class of ours and nothing else, and that class."""
    known: frozenset[str] | None
    """The fields the receiver looks at; None if it looks at all there are."""

    @classmethod
    def of(cls, declared: FieldInfo) -> "Parts | None":
        """None where the receiver looks at its input itself, before pydantic does, or expects another shape."""
        model = declared.annotation
        if not inspect.isclass(model) or not issubclass(model, BaseModel) or declared.metadata or _looks_first(model):
            return None
        fields = model.model_fields
        if any(field.alias or field.validation_alias for field in fields.values()):
            return None
        kinds = {name: field.annotation for name, field in fields.items() if _is_a_class(field)}
        ignores_others = model.model_config.get("extra", "ignore") == "ignore"
        return cls(kinds, frozenset(fields) if ignores_others else None)  # type: ignore[arg-type]

    def of_sent(self, sent: BaseModel) -> dict[str, Any] | None:
        """The fields of a sent model as the receiver's validator wants them; None if the sender vouches for nothing."""
        if not getattr(type(sent), "PARTS_ARE_CHECKED", False):
            return None
        given = set(sent.model_fields_set)
        if self.known is not None:
            given &= self.known
        passing = {
            name: value
            for name in given & self.kinds.keys()
            if type(value := getattr(sent, name, None)) is self.kinds[name]
        }
        rest = given - passing.keys()
        if rest:
            passing.update(parse_json(encode_json(sent.model_dump(include=rest, exclude_unset=True))))
        return passing


def _is_a_class(field: FieldInfo) -> bool:
    return inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel) and not field.metadata


def _looks_first(model: type[BaseModel]) -> bool:
    """Whether the model has code of its own that sees the input as it came."""
    decorators = model.__pydantic_decorators__
    own: list[Any] = [*decorators.model_validators.values(), *decorators.field_validators.values()]
    return (
        any(decorator.info.mode != "after" for decorator in own)
        or bool(decorators.root_validators or decorators.validators)
        or "__get_pydantic_core_schema__" in vars(model)
        or model.__init__ is not BaseModel.__init__
    )
