"""JSON Schema, as much of it as describes the shape of an answer, checked without surprises.

References stay inside the schema, nothing is fetched, and a keyword that is not known is an error of the schema rather
than a check that silently never happens.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any] | bool

MOST_PROBLEMS = 20
DEEPEST = 100
LONGEST_FOR_PATTERN = 10_000
"""Longer strings are not tried against a `pattern` of the data: it may be one that backtracks."""

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_NOTES = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "format", "deprecated"}
_NOTES |= {"readOnly", "writeOnly", "$defs", "definitions", "$anchor", "contentMediaType", "contentEncoding"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_INNER = {"items", "additionalProperties", "not", "propertyNames", "contains"}
_INNER_LISTS = {"anyOf", "oneOf", "allOf", "prefixItems"}
_INNER_MAPS = {"properties", "patternProperties", "$defs", "definitions"}
_PLAIN = {"type", "enum", "const", "required", "pattern", "uniqueItems", "$ref"}
_KNOWN = _NOTES | _NUMBERS | _COUNTS | _INNER | _INNER_LISTS | _INNER_MAPS | _PLAIN


def strict(schema: Any) -> Any:
    """The schema with every property of every object required and no others allowed."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: {name: strict(one) for name, one in value.items()}
        if key in _INNER_MAPS and isinstance(value, dict)
        else strict(value)
        if key in _INNER | _INNER_LISTS
        else value
        for key, value in schema.items()
    }
    if isinstance(made.get("properties"), dict):
        made["required"] = list(made["properties"])
        made["additionalProperties"] = False
    return made


def schema_problems(schema: Any, path: str = "#", depth: int = 0) -> list[str]:
    """What is wrong with a schema, in words; empty when it can be checked against."""
    if isinstance(schema, bool):
        return []
    if not isinstance(schema, dict):
        return [f"{path}: neither an object nor a boolean"]
    if depth > DEEPEST:
        return [f"{path}: nested too deep"]
    found = [f"{path}: unknown keyword '{key}'" for key in schema if key not in _KNOWN and not key.startswith("x-")]
    found += [f"{path}/{key}: {problem}" for key, value in schema.items() if (problem := _malformed(key, value))]
    for inner, place in _inner(schema, path):
        found += schema_problems(inner, place, depth + 1)
    return found[:MOST_PROBLEMS]


