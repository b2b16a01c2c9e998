"""Data written by a model: JSON, YAML, TOML, XML or CSV, fenced or bare, read strictly and within limits.

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

from nemo_gym.grading.verdict import Extracted, Extraction, Unparsed

LARGEST = 1 << 20
"""Characters that are read at most."""
DEEPEST = 64
MOST_EVENTS = 200_000

_FENCE = re.compile(r"^[ \t]{0,3}(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<name>[\w+-]*+)[^\n]*+\n", re.MULTILINE)


class Malformed(Exception):
    """The text is not what it should be."""


def fenced_blocks(text: str) -> Iterator[Extracted[str]]:
    """Every closed fenced block in order: its content, with the name behind the fence as rule."""
    position = 0
    while (opened := _FENCE.search(text, position)) is not None:
        fence = opened["fence"]
        end = text.find(f"\n{fence}", opened.end() - 1)
        if end < 0:
            return
        yield Extracted(text[opened.end() : max(end, opened.end())], (opened.end(), end), opened["name"].lower())
        position = end + 1 + len(fence)


def json_value(text: str) -> Extraction[Any]:
    """The JSON value of a text: its last fenced block, the whole text, or the last object or array in it."""
    found = _fenced_or_whole(text, ("json", "jsonc", "json5"), parse_json)
    return _last_json(text) if isinstance(found, Unparsed) and "```" not in text else found


def yaml_value(text: str) -> Extraction[Any]:
    """The YAML value of a text: its last fenced block or the whole text."""
    return _fenced_or_whole(text, ("yaml", "yml"), parse_yaml)


def toml_value(text: str) -> Extraction[dict[str, Any]]:
    """The TOML table of a text: its last fenced block or the whole text."""
    return _fenced_or_whole(text, ("toml",), parse_toml)


def xml_element(text: str) -> Extraction[Element]:
    """The XML element of a text: its last fenced block, or the whole text."""
    return _fenced_or_whole(text, ("xml", "html"), parse_xml)


def csv_rows(text: str) -> Extraction[list[list[str]]]:
    """The rows of a CSV text, all of one length: its last fenced block or the whole text."""
    return _fenced_or_whole(text, ("csv",), parse_csv)


def _fenced_or_whole(text: str, names: tuple[str, ...], parse: Callable[[str], Any]) -> Extraction[Any]:
    if len(text) > LARGEST:
        return Unparsed(f"longer than {LARGEST:,} characters")
    blocks = [block for block in fenced_blocks(text) if block.rule in (*names, "")]
    chosen = blocks[-1] if blocks else Extracted(text.strip(), _inner_span(text), "whole_text")
    if not chosen.value.strip():
        return Unparsed("the text is empty")
    try:
        value = parse(chosen.value)
    except Malformed as problem:
        return Unparsed(str(problem))
    return Extracted(value, chosen.span, "fenced" if blocks else "whole_text")


def _inner_span(text: str) -> tuple[int, int]:
    start = len(text) - len(text.lstrip())
    return start, max(start, len(text.rstrip()))


# -- JSON


_BRACKET = re.compile(r"[\[{]")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|[\[\]{}]')
"""A string that is never closed ends with its line, so nothing is read twice."""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Malformed("a key is given twice")
    return made


def _no_constant(name: str) -> Any:
    raise Malformed(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Malformed("a number is too large")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)


def parse_json(text: str) -> Any:
    """The value `text` is, nothing before or behind it."""
    _check_depth(text)
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise Malformed("nested too deep") from None
    except ValueError as problem:
        raise Malformed(f"not JSON: {problem}") from None


def _check_depth(text: str) -> None:
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        depth += 1 if token[0] in ("[", "{") else -1 if token[0] in ("]", "}") else 0
        if depth > DEEPEST:
            raise Malformed(f"nested more than {DEEPEST} levels deep")


_STARTS_DATA = re.compile(r'\s*+["{\[]')


def _last_json(text: str) -> Extraction[Any]:
    """The last complete object or array.

    Never a part of one: where something that looks like data is broken, there is no answer. Reads the text a bounded
    number of times, whatever stands in it.
    """
    budget = 4 * len(text) + 10_000
    position, last, problem = 0, None, "there is no JSON"
    while budget > 0 and (opened := _BRACKET.search(text, position)) is not None:
        start, end = opened.start(), _closing(text, opened.start())
        budget -= (end or len(text)) - start + 400
        if end is None:
            if _STARTS_DATA.match(text, opened.end()):
                return Unparsed("the last JSON is not closed")
            position = opened.end()
            continue
        try:
            last = Extracted(parse_json(text[start:end]), (start, end), "last_json")
        except Malformed as found:
            if '"' in text[start:end] or _STARTS_DATA.match(text, opened.end()):
                last, problem = None, str(found)
        position = end
    if budget <= 0:
        return Unparsed("too many brackets that lead nowhere")
    return last or Unparsed(problem)


def _closing(text: str, start: int) -> int | None:
    """Where the bracket at `start` is closed, strings respected."""
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text, start):
        if token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
            if depth == 0:
                return token.end()
    return None


# -- YAML

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _PlainLoader(_LOADER):  # type: ignore[misc]
    """Strings, numbers, booleans and null; a date stays text."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in entries if not tag.endswith((":timestamp", ":merge", ":value"))]
    for first, entries in _LOADER.yaml_implicit_resolvers.items()
}


def _mapping(loader: Any, node: Any) -> dict[Any, Any]:
    pairs = [
        (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
        for key, value in node.value
    ]
    if any(isinstance(key, dict | list) for key, _ in pairs):
        raise Malformed("a key is not plain text")
    return _no_duplicates(pairs)


_PlainLoader.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse_yaml(text: str) -> Any:
    """The one document `text` is."""
    try:
        _check_events(text)
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as problem:
        raise Malformed(f"not YAML: {str(problem).splitlines()[0]}") from None
    except (ValueError, RecursionError) as problem:
        raise Malformed(f"not YAML: {problem}") from None


def _check_events(text: str) -> None:
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if count > MOST_EVENTS:
            raise Malformed(f"more than {MOST_EVENTS:,} values")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise Malformed("anchors and aliases are not allowed")
        if getattr(event, "tag", None):
            raise Malformed("tags are not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise Malformed(f"nested more than {DEEPEST} levels deep")


# -- TOML, XML, CSV


_LONG_KEY = re.compile(rf"(?<![\w.-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")
"""`a.b.c.d…`: every dot is one level."""


def parse_toml(text: str) -> dict[str, Any]:
    """The table `text` is."""
    _check_depth(text)
    if _LONG_KEY.search(text):
        raise Malformed(f"nested more than {DEEPEST} levels deep")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as problem:
        raise Malformed(f"not TOML: {problem}") from None


def parse_xml(text: str) -> Element:
    """The element `text` is. A document type, and with it every entity, is refused."""
    builder = TreeBuilder()
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise Malformed(f"nested more than {DEEPEST} levels deep")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def refuse(*_: object) -> None:
        raise Malformed("document types and entities are not allowed")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.strip().encode(), True)
        return builder.close()
    except expat.ExpatError as problem:
        raise Malformed(f"not XML: {problem}") from None


def parse_csv(text: str) -> list[list[str]]:
    """The rows of `text`."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text.strip(), newline=""), strict=True) if row]
    except csv.Error as problem:
        raise Malformed(f"not CSV: {problem}") from None
    if len({len(row) for row in rows}) != 1:
        raise Malformed("not CSV: the rows have different lengths")
    return rows
