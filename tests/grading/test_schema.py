"""JSON Schema checks of structured answers."""

import time
import urllib.request
from typing import Any

import pytest

from nemo_gym.grading import schema as schema_module
from nemo_gym.grading.schema import find_violations, make_strict, schema_problems

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


def test_a_conforming_value_has_no_violations() -> None:
    """A correct answer scores, also under the strict schema."""
    assert schema_problems(PERSON) == []
    assert find_violations(GOOD, make_strict(PERSON)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": ""}, "$.name: '' should be non-empty"),
        ({"name": "ann"}, "$.name: 'ann' does not match '^[A-Z]'"),
        ({"age": True}, "$.age: True is not of type 'integer'"),
        ({"age": "3"}, "$.age: '3' is not of type 'integer'"),
        ({"age": -1}, "$.age: -1 is less than the minimum of 0"),
        ({"age": 150}, "$.age: 150 is greater than or equal to the maximum of 150"),
        ({"tags": ["a", "c"]}, "$.tags[1]: 'c' is not one of ['a', 'b']"),
        ({"tags": ["a", "a"]}, "$.tags: the items are not unique"),
        ({"tags": ["a", "b", "a"]}, "$.tags: ['a', 'b', 'a'] is too long"),
        ({"home": {}}, "$.home: 'city' is a required property"),
        (
            {"home": {"city": "Bern", "zip": 1}},
            "$.home: Additional properties are not allowed ('zip' was unexpected)",
        ),
        ({"more": 1}, "$: Additional properties are not allowed ('more' was unexpected)"),
    ],
)
def test_a_violation_names_the_location_and_the_cause(change: dict[str, Any], problem: str) -> None:
    """Authors debug their prompts with it."""
    assert problem in find_violations({**GOOD, **change}, make_strict(PERSON))


def test_a_strict_schema_requires_all_properties_and_allows_no_others() -> None:
    """An answer without half of the fields is half an answer."""
    assert find_violations({}, PERSON) == []
    assert len(find_violations({}, make_strict(PERSON))) == 4


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, 1),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, 3, 1.5),
        ({"allOf": [{"type": "number"}, {"multipleOf": 0.1}]}, 0.3, 0.35),
        ({"multipleOf": 3}, 10**400 + 2, 10**400),
        ({"multipleOf": 3}, 9.0, float("inf")),
        ({"not": {"const": 1}}, True, 1.0),
        ({"const": {"a": [1]}}, {"a": [1.0]}, {"a": [True]}),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["x"], ["x", 1]),
        ({"contains": {"type": "integer"}}, ["x", 1], ["x"]),
        ({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}, {"xa": 1}, {"y": 1}),
        ({"propertyNames": {"maxLength": 1}}, {"a": 1}, {"ab": 1}),
        ({"uniqueItems": True}, [1, "1", True, [1], {"a": 1}], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
        ({"enum": [1, "a"]}, 1.0, True),
        (False, ..., 1),
    ],
)
def test_every_keyword_accepts_and_refuses(schema: Any, good: Any, bad: Any) -> None:
    """A check that never fails is no check."""
    assert schema_problems(schema) == []
    assert good is ... or find_violations(good, schema) == []
    assert find_violations(bad, schema) != []


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
        {"patternProperties": {"(": {}}},
        {"minimum": "1"},
        {"minimum": float("nan")},
        {"minLength": -1},
        {"enum": []},
        {"required": "name"},
        {"anyOf": {}},
        {"properties": {"a": {"type": "strin"}}},
        {"properties": {"a": {"items": [{"typ": "string"}]}}},
        {"allOf": [{"$ref": "other.json"}]},
    ],
)
def test_a_broken_schema_is_reported(schema: Any) -> None:
    """The data is at fault, and an ignored keyword would be a check that never happens."""
    assert schema_problems(schema) != []


def test_a_schema_that_refers_to_itself_ends() -> None:
    """One row must not stop a server."""
    assert find_violations(1, {"$ref": "#"}) == ["$: the schema refers to itself without end"]
    tree = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}
    assert find_violations({"next": {"next": None}}, make_strict(tree)) == []


