"""Extraction of data that a model wrote: JSON, YAML, TOML, XML, CSV."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.data_formats import csv_rows, json_value, toml_value, xml_element, yaml_value
from nemo_gym.grading.result_types import ExtractedAnswer, NoAnswer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2]}',
        '\n {"a": [1, 2]} \n',
        'Here:\n```json\n{"a": [1, 2]}\n```\nDone.',
        'Here:\n```\n{"a": [1, 2]}\n```',
        '```json\n{"b": 1}\n```\nbetter:\n```json\n{"a": [1, 2]}\n```',
        'The result is {"a": [1, 2]} as asked.',
        'A set {x} first, then {"a": [1, 2]}.',
        'First {"b": 1}, finally {"a": [1, 2]}',
    ],
)
def test_json_is_found_fenced_whole_or_last(text: str) -> None:
    """Models wrap data in words."""
    extraction = json_value(text)

    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value == {"a": [1, 2]}
    assert json.loads(text[slice(*extraction.span)]) == extraction.value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no data",
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        "[1e999]",
        "{'a': 1}",
        '{"a": 1',
        "[" * 100 + "]" * 100,
        '```json\n{"a": \n```',
        "[" + "9" * 5000 + "]",
        '{"a": {"b": 1}',
        'first {"a": 1}, then {"b": {"c": 1}, "b": 2}',
    ],
)
def test_broken_json_is_unparsed(text: str) -> None:
    """A duplicate key or NaN is read differently by every parser, so by none of ours."""
    assert isinstance(json_value(text), NoAnswer)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_json_survives_words_and_fences(value: Any) -> None:
    """The extracted value must equal the value that was written."""
    for text in (json.dumps(value), f"So:\n```json\n{json.dumps(value)}\n```\n"):
        extraction = json_value(text)
        assert isinstance(extraction, ExtractedAnswer)
        assert extraction.value == value


def test_yaml_is_plain_data() -> None:
    """A date stays text: the schema defines its type."""
    extraction = yaml_value("```yaml\na: 1\nwhen: 2024-01-01\nb: [x, true, null]\n```")

    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value == {"a": 1, "when": "2024-01-01", "b": ["x", True, None]}


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "a: !!str 1",
        "a: &x [1]\nb: *x",
        "a: &x 1",
        "a: 1\na: 2",
        "a: [1",
        "[" * 100 + "]" * 100,
        "--- 1\n--- 2",
        "? [a]\n: 1",
        "",
    ],
)
def test_yaml_with_tags_anchors_or_mistakes_is_unparsed(text: str) -> None:
    """Tags run code and aliases multiply."""
    assert isinstance(yaml_value(text), NoAnswer)


def test_xml_becomes_an_element() -> None:
    """Attributes and text both carry data."""
    extraction = xml_element("```xml\n<a x='1'><b>t &amp; u</b></a>\n```")

    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value.get("x") == "1"
    assert extraction.value.findtext("b") == "t & u"


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
        '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        "<a>&unknown;</a>",
        "<a>",
        "<a/><b/>",
        "<a>" * 100 + "</a>" * 100,
        "text",
    ],
)
def test_xml_with_a_document_type_or_mistakes_is_unparsed(text: str) -> None:
    """Entities read files and multiply."""
    assert isinstance(xml_element(text), NoAnswer)


def test_toml_and_csv_are_read() -> None:
    """Structured-output rows use these formats as well."""
    table = toml_value("```toml\n[a]\nb = [1, 2]\n```")
    rows = csv_rows('```csv\nname,age\n"Doe, J",3\n"two\nlines",4\n```')

    assert isinstance(table, ExtractedAnswer)
    assert table.value == {"a": {"b": [1, 2]}}
    assert isinstance(rows, ExtractedAnswer)
    assert rows.value == [["name", "age"], ["Doe, J", "3"], ["two\nlines", "4"]]


@pytest.mark.parametrize("text", ["a,b\n1", 'a,"b\n', ""])
def test_csv_with_uneven_rows_or_open_quotes_is_unparsed(text: str) -> None:
    """A dropped column would go unnoticed later."""
    assert isinstance(csv_rows(text), NoAnswer)


@pytest.mark.parametrize("text", ["a = ", "a = 1\na = 2", "a." * 100 + "b = 1", "a = " + "[" * 100])
def test_broken_toml_is_unparsed(text: str) -> None:
    """Deep nesting must not end in a traceback."""
    assert isinstance(toml_value(text), NoAnswer)


def test_more_than_a_megabyte_is_not_read() -> None:
    """No answer is that long."""
    for reader in (json_value, yaml_value, xml_element, csv_rows, toml_value):
        assert isinstance(reader("a" * (1 << 20) + "b"), NoAnswer)