def _inner(schema: dict[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    for key, value in schema.items():
        if key in _INNER:
            yield value, f"{path}/{key}"
        elif key in _INNER_LISTS and isinstance(value, list):
            yield from ((one, f"{path}/{key}/{number}") for number, one in enumerate(value))
        elif key in _INNER_MAPS and isinstance(value, dict):
            yield from ((one, f"{path}/{key}/{name}") for name, one in value.items())


def _malformed(key: str, value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    checks = {
        "type": (all(name in _TYPES for name in names), f"not one of {', '.join(_TYPES)}"),
        "enum": (isinstance(value, list) and bool(value), "not a list with values"),
        "required": (isinstance(value, list) and all(isinstance(n, str) for n in value), "not a list of names"),
        "$ref": (isinstance(value, str) and value.startswith("#"), "a reference out of the schema"),
        "pattern": (isinstance(value, str) and _compiles(value), "not a regular expression"),
        "patternProperties": (isinstance(value, dict) and all(map(_compiles, value)), "not a map of expressions"),
        **dict.fromkeys(_NUMBERS, (is_number and math.isfinite(value), "not a number")),
        **dict.fromkeys(_COUNTS, (is_number and value >= 0, "not a count")),
        **dict.fromkeys(_INNER_LISTS, (isinstance(value, list), "not a list")),
        **dict.fromkeys(_INNER_MAPS - {"patternProperties"}, (isinstance(value, dict), "not an object")),
    }
    good, problem = checks.get(key, (True, ""))
    return None if good else problem


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def violations(value: Any, schema: Schema) -> list[str]:
    """Where `value` is not what `schema` says, at most twenty places; empty when it is."""
    return list(_take(_check(value, schema, "$", schema, 0)))


def _take(problems: Iterator[str]) -> Iterator[str]:
    for number, problem in enumerate(problems):
        if number >= MOST_PROBLEMS:
            return
        yield problem


def _check(value: Any, schema: Any, path: str, root: Any, depth: int) -> Iterator[str]:
    if isinstance(schema, bool):
        if not schema:
            yield f"{path}: nothing is allowed here"
        return
    if depth > DEEPEST:
        yield f"{path}: the schema refers to itself without end"
        return
    if "$ref" in schema:
        yield from _check(value, _referred(root, schema["$ref"]), path, root, depth + 1)
    if (problem := _another_kind(value, schema)) is not None:
        yield f"{path}: {problem}"
        return
    yield from _combined(value, schema, path, root, depth)
    if isinstance(value, dict):
        yield from _object(value, schema, path, root, depth)
    elif isinstance(value, list):
        yield from _array(value, schema, path, root, depth)
    elif isinstance(value, str):
        yield from _string(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, schema, path)


def _another_kind(value: Any, schema: dict[str, Any]) -> str | None:
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is(value, name) for name in names):
            return f"is not {' or '.join(names)}"
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        return "is not one of the values of enum"
    if "const" in schema and not _same(value, schema["const"]):
        return "is not the one value allowed"
    return None


def _referred(root: Any, reference: str) -> Any:
    found = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not name:
            continue
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return False
    return found


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    kinds = {"object": dict, "array": list, "string": str, "number": int | float, "null": type(None)}
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return name in kinds and isinstance(value, kinds[name])


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: True is not 1, 1.0 is 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _fingerprint(value: Any) -> Any:
    """Something hashable that is the same for the same JSON."""
    if isinstance(value, list):
        return ("list", *map(_fingerprint, value))
    if isinstance(value, dict):
        return ("dict", *sorted((str(key), repr(_fingerprint(item))) for key, item in value.items()))
    return (type(value).__name__ if isinstance(value, bool | str) else "", value)


def _combined(value: Any, schema: dict[str, Any], path: str, root: Any, depth: int) -> Iterator[str]:
    def fits(inner: Any) -> bool:
        return next(_check(value, inner, path, root, depth + 1), None) is None

    for inner in schema.get("allOf", ()):
        yield from _check(value, inner, path, root, depth + 1)
    if "anyOf" in schema and not any(fits(inner) for inner in schema["anyOf"]):
        yield f"{path}: fits none of anyOf"
    if "oneOf" in schema and (count := sum(fits(inner) for inner in schema["oneOf"])) != 1:
        yield f"{path}: fits {count} of oneOf, not one"
    if "not" in schema and fits(schema["not"]):
        yield f"{path}: is what is forbidden by not"


def _object(value: dict[str, Any], schema: dict[str, Any], path: str, root: Any, depth: int) -> Iterator[str]:
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}: '{name}' is missing"
    yield from _counted(len(value), schema, "Properties", path, "properties")
    for name, item in value.items():
        place = f"{path}.{name}"
        inner = [properties[name]] if name in properties else []
        inner += [one for pattern, one in patterns.items() if re.search(pattern, str(name)[:LONGEST_FOR_PATTERN])]
        if not inner and schema.get("additionalProperties", True) is False:
            yield f"{path}: '{name}' is not allowed"
            continue
        if "propertyNames" in schema:
            yield from _check(name, schema["propertyNames"], place, root, depth + 1)
        for one in inner or [schema.get("additionalProperties", True)]:
            yield from _check(item, one, place, root, depth + 1)


def _array(value: list[Any], schema: dict[str, Any], path: str, root: Any, depth: int) -> Iterator[str]:
    yield from _counted(len(value), schema, "Items", path, "items")
    if schema.get("uniqueItems") and len({_fingerprint(item) for item in value}) < len(value):
        yield f"{path}: has an item twice"
    first = schema.get("prefixItems", [])
    for number, item in enumerate(value):
        inner = first[number] if number < len(first) else schema.get("items", True)
        yield from _check(item, inner, f"{path}[{number}]", root, depth + 1)
    if "contains" in schema:
        fits = (next(_check(item, schema["contains"], path, root, depth + 1), None) is None for item in value)
        if not any(fits):
            yield f"{path}: contains nothing that fits"


def _string(value: str, schema: dict[str, Any], path: str) -> Iterator[str]:
    yield from _counted(len(value), schema, "Length", path, "characters")
    if "pattern" in schema and (len(value) > LONGEST_FOR_PATTERN or not re.search(schema["pattern"], value)):
        yield f"{path}: does not match the pattern"


def _counted(count: int, schema: dict[str, Any], what: str, path: str, noun: str) -> Iterator[str]:
    if count < schema.get(f"min{what}", 0):
        yield f"{path}: has {count} {noun}, fewer than {schema[f'min{what}']}"
    if count > schema.get(f"max{what}", math.inf):
        yield f"{path}: has {count} {noun}, more than {schema[f'max{what}']}"


def _number(value: float, schema: dict[str, Any], path: str) -> Iterator[str]:
    if value < schema.get("minimum", -math.inf) or value <= schema.get("exclusiveMinimum", -math.inf):
        yield f"{path}: is too small"
    if value > schema.get("maximum", math.inf) or value >= schema.get("exclusiveMaximum", math.inf):
        yield f"{path}: is too large"
    step = schema.get("multipleOf")
    if step and abs(value / step - round(value / step)) > 1e-9:
        yield f"{path}: is not a multiple of {step}"
