"""Parse data that a model wrote: JSON, YAML, TOML, XML or CSV, fenced or bare, strictly and within limits.

No YAML tags, anchors or aliases, no XML document types or entities, no duplicate keys, no NaN.
"""

import csv
import io
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import yaml

from nemo_gym.grading.extraction import MAX_CHARACTERS, fenced_blocks
from nemo_gym.grading.result_types import ExtractedAnswer, Extraction, NoAnswer

MAX_DEPTH = 64
MAX_YAML_EVENTS = 200_000

_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


class MalformedData(Exception):
    """The text is not data of the expected format."""


def json_value(text: str) -> Extraction[Any]:
    """Extract JSON: the last fenced block or the whole text, else (without fences) the last object or array in it."""
    extraction = _fenced_or_whole(text, ("json", "jsonc", "json5"), parse_json)
    return _last_json(text) if isinstance(extraction, NoAnswer) and "```" not in text else extraction


def yaml_value(text: str) -> Extraction[Any]:
    """Extract YAML: the last fenced block or the whole text."""
    return _fenced_or_whole(text, ("yaml", "yml"), parse_yaml)


def toml_value(text: str) -> Extraction[dict[str, Any]]:
    """Extract a TOML table: the last fenced block or the whole text."""
    return _fenced_or_whole(text, ("toml",), parse_toml)


def xml_element(text: str) -> Extraction[Element]:
    """Extract an XML element: the last fenced block or the whole text."""
    return _fenced_or_whole(text, ("xml", "html"), parse_xml)


def csv_rows(text: str) -> Extraction[list[list[str]]]:
    """Extract CSV rows of equal length: the last fenced block or the whole text."""
    return _fenced_or_whole(text, ("csv",), parse_csv)


def _fenced_or_whole(text: str, names: tuple[str, ...], parse: Callable[[str], Any]) -> Extraction[Any]:
    """Parse the last fenced block without a language or with one of `names`; without blocks, the whole text."""
    if len(text) > MAX_CHARACTERS:
        return NoAnswer(f"longer than {MAX_CHARACTERS:,} characters")
    blocks = [block for block in fenced_blocks(text) if block.rule in (*names, "")]
    start = len(text) - len(text.lstrip())
    source, span = (blocks[-1].value, blocks[-1].span) if blocks else (text.strip(), (start, len(text.rstrip())))
    if not source.strip():
        return NoAnswer("the text is empty")
    try:
        return ExtractedAnswer(parse(source), span, "fenced" if blocks else "whole_text")
    except MalformedData as problem:
        return NoAnswer(str(problem))


# -- JSON


_BRACKET = re.compile(r"[\[{]")
_STARTS_DATA = re.compile(r'\s*+["{\[]')
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|[\[\]{}]')
"""An unclosed string ends with its line, so that no text is scanned twice."""


def _unique_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise MalformedData("duplicate key")
    return mapping


def _reject_constant(name: str) -> Any:
    raise MalformedData(f"{name} is not JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedData("a number is too large")
    return value


def _parse_int(text: str) -> int:
    if len(text) > _SAFE_DIGITS:
        _parse_float(text)  # raises for an integer beyond the range of a double, as other JSON parsers do
    return int(text)


_SAFE_DIGITS = 300
_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_mapping,
    parse_constant=_reject_constant,
    parse_float=_parse_float,
    parse_int=_parse_int,
)


def parse_json(text: str) -> Any:
    """Parse the whole of `text` as one JSON value."""
    _check_depth(text)
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise MalformedData("nested too deep") from None
    except ValueError as problem:
        raise MalformedData(f"not JSON: {problem}") from None


def _check_depth(text: str) -> None:
    if any(depth > MAX_DEPTH for _, depth in _bracket_depths(text)):
        raise MalformedData(_TOO_DEEP)


