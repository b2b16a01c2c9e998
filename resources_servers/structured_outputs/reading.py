"""Text in one of five formats to plain data, with the types its schema asks for where the format has none."""

import math
import re
from collections.abc import Callable
from typing import Any, Literal
from xml.etree.ElementTree import Element

from nemo_gym.grading.structured import Malformed, parse_csv, parse_json, parse_toml, parse_xml, parse_yaml

Format = Literal["json", "yaml", "xml", "toml", "csv"]
LARGEST = 1 << 20

_INTEGER = re.compile(r"[+-]?\d{1,300}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][+-]?\d{1,3})?")


def read(text: str, format_name: Format, schema: Any, *, coerce_xml: bool) -> Any:
    """The value the whole of `text` is.

    Raises:
        Malformed: it is something else.
    """
    if len(text) > LARGEST:
        raise Malformed(f"longer than {LARGEST:,} characters")
    if format_name == "csv":
        return from_csv(parse_csv(text), schema)
    if format_name == "xml":
        return from_xml(parse_xml(text), schema, schema, coerce_xml)
    parsers: dict[str, Callable[[str], Any]] = {"json": parse_json, "yaml": parse_yaml, "toml": parse_toml}
    return parsers[format_name](text)


def from_csv(rows: list[list[str]], schema: Any) -> Any:
    """Rows as objects by the names in the first one; alone where the schema asks for one object."""
    header, *data = rows
    if len(set(header)) != len(header):
        raise Malformed("not CSV: a column is given twice")
    item = _resolved(schema, schema)
    single = _types(item) == ["object"]
    if not single:
        item = _resolved(item.get("items", {}), schema)
    columns = item.get("properties", {})
    if not data and columns and set(header) != set(columns):  # without rows nothing else would look at the header
        raise Malformed(f"not the table: its columns are {', '.join(header)[:200]}, not {', '.join(columns)}")
    made = [
        {name: coerced(cell, _resolved(columns.get(name, {}), schema)) for name, cell in zip(header, row, strict=True)}
        for row in data
    ]
    return made[0] if single and len(made) == 1 else made


def from_xml(element: Element, schema: Any, root: Any, coerce: bool) -> Any:
    """An element as the schema sees it: object, array or scalar. Attributes are fields of their own."""
    schema = _resolved(schema, root)
    kinds = _types(schema)
    if "array" in kinds:
        return [from_xml(child, schema.get("items", {}), root, coerce) for child in element]
    if len(element) or element.attrib or kinds == ["object"]:
        if element.text and element.text.strip() and len(element):
            raise Malformed("not data: text between elements")
        return _xml_object(element, schema, root, coerce)
    text = element.text or ""
    return coerced(text.strip(), schema) if coerce else text


def _xml_object(element: Element, schema: Any, root: Any, coerce: bool) -> dict[str, Any]:
    properties = schema.get("properties", {})
    made: dict[str, Any] = {
        name: coerced(value, _resolved(properties.get(name, {}), root)) for name, value in element.attrib.items()
    }
    alike: dict[str, list[Element]] = {}
    for child in element:
        alike.setdefault(child.tag, []).append(child)
    for tag, children in alike.items():
        inner = _resolved(properties.get(tag, {}), root)
        first = children[0]
        if "array" in _types(inner) and (len(children) > 1 or (not len(first) and first.text)):
            made[tag] = [from_xml(one, inner.get("items", {}), root, coerce) for one in children]
        elif len(children) > 1 or tag in made:
            raise Malformed(f"not data: '{tag}' is given twice")
        else:
            made[tag] = from_xml(first, inner, root, coerce)
    return made


def coerced(text: str, schema: Any) -> Any:
    """`text` as the first type of `schema` that it can be; itself when it can be none."""
    for kind in _types(schema):
        if kind == "string":
            return text
        if kind == "null" and text in ("", "null"):
            return None
        if kind == "boolean" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind == "integer" and _INTEGER.fullmatch(text):
            return int(text)
        if kind == "number" and _NUMBER.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
    return text


def _types(schema: Any) -> list[str]:
    kinds = schema.get("type", []) if isinstance(schema, dict) else []
    return list(kinds) if isinstance(kinds, list) else [kinds]


def _resolved(schema: Any, root: Any) -> dict[str, Any]:
    """The schema a chain of references inside `root` leads to."""
    for _ in range(8):
        if not isinstance(schema, dict):
            return {}
        if "$ref" not in schema:
            return schema
        found = root
        for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
            found = found.get(part, {}) if isinstance(found, dict) and part else found
        schema = found
    return {}
