"""Prove the verifier of structured output: data that fits the schema is right, anything else has an error type."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.structured_outputs.app import StructuredOutputsServer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "score": {"type": ["number", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "home": {"$ref": "#/$defs/home"},
    },
    "$defs": {"home": {"type": "object", "properties": {"city": {"type": "string"}, "own": {"type": "boolean"}}}},
}
VALUE = {"name": "Ann", "age": 3, "score": 1.5, "tags": ["a", "b"], "home": {"city": "Bern", "own": True}}
JSON = json.dumps(VALUE)
XML = (
    "<person><name>Ann</name><age>3</age><score>1.5</score><tags><tag>a</tag><tag>b</tag></tags>"
    "<home><city>Bern</city><own>true</own></home></person>"
)


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]
    checked_rows = 5  # one for each format


def verify(text: str, schema: Any = PERSON, schema_type: str = "json", **settings: Any) -> dict[str, Any]:
    row = {"responses_create_params": {"input": "?"}, "schema_str": json.dumps(schema), "schema_type": schema_type}
    return verify_reply(offline_client(StructuredOutputsServer, **settings), row, text)


FITTING = [
    (JSON, "json"),
    (json.dumps(VALUE, indent=2), "json"),
    (f"\n\n{JSON}\n", "json"),
    (json.dumps(dict(reversed(VALUE.items()))), "json"),
    (JSON.replace('"Ann"', '"\\u0041nn"'), "json"),
    (f"<think>Which fields?</think>{JSON}", "json"),
    (JSON.replace("1.5", "null"), "json"),
    (JSON.replace("1.5", "1"), "json"),
    (JSON.replace("1.5", "1.5e0"), "json"),
    (JSON, "yaml"),
    ("name: Ann\nage: 3\nscore: 1.5\ntags: [a, b]\nhome: {city: Bern, own: true}", "yaml"),
    ("name: 'Ann'\nage: 3\nscore: ~\ntags:\n- a\n- b\nhome:\n  city: Bern\n  own: true", "yaml"),
    ("---\nname: Ann # a comment\nage: 3\nscore: 1.5\ntags: []\nhome: {city: Bern, own: false}\n", "yaml"),
    ('name = "Ann"\nage = 3\nscore = 1.5\ntags = ["a", "b"]\n[home]\ncity = "Bern"\nown = true', "toml"),
    ("age = 3\nname = 'Ann'\nscore = 1.5\ntags = []\nhome = {city = \"Bern\", own = true}", "toml"),
    (XML, "xml"),
    (XML.replace("><", ">\n  <"), "xml"),
    (f'<?xml version="1.0"?>\n{XML}', "xml"),
    (XML.replace("Ann", "<![CDATA[Ann]]>"), "xml"),
    (XML.replace("<tags><tag>a</tag><tag>b</tag></tags>", "<tags>a</tags><tags>b</tags>"), "xml"),
    (XML.replace("<home><city>Bern</city>", '<home city="Bern">'), "xml"),
    (XML.replace("<tags><tag>a</tag><tag>b</tag></tags>", "<tags/>"), "xml"),
    (XML.replace("true", "True"), "xml"),
]


@pytest.mark.parametrize(("text", "schema_type"), FITTING)
def test_data_that_fits_scores_in_every_notation(text: str, schema_type: str) -> None:
    """Order, spacing, quoting and nesting style are the writer's choice."""
    verdict = verify(text, schema_type=schema_type)

    assert (verdict["reward"], verdict["error_message"]) == (1.0, None)


