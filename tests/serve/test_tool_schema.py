"""The definition of a tool is derived from its signature and docstring, and describes exactly what the tool accepts."""

import enum
import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import jsonschema
import pytest
from fastapi import Request
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from nemo_gym.serve.tool_schema import InvalidArguments, InvalidTool, SessionId, parse_docstring, read_signature


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = Field(default=0, description="Height.")


class Tree(BaseModel):
    label: str
    children: list["Tree"] = []


LEAVES: list[Any] = [
    str,
    int,
    bool,
    float,
    Colour,
    Literal["a", "b", 3],
    Point,
    Tree,
    Annotated[int, Field(ge=-5, lt=9)],
    Annotated[str, Field(min_length=1, max_length=4)],
    dict[str, int],
]


def nested_types(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda kind: list[kind]),
        inner.map(lambda kind: Optional[kind]),  # noqa: UP045 - the form that the test is about
        inner.map(lambda kind: dict[str, kind]),
        st.tuples(inner, inner).map(lambda kinds: kinds[0] | kinds[1]),
        st.tuples(inner, inner).map(lambda kinds: tuple[kinds[0], kinds[1]]),
    )


ANNOTATIONS = st.recursive(st.sampled_from(LEAVES), nested_types, max_leaves=4)
NAMES = st.sampled_from(
    ["city", "schema", "copy", "title", "model_config", "json", "self_", "default", "type", "items"]
)


def values_of(schema: dict[str, Any], definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for the JSON values that a schema permits; fails for a keyword it does not know."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return st.deferred(lambda: values_of(definitions[name], definitions))
    if "anyOf" in schema:
        return st.one_of([values_of(choice, definitions) for choice in schema["anyOf"]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema["type"]
    if kind == "object":
        return objects_of(schema, definitions)
    if kind == "array":
        if "prefixItems" in schema:
            return st.tuples(*(values_of(item, definitions) for item in schema["prefixItems"])).map(list)
        return st.lists(values_of(schema["items"], definitions), max_size=2)
    if kind == "integer":
        high = schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else 10**9
        return st.integers(schema.get("minimum", -(10**9)), high)
    if kind == "string":
        return st.text(
            st.characters(codec="utf-8"), min_size=schema.get("minLength", 0), max_size=schema.get("maxLength", 6)
        )
    return {
        "number": st.floats(allow_nan=False, allow_infinity=False, width=32),
        "boolean": st.booleans(),
        "null": st.none(),
    }[kind]


def objects_of(schema: dict[str, Any], definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    properties = {name: values_of(part, definitions) for name, part in schema.get("properties", {}).items()}
    if not properties and isinstance(schema.get("additionalProperties"), dict):
        return st.dictionaries(st.text(max_size=3), values_of(schema["additionalProperties"], definitions), max_size=2)
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: value for name, value in properties.items() if name in required},
        optional={name: value for name, value in properties.items() if name not in required},
    )


def function_with(annotations: dict[str, Any], optional: frozenset[str] = frozenset()) -> Callable[..., Any]:
    """Return a method with these parameters; those in `optional` have the default None."""

    def method(self: Any, **arguments: Any) -> Any:
        return arguments

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name, annotation in annotations.items():
        if name in optional:
            annotations[name] = annotation = annotation | None
        default = None if name in optional else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, kind, annotation=annotation, default=default))
    method.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    method.__annotations__ = annotations
    return method


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_arguments_made_from_the_schema_are_accepted(data: st.DataObject) -> None:
    """A model that follows the schema must never get an argument error: the schema may not promise too much."""
    annotations = data.draw(st.dictionaries(NAMES, ANNOTATIONS, max_size=3))
    optional = frozenset(data.draw(st.sets(st.sampled_from(sorted(annotations) or ["none"])))) & annotations.keys()
    method = function_with(annotations, optional)
    signature = read_signature(method, "test")
    jsonschema.Draft202012Validator.check_schema(signature.parameters)
    arguments = data.draw(values_of(signature.parameters, signature.parameters.get("$defs", {})))
    jsonschema.validate(arguments, signature.parameters)

    values = signature.bind(json.loads(json.dumps(arguments)))

    assert set(method(None, **values)) == set(annotations)
    assert set(signature.parameters.get("required", ())) == set(annotations) - optional


