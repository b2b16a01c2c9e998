"""Parse text in one of five formats; where the format has no types, convert values to the types of the schema."""

import math
import re
from collections.abc import Callable
from typing import Any, Literal
from xml.etree.ElementTree import Element

from nemo_gym.grading.data_formats import MalformedData, parse_csv, parse_json, parse_toml, parse_xml, parse_yaml

Format = Literal["json", "yaml", "xml", "toml", "csv"]
LARGEST = 1 << 20

_INTEGER = re.compile(r"[+-]?\d{1,300}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][+-]?\d{1,3})?")


def parse_reply(text: str, format_name: Format, schema: Any, *, coerce_xml: bool) -> Any:
    """Parse the whole of `text` as one value.

    Raises:
        Malformed: the text is not in the format.
    """
    if len(text) > LARGEST:
        raise MalformedData(f"longer than {LARGEST:,} characters")
    if format_name == "csv":
        return csv_to_data(parse_csv(text), schema)
    if format_name == "xml":
        return xml_to_data(parse_xml(text), schema, schema, coerce_xml)
    parsers: dict[str, Callable[[str], Any]] = {"json": parse_json, "yaml": parse_yaml, "toml": parse_toml}
    return parsers[format_name](text)


def csv_to_data(rows: list[list[str]], schema: Any) -> Any:
    """Return rows as objects with the names of the header; one object if the schema requires an object."""
    header, *data = rows
    if len(set(header)) != len(header):
        raise MalformedData("not CSV: a column is given twice")
    item = _resolve_reference(schema, schema)
    is_single = _type_names(item) == ["object"]
    if not is_single:
        item = _resolve_reference(item.get("items", {}), schema)
    columns = item.get("properties", {})
    if not data and columns and set(header) != set(columns):  # without rows, no other check reads the header
        raise MalformedData(f"not the table: its columns are {', '.join(header)[:200]}, not {', '.join(columns)}")
    objects = [
        {
            name: coerce_text(cell, _resolve_reference(columns.get(name, {}), schema))
            for name, cell in zip(header, row, strict=True)
        }
        for row in data
    ]
    return objects[0] if is_single and len(objects) == 1 else objects


def xml_to_data(element: Element, schema: Any, root: Any, coerce: bool) -> Any:
    """Return an element as the object, array or scalar of the schema; attributes are fields as well."""
    schema = _resolve_reference(schema, root)
    kinds = _type_names(schema)
    if "array" in kinds:
        return [xml_to_data(child, schema.get("items", {}), root, coerce) for child in element]
    if len(element) or element.attrib or kinds == ["object"]:
        if element.text and element.text.strip() and len(element):
            raise MalformedData("not data: text between elements")
        return _xml_object(element, schema, root, coerce)
    text = element.text or ""
    return coerce_text(text.strip(), schema) if coerce else text


def _xml_object(element: Element, schema: Any, root: Any, coerce: bool) -> dict[str, Any]:
    properties = schema.get("properties", {})
    fields: dict[str, Any] = {
        name: coerce_text(value, _resolve_reference(properties.get(name, {}), root))
        for name, value in element.attrib.items()
    }
    children_by_tag: dict[str, list[Element]] = {}
    for child in element:
        children_by_tag.setdefault(child.tag, []).append(child)
    for tag, children in children_by_tag.items():
        inner = _resolve_reference(properties.get(tag, {}), root)
        first = children[0]
        if "array" in _type_names(inner) and (len(children) > 1 or (not len(first) and first.text)):
            fields[tag] = [xml_to_data(one, inner.get("items", {}), root, coerce) for one in children]
        elif len(children) > 1 or tag in fields:
            raise MalformedData(f"not data: '{tag}' is given twice")
        else:
            fields[tag] = xml_to_data(first, inner, root, coerce)
    return fields


def coerce_text(text: str, schema: Any) -> Any:
    """Convert `text` to the first type of `schema` that it can have; return it unchanged if none fits."""
    for kind in _type_names(schema):
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


def _type_names(schema: Any) -> list[str]:
    kinds = schema.get("type", []) if isinstance(schema, dict) else []
    return list(kinds) if isinstance(kinds, list) else [kinds]


def _resolve_reference(schema: Any, root: Any) -> dict[str, Any]:
    """Follow a chain of references inside `root` and return the schema at its end."""
    for _ in range(8):
        if not isinstance(schema, dict):
            return {}
        if "$ref" not in schema:
            return schema
        target = root
        for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
            target = target.get(part, {}) if isinstance(target, dict) and part else target
        schema = target
    return {}
