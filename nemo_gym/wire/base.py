"""Base class of the wire models, and the building blocks they share.

Objects of other packages (openai, anthropic) are dumped without their unset fields and validated like dictionaries.
Free-form values (unknown fields, JSON schemas) pass unchanged if they can be written as JSON again: limited depth, no
lone surrogates. Use of pydantic's internals (`core_schema`, `__pydantic_base_init__`) is limited to this module and
`tokens`; `tests/wire/test_base.py` fails when they change.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

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
"""Levels of nesting in a free-form value; JSON writers fail at about 250."""

MAX_TEXT = 2**30
"""Characters in one string. The limit makes pydantic check the encoding of strings."""

WIRE_CONFIG = ConfigDict(
    extra="allow",
    protected_namespaces=(),
    ser_json_inf_nan="strings",
    str_max_length=MAX_TEXT,
)


def as_plain(value: Any) -> Any:
    """Return a pydantic object as a dictionary of its set fields, and anything else unchanged."""
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


def _is_shallow_json(value: Any) -> bool:
    """Return whether `value` can be written as JSON with so few brackets that it cannot be too deep."""
    try:
        written = orjson.dumps(value)
    except TypeError:
        return False
    return written.count(b"{") + written.count(b"[") <= MAX_DEPTH


def free_form(value: Any) -> Any:
    """Return `value` if it can be written as JSON: not too deep, no cycle, no lone surrogate."""
    value = as_plain(value)
    if _is_shallow_json(value):
        return value
    if isinstance(value, str):
        _check_text(value)
    level = [value] if isinstance(value, (dict, list, tuple)) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return value
        # One entry per object: a cycle is on every level, so its depth reveals it in bounded time.
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
"""Dumps objects of other packages, for unions and typed dictionaries, which have no class of ours to do it."""


OTHER = "other"
"""The tag of the union member for all values whose tag no other member has."""


def field_text(value: Any, field: str) -> str | None:
    """Return the text of a field of a mapping or object, or None."""
    text = value.get(field) if isinstance(value, Mapping) else getattr(value, field, None)
    return text if isinstance(text, str) else None


def literal_tags(member: Any, field: str = "type") -> tuple[str, ...]:
    """Return the tags of a union member: its literal values or those of its `field`; OTHER if the field is any text."""
    if get_origin(member) is Annotated:
        member = get_args(member)[0]
    if get_origin(member) is not Literal:
        is_model = issubclass(member, BaseModel)
        member = member.model_fields[field].annotation if is_model else member.__annotations__[field]
    return get_args(member) if get_origin(member) is Literal else (OTHER,)


class TaggedUnion:
    """Marks a union: the tag of a value selects the member, and each member is dumped by its own class.

    The tag of a value is its `type`, or the value itself if that is a text; a value whose tag no member has uses
    `default`. Pydantic's discriminated union would need every tag repeated next to its class, and would call the
    discriminator again and build Python objects to dump each member.
    """

    def __init__(
        self,
        default: str | None = None,
        *,
        tag: Callable[[Any], str | None] | None = None,
        member_tags: Callable[[Any], tuple[str, ...]] = literal_tags,
    ) -> None:
        self.default = default
        self.tag = tag
        self.member_tags = member_tags

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices: dict[Any, CoreSchema] = {}
        for member in get_args(source):
            schema = handler.generate_schema(member)
            choices.update(dict.fromkeys(self.member_tags(member), schema))

        def type_of(value: Any) -> str | None:
            tag = value if isinstance(value, str) else field_text(value, "type")
            return tag if tag in choices or self.default is None else self.default

        return core_schema.tagged_union_schema(
            choices, self.tag or type_of, serialization=core_schema.simple_ser_schema("any")
        )


TEXT_OR_LIST = TaggedUnion(
    tag=lambda value: "text" if isinstance(value, str) else "list",
    member_tags=lambda member: ("text",) if member is str else ("list",),
)
"""Marks `str | list[…]`, so that an error is about the member that matches the value's type."""


def _schema_with_extras(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    schema = handler(source)
    resolved: dict[str, Any] = handler.resolve_ref_schema(schema)  # type: ignore[assignment]
    if resolved["type"] == "typed-dict":
        resolved["extras_schema"] = handler.generate_schema(Json)
    return schema


def open_dict(typed_dict: type[T]) -> type[T]:
    """Class decorator for a typed dictionary that keeps unknown keys, as `WireModel` keeps unknown fields."""
    with_config(WIRE_CONFIG)(typed_dict)
    setattr(typed_dict, "__get_pydantic_core_schema__", staticmethod(_schema_with_extras))  # noqa: B010 - not declared
    return typed_dict


class WireModel(BaseModel):
    """A model that keeps unknown fields and accepts objects of other packages."""

    model_config = WIRE_CONFIG

    tagged_by: ClassVar[frozenset[str]] = frozenset({"type"})
    """Fields that identify the class; they count as set when an object is built by keyword."""

    __pydantic_extra__: dict[str, Json] = Field(init=False)

    if not TYPE_CHECKING:  # type checkers derive the constructor from the fields

        def __init__(self, /, **data: Any) -> None:
            """Build by keyword. The tags count as set; otherwise a dump of the set fields could not be read back."""
            super().__init__(**data)
            self.__pydantic_fields_set__.update(self.tagged_by & type(self).model_fields.keys())

        # Makes pydantic skip this constructor when parsing: a parsed object has exactly the fields of its input as set.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="before")
    @classmethod
    def _open_foreign(cls, value: Any) -> Any:
        return value if type(value) is dict else as_plain(value)
