"""Base class of the wire models, and the building blocks they share.

Objects of other packages (openai, anthropic) are dumped without their unset fields and validated like dictionaries.
Free-form values (unknown fields, JSON schemas) pass unchanged if they can be written as JSON again: limited depth. A
text may contain lone surrogates, which `call_reply` replaces when it writes bytes. Only this module uses pydantic's
internals (`core_schema`, `__pydantic_base_init__`); `tests/wire/test_base.py` and `tests/wire/test_tokens.py` fail when
they change.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
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
from typing_extensions import TypedDict

MAX_DEPTH = 100
"""Levels of nesting in a free-form value; JSON writers fail at about 250."""

WIRE_CONFIG = ConfigDict(extra="allow", protected_namespaces=(), ser_json_inf_nan="strings")

ModelT = TypeVar("ModelT", bound=BaseModel)


def omit_none(value: Any) -> bool:
    """Leave a field out of dumps while it is None: newer fields do not change the dumps that older tests compare."""
    return value is None


def later_field(name: str) -> property:
    """Return an attribute for an optional extra field: None if an object does not have it, and then not dumped."""

    def get_value(model: BaseModel) -> Any:
        return (model.__pydantic_extra__ or {}).get(name)

    def set_value(model: BaseModel, value: Any) -> None:
        assert model.__pydantic_extra__ is not None
        model.__pydantic_extra__[name] = value

    return property(get_value, set_value)


def dump_object(value: Any) -> Any:
    """Return a pydantic object as a dictionary of the fields that were set, and anything else unchanged."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True, by_alias=True, warnings=False)
    return value


def replace_fields(model: ModelT, **fields: Any) -> ModelT:
    """Return a copy of a model with other values of declared fields, which are not validated.

    The result is that of `model_copy(update=fields)` at a third of the cost.
    """
    copy = object.__new__(type(model))
    extra, private = model.__pydantic_extra__, getattr(model, "__pydantic_private__", None)
    copy.__setstate__(
        {
            "__dict__": {**model.__dict__, **fields},
            "__pydantic_extra__": extra and dict(extra),
            "__pydantic_fields_set__": model.__pydantic_fields_set__ | fields.keys(),
            "__pydantic_private__": private and dict(private),
        }
    )
    return copy


def _is_shallow_json(value: Any) -> bool:
    """Return whether `value` can be written as JSON with so few brackets that it cannot be too deep."""
    try:
        text = orjson.dumps(value)
    except TypeError:
        return False
    return text.count(b"{") + text.count(b"[") <= MAX_DEPTH


