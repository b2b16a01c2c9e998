"""JSON Schema, as much of it as describes an answer."""

from typing import Any

import pytest

from nemo_gym.grading.schema import schema_problems, strict, violations

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2},
        "home": {"$ref": "#/$defs/place"},
    },
    "$defs": {"place": {"type": ["object", "null"], "properties": {"city": {"type": "string"}}}},
}
GOOD = {"name": "Ann", "age": 3, "tags": ["a"], "home": {"city": "Bern"}}


def test_a_value_that_fits_has_no_violations() -> None:
    """Strictness included."""
    assert schema_problems(PERSON) == []
    assert violations(GOOD, strict(PERSON)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": ""}, "$.name: has 0 characters, fewer than 1"),
        ({"name": "ann"}, "$.name: does not match the pattern"),
        ({"age": True}, "$.age: is not integer"),
        ({"age": "3"}, "$.age: is not integer"),
        ({"age": -1}, "$.age: is too small"),
        ({"age": 150}, "$.age: is too large"),
        ({"tags": ["a", "c"]}, "$.tags[1]: is not one of the values of enum"),
        ({"tags": ["a", "a"]}, "$.tags: has an item twice"),
        ({"tags": ["a", "b", "a"]}, "$.tags: has 3 items, more than 2"),
        ({"home": {}}, "$.home: 'city' is missing"),
        ({"home": {"city": "Bern", "zip": 1}}, "$.home: 'zip' is not allowed"),
        ({"more": 1}, "$: 'more' is not allowed"),
    ],
)
def test_a_violation_says_where_and_what(change: dict[str, Any], problem: str) -> None:
    """A model's author reads it."""
    assert problem in violations({**GOOD, **change}, strict(PERSON))


def test_strict_means_everything_and_nothing_else() -> None:
    """An answer that leaves out half of the fields is half an answer."""
    assert violations({}, PERSON) == []
    assert len(violations({}, strict(PERSON))) == 4


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, 1),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, 3, 1.5),
        ({"allOf": [{"type": "number"}, {"multipleOf": 0.1}]}, 0.3, 0.35),
        ({"not": {"const": 1}}, True, 1.0),
        ({"const": {"a": [1]}}, {"a": [1.0]}, {"a": [True]}),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["x"], ["x", 1]),
        ({"contains": {"type": "integer"}}, ["x", 1], ["x"]),
        ({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}, {"xa": 1}, {"y": 1}),
        ({"propertyNames": {"maxLength": 1}}, {"a": 1}, {"ab": 1}),
        ({"uniqueItems": True}, [1, "1", True, [1], {"a": 1}], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
        (True, 1, None),
        ({"enum": [1, "a"]}, 1.0, True),
    ],
)
def test_every_keyword_tells_good_from_bad(schema: Any, good: Any, bad: Any) -> None:
    """A check that never fails is no check."""
    assert schema_problems(schema) == []
    assert violations(good, schema) == []
    if schema is not True:
        assert violations(bad, schema) != []


@pytest.mark.parametrize(
    "schema",
    [
        [],
        {"type": "text"},
        {"typ": "string"},
        {"properties": []},
        {"items": 5},
        {"$ref": "https://example.org/schema"},
        {"$ref": "file:///etc/passwd"},
        {"pattern": "("},
        {"minimum": "1"},
        {"enum": []},
        {"required": "name"},
        {"anyOf": {}},
        {"properties": {"a": {"type": "strin"}}},
    ],
)
def test_a_broken_schema_is_told(schema: Any) -> None:
    """It is the data's mistake: nothing is fetched, nothing ignored."""
    assert schema_problems(schema) != []


def test_a_schema_that_refers_to_itself_ends() -> None:
    """Nothing recurses for ever."""
    assert violations(1, {"$ref": "#"}) == ["$: the schema refers to itself without end"]
    tree = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}
    assert violations({"next": {"next": None}}, strict(tree)) == []


def test_at_most_twenty_problems_are_told() -> None:
    """A reader stops earlier."""
    assert len(violations(["x"] * 100, {"items": {"type": "integer"}})) == 20