def _bracket_depths(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the end position of every bracket outside strings, and the nesting depth after it."""
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text, start):
        if token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
        else:
            continue
        yield token.end(), depth


def _last_json(text: str) -> Extraction[Any]:
    """Extract the last complete object or array; a valid part of broken data is not extracted.

    Brackets that no data follows (`[see below]`) are prose and are skipped.
    """
    budget = 4 * len(text) + 10_000  # characters to scan, so that many unclosed brackets cost no quadratic time
    position, last, problem = 0, None, "no JSON"
    while budget > 0 and (bracket := _BRACKET.search(text, position)) is not None:
        start = bracket.start()
        end = next((end for end, depth in _bracket_depths(text, start) if depth == 0), None)
        budget -= (end or len(text)) - start + 400
        if end is None:
            if _STARTS_DATA.match(text, bracket.end()):
                return NoAnswer("the last JSON is not closed")
            position = bracket.end()
            continue
        try:
            last = ExtractedAnswer(parse_json(text[start:end]), (start, end), "last_json")
        except MalformedData as error:
            if '"' in text[start:end] or _STARTS_DATA.match(text, bracket.end()):
                last, problem = None, str(error)
        position = end
    if budget <= 0:
        return NoAnswer("too many brackets without JSON")
    return last or NoAnswer(problem)


# -- YAML

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _PlainLoader(_LOADER):  # type: ignore[misc]
    """Loads strings, numbers, booleans and null; dates are loaded as strings."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in entries if not tag.endswith((":timestamp", ":merge", ":value"))]
    for first, entries in _LOADER.yaml_implicit_resolvers.items()
}


def _construct_mapping(loader: Any, node: Any) -> dict[Any, Any]:
    """Construct a mapping; reject duplicate keys and keys that are lists or mappings."""
    pairs = [
        (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
        for key, value in node.value
    ]
    if any(isinstance(key, dict | list) for key, _ in pairs):
        raise MalformedData("a key is a list or mapping")
    return _unique_mapping(pairs)


_PlainLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def parse_yaml(text: str) -> Any:
    """Parse `text` as one YAML document."""
    try:
        _check_events(text)
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as problem:
        raise MalformedData(f"not YAML: {str(problem).splitlines()[0]}") from None
    except (ValueError, RecursionError) as problem:
        raise MalformedData(f"not YAML: {problem}") from None


def _check_events(text: str) -> None:
    """Reject anchors, aliases, tags, deep nesting and too many values, before any object is constructed."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if count > MAX_YAML_EVENTS:
            raise MalformedData(f"more than {MAX_YAML_EVENTS:,} values")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise MalformedData("anchors and aliases are not allowed")
        if getattr(event, "tag", None):
            raise MalformedData("tags are not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise MalformedData(_TOO_DEEP)


# -- TOML, XML, CSV


_LONG_KEY = re.compile(rf"(?<![\w.-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}")
"""A dotted key (`a.b.c`) with too many levels."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse `text` as a TOML document."""
    _check_depth(text)
    if _LONG_KEY.search(text):
        raise MalformedData(_TOO_DEEP)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as problem:
        raise MalformedData(f"not TOML: {problem}") from None


def parse_xml(text: str) -> Element:
    """Parse `text` as one XML element; reject document types and thereby all entity definitions."""
    builder = TreeBuilder()
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise MalformedData(_TOO_DEEP)
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def reject(*_: object) -> None:
        raise MalformedData("document types and entities are not allowed")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = reject
    try:
        parser.Parse(text.strip().encode(), True)
        return builder.close()
    except expat.ExpatError as problem:
        raise MalformedData(f"not XML: {problem}") from None


def parse_csv(text: str) -> list[list[str]]:
    """Parse `text` as CSV rows of equal length."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text.strip(), newline=""), strict=True) if row]
    except csv.Error as problem:
        raise MalformedData(f"not CSV: {problem}") from None
    if len({len(row) for row in rows}) != 1:
        raise MalformedData("not CSV: no rows, or rows of different lengths")
    return rows