@settings(deadline=None, max_examples=150)
@given(
    ANNOTATIONS, st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=3)
)
def test_accepted_arguments_satisfy_the_schema_or_are_converted(annotation: Any, value: Any) -> None:
    """Whatever a model sends is either bound or refused with a message, never an unhandled exception."""
    signature = read_signature(function_with({"value": annotation}), "test")

    try:
        bound = signature.bind({"value": value})
    except InvalidArguments as problem:
        assert str(problem)
    else:
        assert set(bound) == {"value"}


def test_a_schema_has_no_references_unless_it_is_recursive() -> None:
    """Chat templates print the schema as it is; many models cannot follow references."""

    def method(self: Any, near: Point, far: Point | None = None) -> None: ...

    parameters = read_signature(method, "test").parameters

    assert "$ref" not in json.dumps(parameters)
    assert parameters["properties"]["near"]["properties"]["y"] == {
        "default": 0,
        "description": "Height.",
        "type": "integer",
    }
    assert "title" not in json.dumps(parameters)
    assert parameters["additionalProperties"] is False


def test_descriptions_come_from_the_docstring_and_from_fields() -> None:
    """The model chooses a tool by its description; a text next to the type has priority over the docstring."""

    async def search(
        self: Any,
        query: str,
        limit: Annotated[int, Field(ge=1, description="At most this many.")] = 3,
        *,
        page: int = 1,
    ) -> None:
        """Search the shop.

        Results are sorted by price.

        Args:
            query (str): words to look for,
                separated by spaces: all must match.
            limit: not used.
            page: page number.

        Returns:
            The products.
        """

    signature = read_signature(search, "test")

    assert signature.description == "Search the shop.\n\nResults are sorted by price."
    texts = {name: part.get("description") for name, part in signature.parameters["properties"].items()}
    assert texts == {
        "query": "words to look for, separated by spaces: all must match.",
        "limit": "At most this many.",
        "page": "page number.",
    }


def test_a_default_may_be_a_field() -> None:
    """Users of FastAPI and FastMCP write constraints as the default."""

    def method(self: Any, amount: int = Field(2, ge=1), name: str = Field(..., min_length=2)) -> None: ...

    signature = read_signature(method, "test")

    assert signature.bind({"name": "ab"}) == {"amount": 2, "name": "ab"}
    assert signature.parameters["required"] == ["name"]
    with pytest.raises(InvalidArguments, match="amount"):
        signature.bind({"name": "ab", "amount": 0})


def test_request_and_session_are_not_arguments_of_the_model() -> None:
    """A model must not be able to name another session."""

    def method(self: Any, request: Request, session: SessionId, city: str) -> None: ...

    signature = read_signature(method, "test")

    assert list(signature.parameters["properties"]) == ["city"]
    assert (signature.request_names, signature.session_names) == (("request",), ("session",))


def test_an_argument_error_says_which_argument_and_why() -> None:
    """The model corrects its call from this text alone."""

    def method(self: Any, city: str, days: int = 1) -> None: ...

    signature = read_signature(method, "test")

    for arguments, text in (
        ({}, "the argument 'city' is missing"),
        ({"city": "Oslo", "town": "Oslo"}, "unknown argument 'town' (the arguments are: city, days)"),
        ({"city": "Oslo", "days": "soon"}, "days: Input should be a valid integer"),
    ):
        with pytest.raises(InvalidArguments) as problem:
            signature.bind(arguments)
        assert text in str(problem.value)


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (lambda self, city: None, "no type annotation"),
        (lambda self, *cities: None, "cannot be passed by name"),
    ],
)
def test_a_method_without_a_clear_schema_is_refused(method: Any, problem: str) -> None:
    """A tool whose arguments are unknown would be offered with a wrong schema."""
    with pytest.raises(InvalidTool, match=problem):
        read_signature(method, "Shop.search")


def test_a_type_without_a_json_schema_is_refused() -> None:
    """The error names the method, because the server cannot start."""

    def method(self: Any, call: Callable[[], int], thing: object) -> None: ...

    with pytest.raises(InvalidTool, match=r"Shop\.search"):
        read_signature(method, "Shop.search")


def test_a_docstring_without_sections_is_the_description() -> None:
    """Short tools have a one-line docstring."""
    assert parse_docstring("Say hello: loudly.") == ("Say hello: loudly.", {})
    assert parse_docstring("") == ("", {})
