"""Check data against a JSON Schema (2020-12), with bounded work and without network access.

`jsonschema` does the checks and is imported on first use. References must stay inside the schema. An unknown keyword is
an error of the schema, because `jsonschema` would ignore it.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any, TypeAlias

from nemo_gym.grading import patterns
from nemo_gym.grading.patterns import PatternTooSlow, UnusablePattern

Schema: TypeAlias = dict[str, Any] | bool
Check: TypeAlias = Callable[[Any, Any, Any, dict[str, Any]], Iterator[Any]]

MAX_PROBLEMS = 20
MAX_MESSAGE = 300
MAX_STEPS = 2_000_000
"""Maximum number of keywords evaluated for one value; bounds recursive schemas."""
MAX_PATTERN_INPUT = 10_000
"""Maximum length of strings matched against a `pattern`, which may backtrack."""
MAX_PATTERN_SECONDS = 1.0
"""Processor time for all patterns of one value."""

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
_pattern_seconds: ContextVar[list[float]] = ContextVar("schema_pattern_seconds")
"""The processor time that is left for patterns, as the only item."""


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
        problem = _keyword_problem(key, value)
        if problem is not None:
            yield f"{path}{problem}"
        elif key in _SCHEMA:
            yield from _keyword_problems(value, f"{path}/{key}")
        elif key in _SCHEMA_LISTS:
            for index, item in enumerate(value):
                yield from _keyword_problems(item, f"{path}/{key}/{index}")
        elif key in _SCHEMA_MAPS:
            for name, item in value.items():
                yield from _keyword_problems(item, f"{path}/{key}/{name}")


def _keyword_problem(key: str, value: Any) -> str | None:
    """Return the problem of a keyword and its value, after their path; None without one."""
    if key not in _KEYWORDS and not key.startswith("x-"):
        return f": unknown keyword '{key}'"
    if key == "$ref" and not value.startswith("#"):
        return "/$ref: a reference outside the schema"
    if key == "enum" and not value:
        return "/enum: an empty list"
    if isinstance(value, float) and not math.isfinite(value):
        return f"/{key}: not a finite number"
    try:
        for pattern in [value] if key == "pattern" else value if key == "patternProperties" else ():
            patterns.compile_pattern(pattern)
    except UnusablePattern as unusable:
        return f"/{key}: {unusable}"
    return None


def find_violations(value: Any, schema: Schema) -> list[str]:
    """Return the violations of `schema` in `value`, at most 20; empty if the value conforms.

    An endless, missing or external reference in the schema is a violation, too.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    token = _steps.set(iter(range(MAX_STEPS)))
    _pattern_seconds.set([MAX_PATTERN_SECONDS])
    try:
        # An empty registry, because the default one fetches references from the network.
        errors = _validator_class()(schema, registry=Registry()).iter_errors(value)
        return [_describe(error, "$") for error in islice(errors, MAX_PROBLEMS)]
    except RecursionError:
        return ["$: the schema refers to itself without end"]
    except _WorkLimitExceeded:
        return [f"$: not decided within {MAX_STEPS:,} steps"]
    except PatternTooSlow:
        return [f"$: the patterns are not decided within {MAX_PATTERN_SECONDS:g} s"]
    except UnusablePattern as problem:
        return [f"$: {problem}"]
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
    checks |= {"pattern": _check_pattern, "patternProperties": _check_pattern_properties}
    checks["additionalProperties"] = _without_patterns(checks["additionalProperties"])
    return extend(Draft202012Validator, {name: _with_counted_steps(check) for name, check in checks.items()})


def _with_counted_steps(check: Check) -> Check:
    """Wrap a check so that it counts as one step and raises at the limit."""

    def counted_check(validator: Any, keyword_value: Any, value: Any, schema: dict[str, Any]) -> Iterator[Any]:
        if next(_steps.get(), None) is None:
            raise _WorkLimitExceeded
        return check(validator, keyword_value, value, schema)

    return counted_check


def _has_match(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a text, within the time that is left for this value."""
    left = _pattern_seconds.get()
    start = time.process_time()
    try:
        return patterns.has_match(pattern, text, max(0.001, left[0]))
    finally:
        left[0] -= time.process_time() - start


def _check_pattern(validator: Any, pattern: str, value: Any, _schema: dict[str, Any]) -> Iterator[Any]:
    """Check `pattern` with bounded work; a long string is a violation."""
    if not validator.is_type(value, "string"):
        return
    if len(value) > MAX_PATTERN_INPUT:
        yield _violation(f"longer than {MAX_PATTERN_INPUT:,} characters, too long for a pattern")
    elif not _has_match(pattern, value):
        yield _violation(f"{value!r} does not match {pattern!r}")


def _check_pattern_properties(
    validator: Any, schemas: dict[str, Any], value: Any, _schema: dict[str, Any]
) -> Iterator[Any]:
    """Check `patternProperties` with bounded work; a long name is a violation."""
    if not validator.is_type(value, "object"):
        return
    if any(len(name) > MAX_PATTERN_INPUT for name in value):
        yield _violation(f"longer than {MAX_PATTERN_INPUT:,} characters, too long for a pattern")
        return
    for pattern, schema in schemas.items():
        for name, item in value.items():
            if _has_match(pattern, name):
                yield from validator.descend(item, schema, path=name, schema_path=pattern)


def _without_patterns(check: Check) -> Check:
    """Wrap `additionalProperties`: names that match `patternProperties` are passed to it as ordinary properties."""

    def check_names(validator: Any, keyword_value: Any, value: Any, schema: dict[str, Any]) -> Iterator[Any]:
        expressions = schema.get("patternProperties", {})
        if not expressions or not validator.is_type(value, "object"):
            return check(validator, keyword_value, value, schema) or iter(())
        if any(len(name) > MAX_PATTERN_INPUT for name in value):
            return iter(())  # a violation of `patternProperties`
        names = [name for name in value if any(_has_match(pattern, name) for pattern in expressions)]
        properties = {**schema.get("properties", {}), **dict.fromkeys(names, True)}
        return check(validator, keyword_value, value, {"properties": properties}) or iter(())

    return check_names


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