def nested_schema(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def test_nesting_is_bounded_in_schemas_and_values() -> None:
    """Depth ends in a reason, not in a traceback."""
    value: Any = 1
    for _ in range(5_000):
        value = [value]

    assert schema_problems(nested_schema(5_000)) == ["#: nested too deep"]
    assert find_violations(value, {"items": {"$ref": "#"}}) == ["$: the schema refers to itself without end"]


def test_a_schema_that_branches_into_itself_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two references per level double the work with every level of the answer."""
    monkeypatch.setattr(schema_module, "MAX_STEPS", 10_000)
    branches = {"type": "object", "properties": {"a": {"oneOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
    value: Any = 1
    for _ in range(40):
        value = {"a": value}

    assert find_violations(value, branches) == ["$: not decided within 10,000 steps"]


@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_pattern_is_not_tried_on_a_huge_string(keyword: str) -> None:
    """`(a+)+$` would run for years."""
    huge = "a" * 20_000 + "b"
    schema, value = ({"pattern": "(a+)+$"}, huge) if keyword == "pattern" else ({keyword: {"(a+)+$": {}}}, {huge: 1})

    assert find_violations(value, schema) == ["$: longer than 10,000 characters, too long for a pattern"]
    assert find_violations({"text": huge, "date": "1"}, {"properties": {"date": {"pattern": "^1$"}}}) == []


def test_uniqueness_of_many_objects_is_decided_quickly() -> None:
    """Comparing all pairs of a megabyte of objects would take hours."""
    rows = [{"a": number} for number in range(50_000)]

    assert find_violations(rows, {"uniqueItems": True}) == []
    assert find_violations([*rows, {"a": 7.0}], {"uniqueItems": True}) == ["$: the items are not unique"]


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/schema", "file:///etc/passwd", "other.json", "#/$defs/none"])
def test_no_reference_is_ever_fetched(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset must not make a grading server call other hosts; an unresolved reference fails closed."""
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("a reference was fetched"))

    assert find_violations(1, {"$id": "http://127.0.0.1:9/", "$ref": reference}) != []


def test_at_most_twenty_short_problems_are_reported() -> None:
    """The message is stored with every rollout."""
    problems = find_violations(["x" * 10_000] * 100, {"items": {"type": "integer"}})

    assert len(problems) == 20
    assert max(map(len, problems)) < 400


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_pattern_that_backtracks_without_end_is_given_up(keyword: str, count: int) -> None:
    """One string of 80 letters stopped the process of the verifier; many strings must not take a second each."""
    texts = [f"{'a' * 80}b{number}" for number in range(count)]
    items = {"pattern": "^(a|aa)+$"} if keyword == "pattern" else {keyword: {"^(a|aa)+$": False}}
    values: list[Any] = [text if keyword == "pattern" else {text: 1} for text in texts]
    begin = time.process_time()

    assert find_violations(values, {"items": items}) == ["$: the patterns are not decided within 1 s"]
    assert time.process_time() - begin < 5


def test_additional_properties_respect_pattern_properties() -> None:
    """Names are matched by our bounded search; the result is that of the standard."""
    schema: dict[str, Any] = {
        "properties": {"a": {}}, "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False
    }  # fmt: skip

    assert find_violations({"a": 1, "x_b": 2}, schema) == []
    assert find_violations({"x_b": "2"}, schema) == ["$.x_b: '2' is not of type 'integer'"]
    assert "'b' was unexpected" in find_violations({"a": 1, "x_b": 2, "b": 3}, schema)[0]


@pytest.mark.parametrize("pattern", ["((a{1000}){1000}){1000}", "a{1000000000}", "(", "a" * 6000])
def test_a_pattern_that_cannot_be_compiled_safely_is_a_problem_of_the_schema(pattern: str) -> None:
    """Compiling the first one takes all memory."""
    assert schema_problems({"pattern": pattern}) != []
    assert schema_problems({"patternProperties": {pattern: {}}}) != []
    assert find_violations("a", {"pattern": pattern}) != []
