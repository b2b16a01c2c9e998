"""Data that fits scores; anything else says what is wrong with it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.environment.verifier_fixture import exercise_verifier_fixture, offline_server, said
from resources_servers.structured_outputs.app import (
    VERIFIER_FIXTURE,
    StructuredOutputsServer,
    StructuredOutputsVerifyRequest,
)
from resources_servers.structured_outputs.generate import rows

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


def verdict(text: str, schema: Any = PERSON, schema_type: str = "json", **settings: Any) -> dict[str, Any]:
    row = {"responses_create_params": {"input": "?"}, "schema_str": json.dumps(schema), "schema_type": schema_type}
    body = StructuredOutputsVerifyRequest.model_validate({**row, "response": said(text)})
    return asyncio.run(offline_server(StructuredOutputsServer, **settings).verify(body)).model_dump()


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
def test_data_that_fits_scores_however_it_is_written(text: str, schema_type: str) -> None:
    """Order, spacing, quoting and nesting style are the writer's choice."""
    result = verdict(text, schema_type=schema_type)

    assert (result["reward"], result["error_message"]) == (1.0, None)


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
def test_anything_else_scores_nothing_and_says_what_kind(text: str, schema_type: str, error_type: str) -> None:
    """Null, echo, cheats and near misses."""
    result = verdict(text, schema_type=schema_type)

    assert (result["reward"], result["error_type"]) == (0.0, error_type)
    assert result["error_message"]


def test_csv_cells_take_the_types_of_the_schema() -> None:
    """CSV knows only text."""
    columns = {"name": {"type": "string"}, "age": {"type": "integer"}, "paid": {"type": "boolean"}}
    table = {"type": "array", "items": {"type": "object", "properties": columns}, "minItems": 2}

    assert verdict('name,age,paid\n"Doe, J",3,true\nAnn,4,False', table, "csv")["reward"] == 1.0
    assert verdict("name,age,paid\nAnn,4,true", table, "csv")["error_type"] == "validation"
    assert verdict("name,age,paid\nAnn,x,true\nBo,1,true", table, "csv")["error_type"] == "validation"
    assert verdict("name,age\nAnn,4\nBo,5", table, "csv")["error_type"] == "validation"
    assert verdict("name,age,age\nAnn,4,5\nBo,5,6", table, "csv")["error_type"] == "parse"
    assert verdict("name,age,paid\nAnn,4", table, "csv")["error_type"] == "parse"


def test_settings_change_what_is_accepted() -> None:
    """Fences and typed XML are a choice of the environment."""
    fenced = f"```json\n{JSON}\n```"

    assert verdict(fenced, allow_fence=True)["reward"] == 1.0
    assert verdict(f"{fenced}\nDone.", allow_fence=True)["reward"] == 0.0
    assert verdict(XML, schema_type="xml", coerce_xml=False)["error_type"] == "validation"


@pytest.mark.parametrize(
    ("arguments", "count", "error_type"),
    [(JSON, 1, None), ("{}", 1, "validation"), ("{", 1, "parse"), (JSON, 0, "empty"), (JSON, 2, "parse")],
)
def test_one_tool_call_can_be_graded_instead(arguments: str, count: int, error_type: str | None) -> None:
    """Function calling is structured output too."""
    call = {"type": "function_call", "call_id": "c", "name": "save", "arguments": arguments, "id": "f"}
    row = {"responses_create_params": {"input": "?"}, "schema_str": json.dumps(PERSON), "response_mode": "tool_call"}
    body = StructuredOutputsVerifyRequest.model_validate({**row, "response": said(JSON) | {"output": [call] * count}})

    result = asyncio.run(offline_server(StructuredOutputsServer).verify(body))

    assert (result.reward, result.error_type) == (float(error_type is None), error_type)


@pytest.mark.parametrize(
    "broken",
    [
        {"schema_str": "{"},
        {"schema_str": '{"typ": "object"}'},
        {"schema_str": '{"$ref": "https://example.org/schema"}'},
        {"schema_type": "ini"},
        {"schema_str": None},
        {"response_mode": "both"},
    ],
)
def test_a_malformed_row_is_a_clear_422(broken: dict[str, Any]) -> None:
    """The data is at fault, and must not look like a wrong answer."""
    row = {"responses_create_params": {"input": "?"}, "schema_str": json.dumps(PERSON), **broken}
    client = TestClient(offline_server(StructuredOutputsServer).setup_webserver())

    assert client.post("/verify", json={**row, "response": said(JSON)}).status_code == 422


def test_twenty_verdicts_at_once_are_the_same() -> None:
    """Grading has no memory."""
    row = {"responses_create_params": {"input": "?"}, "schema_str": json.dumps(PERSON)}
    body = StructuredOutputsVerifyRequest.model_validate({**row, "response": said(JSON)})
    server = offline_server(StructuredOutputsServer)

    async def all_at_once() -> list[float]:
        return [result.reward for result in await asyncio.gather(*(server.verify(body) for _ in range(20)))]

    assert asyncio.run(all_at_once()) == [1.0] * 20


def test_the_example_data_is_what_the_generator_writes() -> None:
    """Committed data that drifts from its source is data nobody can explain."""
    path = Path(__file__).parent.parent / "data" / "example.jsonl"

    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == rows(5, seed=0)


def test_the_example_rollouts_get_the_same_verdict_today() -> None:
    """Committed rollouts that no longer hold mislead whoever looks at them."""
    path = Path(__file__).parent.parent / "data" / "example_rollouts.jsonl"
    server = offline_server(StructuredOutputsServer)
    for line in path.read_text("utf-8").splitlines():
        rollout = json.loads(line)
        again = asyncio.run(server.verify(StructuredOutputsVerifyRequest.model_validate(rollout)))
        assert (again.reward, again.error_type) == (rollout["reward"], rollout["error_type"])


def test_the_verifier_decides_every_case_as_written() -> None:
    """`gym env test` tries the same cases."""
    results = asyncio.run(exercise_verifier_fixture(VERIFIER_FIXTURE, seeded=True, reward_range=(0, 1), best=1.0))

    assert [result for result in results if not result.is_good] == []


def test_a_wide_or_hostile_document_is_read_in_linear_time() -> None:
    """One reply must not stop the server: a million characters of one element end in seconds."""
    assert verdict("<a>" + "<b/>" * 200_000 + "</a>", {"type": "object"}, "xml")["error_type"] == "parse"
    assert verdict("a,b\n" + "1,2\n" * 100_000, PERSON, "csv")["error_type"] == "validation"


@pytest.mark.parametrize(
    "text", ["Thought process:", "0 1 2 3", "{}", "customer", "customer,product,quantity,paid,more"]
)
def test_a_line_that_is_no_header_is_no_table_without_rows(text: str) -> None:
    """Any line can be read as the header of an empty table; only the schema's own columns are one."""
    schema = {"type": "array", "items": {"type": "object", "properties": {"customer": {"type": "string"}}}}
    wide = {**schema, "items": {"type": "object", "properties": {name: {} for name in ("customer", "product")}}}

    assert verdict(text, wide, "csv")["error_type"] == "parse"
    assert verdict("product,customer", wide, "csv")["reward"] == 1.0
    assert verdict("customer", {**schema, "minItems": 1}, "csv")["error_type"] == "validation"
