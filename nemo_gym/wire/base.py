"""The base of every wire model, and the two rules they share.

Objects of another package (openai, anthropic) are taken for what they say: they are dumped without their unset fields
and validated like any dictionary. Free-form values (unknown fields, JSON schemas) pass as they are, but only as deep
and with only such text as can be written out as JSON again.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
    with_config,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

T = TypeVar("T")

MAX_DEPTH = 100
"""Levels of nesting in a free-form value; the JSON writers give up at about 250."""

MAX_TEXT = 2**30
"""Characters in one string. Its real use: pydantic checks the encoding only of strings that have a limit."""

WIRE_CONFIG = ConfigDict(
    extra="allow",
    protected_namespaces=(),
    ser_json_inf_nan="strings",
    str_max_length=MAX_TEXT,
)


def as_plain(value: Any) -> Any:
    """A pydantic object as the dictionary it was made from; anything else unchanged."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True, by_alias=True, warnings=False)
    return value


def _children(container: Any) -> Iterator[Any]:
    if isinstance(container, dict):
        yield from container
        yield from container.values()
    else:
        yield from container


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("string_unicode", "Text contains a lone surrogate and cannot be encoded") from None


def _is_harmless(value: Any) -> bool:
    """Whether `value` can be written, with so few brackets that it cannot be too deep. A no means: look closely."""
    try:
        written = orjson.dumps(value)
    except TypeError:
        return False
    return written.count(b"{") + written.count(b"[") <= MAX_DEPTH


def free_form(value: Any) -> Any:
    """`value` itself, if it can be written as JSON: not too deep, no cycle, no half characters."""
    value = as_plain(value)
    if _is_harmless(value):
        return value
    if isinstance(value, str):
        _check_text(value)
    level = [value] if isinstance(value, (dict, list, tuple)) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return value
        # One entry per object: a cycle stays on every level and is found by its depth, in bounded time.
        below: dict[int, Any] = {}
        for container in level:
            for child in _children(container):
                if isinstance(child, str):
                    _check_text(child)
                elif isinstance(child, (dict, list, tuple)):
                    below[id(child)] = child
        level = list(below.values())
    if level:
        raise PydanticCustomError("too_deep", "Nested more than {depth} levels deep", {"depth": MAX_DEPTH})
    return value


Json = Annotated[Any, AfterValidator(free_form)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(as_plain), AfterValidator(free_form)]
OpenForeign = BeforeValidator(as_plain)
"""For unions and typed dictionaries, which have no class of ours to open foreign objects."""


class _DumpByClass:
    """Marks a union whose members are dumped by their own class.

    Pydantic would ask the discriminator again, build each member as Python objects and only then write JSON.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        schema["serialization"] = core_schema.simple_ser_schema("any")  # type: ignore[index]
        return schema


DUMP_BY_CLASS = _DumpByClass()


def _schema_with_extras(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    schema = handler(source)
    resolved: dict[str, Any] = handler.resolve_ref_schema(schema)  # type: ignore[assignment]
    if resolved["type"] == "typed-dict":
        resolved["extras_schema"] = handler.generate_schema(Json)
    return schema


def open_dict(typed_dict: type[T]) -> type[T]:
    """Class decorator: a typed dictionary that keeps unknown keys, as `WireModel` keeps unknown fields."""
    with_config(WIRE_CONFIG)(typed_dict)
    setattr(typed_dict, "__get_pydantic_core_schema__", staticmethod(_schema_with_extras))  # noqa: B010 - not declared
    return typed_dict


def text_or_list(value: Any) -> str:
    """The branch of a field that takes a text or a list, so that an error speaks of the one that was meant."""
    return "text" if isinstance(value, str) else "list"


class WireModel(BaseModel):
    """A model that keeps unknown fields and accepts other packages' objects."""

    model_config = WIRE_CONFIG

    tagged_by: ClassVar[frozenset[str]] = frozenset({"type"})
    """Fields that say what kind of thing this is: given by the class when an object is built by keyword."""

    __pydantic_extra__: dict[str, Json] = Field(init=False)

    if not TYPE_CHECKING:  # for type checkers, the constructor is the one made of the fields

        def __init__(self, /, **data: Any) -> None:
            """Build by keyword. The tags count as given, or a dump without unset fields could not be read back."""
            super().__init__(**data)
            self.__pydantic_fields_set__.update(self.tagged_by & type(self).model_fields.keys())

        # Tells pydantic that parsing need not call it: what is parsed keeps exactly the fields it came with.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="before")
    @classmethod
    def _open_foreign(cls, value: Any) -> Any:
        return value if type(value) is dict else as_plain(value)