def free_form(value: Any) -> Any:
    """Dump a pydantic object and return the value; raise an error for a cycle or deep nesting."""
    value = dump_object(value)
    if _is_shallow_json(value):
        return value
    level: Iterable[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        # Each object is kept once per level, so a level cannot grow without bound; a cycle never ends and therefore
        # reaches the depth limit.
        containers: dict[int, Any] = {}
        for element in level:
            if isinstance(element, (dict, list, tuple)):
                containers[id(element)] = element
        if not containers:
            return value
        level = chain.from_iterable(
            chain(container, container.values()) if isinstance(container, dict) else container
            for container in containers.values()
        )
    raise PydanticCustomError("too_deep", "Nested more than {depth} levels deep", {"depth": MAX_DEPTH})


Json = Annotated[Any, AfterValidator(free_form)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(dump_object), AfterValidator(free_form)]
AcceptObjects = BeforeValidator(dump_object)
"""Lets unions and typed dictionaries accept objects of other packages, as `WireModel` does."""


OTHER = "other"
"""The tag of the union member for all values whose tag no other member has."""


def field_text(value: Any, field: str) -> str | None:
    """Return the text of a field of a mapping or object; None if the field is missing or not a text."""
    text = value.get(field) if isinstance(value, Mapping) else getattr(value, field, None)
    return text if isinstance(text, str) else None


def literal_tags(member: Any, field: str = "type") -> tuple[str, ...]:
    """Return the tags of a union member: its literal values or those of its `field`; OTHER if the field is any text."""
    annotation = get_args(member)[0] if get_origin(member) is Annotated else member
    if get_origin(annotation) is not Literal:
        is_model = issubclass(annotation, BaseModel)
        annotation = annotation.model_fields[field].annotation if is_model else annotation.__annotations__[field]
    return get_args(annotation) if get_origin(annotation) is Literal else (OTHER,)


class TaggedUnion:
    """Marks a union: the tag of a value selects the member, and each member is dumped by its own class.

    The tag of a value is its `type`, or the value itself if that is a text; if no member has this tag, it is `default`.
    A function `tag` replaces these rules. Pydantic's discriminated union would need each tag written next to its class,
    and would call the discriminator again and build Python objects to dump each member.
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

        def tag_of(value: Any) -> str | None:
            tag = value if isinstance(value, str) else field_text(value, "type")
            return tag if tag in choices or self.default is None else self.default

        return core_schema.tagged_union_schema(
            choices, self.tag or tag_of, serialization=core_schema.simple_ser_schema("any")
        )


TEXT_OR_LIST = TaggedUnion(
    tag=lambda value: "text" if isinstance(value, str) else "list",
    member_tags=lambda member: ("text",) if member is str else ("list",),
)
"""Marks `str | list[…]`, so that an error is about the member that matches the value's type."""


@with_config(WIRE_CONFIG)
class OpenDict(TypedDict, extra_items=Json):  # type: ignore[call-arg]  # mypy does not know PEP 728
    """A typed dictionary that keeps unknown keys, as `WireModel` keeps unknown fields."""


class TypedObjectParam(OpenDict):
    """A dictionary whose other keys depend on its `type`."""

    type: str


def _stop_lists_at_first_problem(schema: Any) -> None:
    """Make the lists of a model report their first invalid item only.

    An answer may be a list of a million invalid items; collecting their problems takes seconds and gigabytes. Nested
    models are skipped, because each applies this function itself.
    """
    parts = [schema]
    while parts:
        part = parts.pop()
        values = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
        if isinstance(part, dict) and part.get("type") == "list":
            part["fail_fast"] = True
        parts += [value for value in values if not (isinstance(value, dict) and value.get("type") == "model")]


class WireModel(BaseModel):
    """A model that keeps unknown fields and accepts objects of other packages."""

    model_config = WIRE_CONFIG

    tagged_by: ClassVar[frozenset[str]] = frozenset({"role", "type"})
    """Fields that identify the class; they count as set when an object is built by keyword."""

    __pydantic_extra__: dict[str, Json] = Field(init=False)

    if not TYPE_CHECKING:  # type checkers derive the constructor from the fields

        def __init__(self, /, **data: Any) -> None:
            """Build by keyword. The tags count as set; otherwise a dump of the set fields could not be read back."""
            super().__init__(**data)
            self.__pydantic_fields_set__.update(self.tagged_by & type(self).model_fields.keys())

        # Makes pydantic skip this constructor when parsing: a parsed object has exactly the fields of its input as set.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_lists_at_first_problem(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _accept_objects(cls, value: Any) -> Any:
        return value if type(value) is dict else dump_object(value)


class TypedObject(WireModel):
    """An object whose other fields depend on its `type`."""

    type: str


REQUIRED_TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
TOKEN_FIELDS = (*REQUIRED_TOKEN_FIELDS, "routed_experts")
GENERATION_FIELDS = (
    "weight_version",
    "finish_reason",
    "stop_reason",
    "constrained",
    "policy_epoch",
    "kv_cache_epoch",
    "num_evictions",
    "break_reason",
    "engine_fields",
)
"""Optional fields of an item with token fields: what is known about the generation besides its tokens.

`weight_version` is a number, or the oldest and the newest of several; `constrained` means that a grammar restricted
the tokens. `policy_epoch`, `kv_cache_epoch` and `num_evictions` are fields of Megatron's engine. `break_reason` is why
the prompt does not start with the tokens of the turn before; `engine_fields` holds further fields of the engine.
"""
REQUIRED_TOKEN_METADATA_FIELDS = frozenset(REQUIRED_TOKEN_FIELDS)
TOKEN_METADATA_FIELDS = frozenset(TOKEN_FIELDS)


class _NumberList:
    """A list of numbers of one type that is neither copied nor walked in Python when parsed or dumped.

    These lists hold tens of thousands of numbers and pass several servers. The type of `sum`, computed at C speed,
    shows the type of the elements (a bool passes for an int). Pydantic validates any other value: it converts the value
    or raises an error. A dump to Python objects shares the list with the model.
    """

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        json_schema = handler.generate_schema(source)
        list_schema = handler(source)
        # This format makes Python dumps return the list itself; the serializer below replaces it for JSON.
        list_schema["serialization"] = core_schema.format_ser_schema("", when_used="json")  # type: ignore[index]
        return core_schema.no_info_wrap_validator_function(
            self._validate,
            list_schema,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value, return_schema=json_schema, when_used="json"
            ),
        )

    def _validate(self, value: Any, validate: Callable[[Any], Any]) -> Any:
        if type(value) is list and value:
            try:
                if type(sum(value)) is self.kind:
                    return value
            except (TypeError, OverflowError):
                pass
        return validate(value)


TokenIds = Annotated[list[int], _NumberList(int)]
LogProbs = Annotated[list[float], _NumberList(float)]


class TokenIDLogProbMixin(BaseModel):
    """The token fields of one generation."""

    model_config = WIRE_CONFIG

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs
    routed_experts: Annotated[str | list[Any] | None, AfterValidator(free_form)] = None


def has_token_fields(item: Mapping[str, Any]) -> bool:
    """Return whether any token field is set. Null counts as not set."""
    if TOKEN_METADATA_FIELDS.isdisjoint(item):
        return False
    for name in TOKEN_FIELDS:  # noqa: SIM110 - four times for every model call, and faster
        if item.get(name) is not None:
            return True
    return False


def check_token_fields(item: Mapping[str, Any]) -> None:
    """Check that either all required token fields are set or no token field is; a trainer ignores an incomplete set.

    Raises:
        PydanticCustomError: some token fields are set, but a required one is missing.
    """
    if TOKEN_METADATA_FIELDS.isdisjoint(item) or not has_token_fields(item):
        return
    missing = sorted(name for name in REQUIRED_TOKEN_FIELDS if item.get(name) is None)
    if missing:
        raise PydanticCustomError(
            "incomplete_token_fields",
            "Token fields belong together; missing: {missing}",
            {"missing": ", ".join(missing)},
        )


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ItemModel(WireModel):
    """Base class of items. `wire_tag` is the item's tag in the item unions: its `type`, unless a class sets it."""

    wire_tag: ClassVar[str]

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if TokenIDLogProbMixin in cls.__bases__:
            cls.wire_tag += "+tokens"  # to the tag of the class without token fields
        elif not hasattr(cls, "wire_tag"):
            cls.wire_tag = cls.model_fields["type"].default
