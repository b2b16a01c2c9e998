"""Check data against a JSON Schema (2020-12), with bounded work and without network access.

`jsonschema` does the checks and is imported on first use. References must stay inside the schema. An unknown keyword is
an error of the schema, because `jsonschema` would ignore it.
"""

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any] | bool
Check: TypeAlias = Callable[[Any, Any, Any, dict[str, Any]], Iterator[Any]]

MAX_PROBLEMS = 20
MAX_MESSAGE = 300
MAX_STEPS = 2_000_000
"""Maximum number of keywords evaluated for one value; bounds recursive schemas."""
MAX_PATTERN_INPUT = 10_000
"""Maximum length of strings matched against a `pattern`, which may backtrack."""

# Keywords by their value: a schema, a list of schemas, schemas by name, other values, values that nothing checks.
_SCHEMA = {"items", "additionalProperties", "not", "propertyNames", "contains"}
_SCHEMA_LISTS = {"anyOf", "oneOf", "allOf", "prefixItems"}
_SCHEMA_MAPS = {"properties", "patternProperties", "$defs", "definitions"}
_VALUES = {
    *("type", "enum", "const", "required", "pattern", "uniqueItems", "$ref", "minLength", "maxLength", "minItems"),
    *("maxItems", "minProperties", "maxProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "multipleOf",
}
_ANNOTATIONS = {
    *("$schema", "$id", "$comment", "$anchor", "title", "description", "default", "examples", "format", "deprecated"),
    *("readOnly", "writeOnly", "contentMediaType", "contentEncoding"),
}
_KEYWORDS = _SCHEMA | _SCHEMA_LISTS | _SCHEMA_MAPS | _VALUES | _ANNOTATIONS

_steps: ContextVar[Iterator[int]] = ContextVar("schema_steps")


class _WorkLimitExceeded(Exception):
    """A value needs more steps than `MAX_STEPS`."""


def make_strict(schema: Any) -> Any:
    """Return the schema with all properties of every object required and additional properties forbidden."""
    if isinstance(schema, list):
        return [make_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for key, value in schema.items():
        if key in _SCHEMA_MAPS and isinstance(value, dict):
            result[key] = {name: make_strict(item) for name, item in value.items()}
        elif key in _SCHEMA | _SCHEMA_LISTS:
            result[key] = make_strict(value)
    if isinstance(result.get("properties"), dict):
        result["required"] = list(result["properties"])
        result["additionalProperties"] = False
    return result


def schema_problems(schema: Any) -> list[str]:
    """Return the problems of a schema; empty if it is valid."""
    from jsonschema import Draft202012Validator

    metaschema = Draft202012Validator(
        Draft202012Validator.META_SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    try:
        problems = [_describe(error, "#") for error in islice(metaschema.iter_errors(schema), MAX_PROBLEMS)]
        return problems or list(islice(_keyword_problems(schema, "#"), MAX_PROBLEMS))
    except RecursionError:
        return ["#: nested too deep"]


def _keyword_problems(schema: Any, path: str) -> Iterator[str]:
    """Yield problems that the metaschema allows, such as unknown keywords and references outside the schema."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key not in _KEYWORDS and not key.startswith("x-"):
            yield f"{path}: unknown keyword '{key}'"
        elif key == "$ref" and not value.startswith("#"):
            yield f"{path}/$ref: a reference outside the schema"
        elif key == "enum" and not value:
            yield f"{path}/enum: an empty list"
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{path}/{key}: not a finite number"
        elif key in _SCHEMA:
            yield from _keyword_problems(value, f"{path}/{key}")
        elif key in _SCHEMA_LISTS:
            for index, item in enumerate(value):
                yield from _keyword_problems(item, f"{path}/{key}/{index}")
        elif key in _SCHEMA_MAPS:
            for name, item in value.items():
                yield from _keyword_problems(item, f"{path}/{key}/{name}")


def find_violations(value: Any, schema: Schema) -> list[str]:
    """Return the violations of `schema` in `value`, at most 20; empty if the value conforms.

    An endless, missing or external reference in the schema is a violation, too.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    token = _steps.set(iter(range(MAX_STEPS)))
    try:
        # An empty registry, because the default one fetches references from the network.
        errors = _validator_class()(schema, registry=Registry()).iter_errors(value)
        return [_describe(error, "$") for error in islice(errors, MAX_PROBLEMS)]
    except RecursionError:
        return ["$: the schema refers to itself without end"]
    except _WorkLimitExceeded:
        return [f"$: not decided within {MAX_STEPS:,} steps"]
    except Unresolvable as problem:
        return [f"$: the schema has no part {problem.ref!r}"]
    finally:
        _steps.reset(token)


def _describe(error: Any, root: str) -> str:
    message = error.message if len(error.message) <= MAX_MESSAGE else f"{error.message[:MAX_MESSAGE]}…"
    return f"{error.json_path.replace('$', root, 1)}: {message}"


@cache
def _validator_class() -> Any:
    """Return the 2020-12 validator class with a step limit, bounded patterns and our `multipleOf` and `uniqueItems`."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    checks = dict(Draft202012Validator.VALIDATORS)
    checks |= {"multipleOf": _check_multiple, "uniqueItems": _check_unique}
    for name in ("pattern", "patternProperties", "additionalProperties"):
        checks[name] = _with_bounded_input(checks[name])
    return extend(Draft202012Validator, {name: _with_counted_steps(check) for name, check in checks.items()})


def _with_counted_steps(check: Check) -> Check:
    """Wrap a check so that it counts as one step and raises at the limit."""

    def counted_check(validator: Any, keyword_value: Any, value: Any, schema: dict[str, Any]) -> Iterator[Any]:
        if next(_steps.get(), None) is None:
            raise _WorkLimitExceeded
        return check(validator, keyword_value, value, schema)

    return counted_check


def _with_bounded_input(check: Check) -> Check:
    """Wrap a check with patterns so that it rejects long strings and long names instead of matching them."""

    def bounded_check(validator: Any, keyword_value: Any, value: Any, schema: dict[str, Any]) -> Iterator[Any]:
        # `pattern` has a string as its value; `additionalProperties` uses the patterns of `patternProperties`.
        uses_pattern = isinstance(keyword_value, str) or "patternProperties" in schema
        texts = value if isinstance(value, dict) else [value]
        if uses_pattern and any(isinstance(text, str) and len(text) > MAX_PATTERN_INPUT for text in texts):
            yield _violation(f"longer than {MAX_PATTERN_INPUT:,} characters, too long for a pattern")
        else:
            yield from check(validator, keyword_value, value, schema) or ()

    return bounded_check


def _check_multiple(validator: Any, step: float, value: Any, _schema: dict[str, Any]) -> Iterator[Any]:
    """Check `multipleOf` with exact decimals, so that 0.3 is a multiple of 0.1."""
    if not validator.is_type(value, "number"):
        return
    is_finite = isinstance(value, int) or math.isfinite(value)
    if not is_finite or (Fraction(str(value)) / Fraction(str(step))).denominator != 1:
        yield _violation(f"{value!r} is not a multiple of {step}")


def _check_unique(validator: Any, is_required: bool, value: Any, _schema: dict[str, Any]) -> Iterator[Any]:
    """Check `uniqueItems` in linear time; the library compares all pairs."""
    if is_required and validator.is_type(value, "array") and len({_fingerprint(item) for item in value}) < len(value):
        yield _violation("the items are not unique")


def _violation(message: str) -> Exception:
    from jsonschema.exceptions import ValidationError

    error: Exception = ValidationError(message)
    return error


def _fingerprint(value: Any) -> Any:
    """Return a hashable value that is equal for equal JSON values; True differs from 1, and 1.0 equals 1."""
    if isinstance(value, list):
        return ("list", *map(_fingerprint, value))
    if isinstance(value, dict):
        return ("dict", frozenset((str(key), _fingerprint(item)) for key, item in value.items()))
    return (type(value).__name__ if isinstance(value, bool | str) else "", value)