@pytest.mark.parametrize(
    ("text", "schema_type", "error_type"),
    [
        ("", "json", "empty"),
        ("<think>{}", "json", "empty"),
        (f"Sure! {JSON}", "json", "parse"),
        (f"{JSON} Done.", "json", "parse"),
        (f"```json\n{JSON}\n```", "json", "parse"),
        (JSON[:-1], "json", "parse"),
        (JSON.replace("1.5", "NaN"), "json", "parse"),
        (JSON.replace('"age": 3', '"age": 3, "age": 3'), "json", "parse"),
        ("[" * 1000, "json", "parse"),
        ("a: &x [*x]", "yaml", "parse"),
        ("!!python/object/apply:os.system [ls]", "yaml", "parse"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "xml", "parse"),
        (XML.replace("<age>3</age>", "<age>3</age><age>4</age>"), "xml", "parse"),
        (json.dumps(PERSON), "json", "validation"),
        ("{}", "json", "validation"),
        ("null", "json", "validation"),
        (JSON.replace('"age": 3', '"age": "3"'), "json", "validation"),
        (JSON.replace('"age": 3', '"age": true'), "json", "validation"),
        (JSON.replace('"age": 3', '"age": 3, "more": 1'), "json", "validation"),
        (XML.replace("<age>3</age>", "<age>three</age>"), "xml", "validation"),
        ("This answer is correct. reward = 1", "json", "parse"),
        ("reward: 1.0", "yaml", "validation"),
        ("A, B, C, D", "json", "parse"),
        (", ".join(map(str, range(100))), "json", "parse"),
    ],
)
def test_data_that_does_not_fit_has_an_error_type(text: str, schema_type: str, error_type: str) -> None:
    """Empty, unreadable and invalid replies need different remedies."""
    verdict = verify(text, schema_type=schema_type)

    assert (verdict["reward"], verdict["error_type"]) == (0.0, error_type)
    assert verdict["error_message"]


def test_csv_cells_take_the_types_of_the_schema() -> None:
    """All cells of CSV are text."""
    columns = {"name": {"type": "string"}, "age": {"type": "integer"}, "paid": {"type": "boolean"}}
    table = {"type": "array", "items": {"type": "object", "properties": columns}, "minItems": 2}

    assert verify('name,age,paid\n"Doe, J",3,true\nAnn,4,False', table, "csv")["reward"] == 1.0
    assert verify("name,age,paid\nAnn,4,true", table, "csv")["error_type"] == "validation"
    assert verify("name,age,paid\nAnn,x,true\nBo,1,true", table, "csv")["error_type"] == "validation"
    assert verify("name,age\nAnn,4\nBo,5", table, "csv")["error_type"] == "validation"
    assert verify("name,age,age\nAnn,4,5\nBo,5,6", table, "csv")["error_type"] == "parse"
    assert verify("name,age,paid\nAnn,4", table, "csv")["error_type"] == "parse"


def test_settings_accept_fences_and_untyped_xml() -> None:
    """The environment decides how strict it is."""
    fenced = f"```json\n{JSON}\n```"

    assert verify(fenced, allow_fence=True)["reward"] == 1.0
    assert verify(f"{fenced}\nDone.", allow_fence=True)["reward"] == 0.0
    assert verify(XML, schema_type="xml", coerce_xml=False)["error_type"] == "validation"


@pytest.mark.parametrize(
    ("arguments", "count", "error_type"),
    [(JSON, 1, None), ("{}", 1, "validation"), ("{", 1, "parse"), (JSON, 0, "empty"), (JSON, 2, "parse")],
)
def test_one_tool_call_can_be_graded_instead(arguments: str, count: int, error_type: str | None) -> None:
    """The arguments of a tool call are structured output too."""
    call = {"type": "function_call", "call_id": "c", "name": "save", "arguments": arguments, "id": "f"}
    row = {"responses_create_params": {"input": "?"}, "schema_str": json.dumps(PERSON), "response_mode": "tool_call"}

    verdict = verify_reply(offline_client(StructuredOutputsServer), row, [call] * count)

    assert (verdict["reward"], verdict["error_type"]) == (float(error_type is None), error_type)


def test_a_wide_or_hostile_document_is_read_in_linear_time() -> None:
    """One reply must not block the server: a million characters take seconds at most."""
    assert verify("<a>" + "<b/>" * 200_000 + "</a>", {"type": "object"}, "xml")["error_type"] == "parse"
    assert verify("a,b\n" + "1,2\n" * 100_000, PERSON, "csv")["error_type"] == "validation"


@pytest.mark.parametrize(
    "text", ["Thought process:", "0 1 2 3", "{}", "customer", "customer,product,quantity,paid,more"]
)
def test_a_line_without_the_columns_of_the_schema_is_not_an_empty_table(text: str) -> None:
    """Any line can be read as the header of an empty table, so a header must have the columns of the schema."""
    schema = {"type": "array", "items": {"type": "object", "properties": {"customer": {"type": "string"}}}}
    wide = {**schema, "items": {"type": "object", "properties": {name: {} for name in ("customer", "product")}}}

    assert verify(text, wide, "csv")["error_type"] == "parse"
    assert verify("product,customer", wide, "csv")["reward"] == 1.0
    assert verify("customer", {**schema, "minItems": 1}, "csv")["error_type"] == "validation"
