"""Dataset rows: parse a line, check a row, check a file. All code that reads datasets uses these functions.

`parse_row` accepts any JSON object. `read_line` is strict: it also reports constructs that JSON parsers treat
differently, such as duplicate keys. `RowChecker` and `row_problems` check whether a row is a valid run request.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from nemo_gym.catalog.row_problems import RowProblem, RowProblems
from nemo_gym.config.problems import did_you_mean, dotted_path
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME as PARAMS
from nemo_gym.wire.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.wire.run_seed_verify import BaseRunRequest

Row = dict[str, Any]

BOM = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"
CRLF = RowProblem("", "the line ends in CRLF", "use line feeds: sed -i 's/\\r$//' FILE")
BYTE_ORDER_MARK = RowProblem("", "the line begins with a byte order mark (BOM)", "save the file without it")
TOO_DEEP = RowProblem("", "the line is nested too deep")
NO_PARAMS = RowProblem(PARAMS, "the field is missing")

MAX_CACHED_SETTINGS = 4096
"""Maximum size of the cache; caching does not help for files with more distinct settings."""
ROLES = frozenset({"user", "assistant", "system", "developer"})
SIMPLE_ITEMS = {
    "function_call": {"type", "call_id", "name", "arguments"},
    "function_call_output": {"type", "call_id", "output"},
}
CHAT_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "functions": "tools",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}
"""Chat Completions parameter -> its name in the Responses API."""

_BEYOND_64_BITS = re.compile(rb"[0-9]{19}")
_KIND_NAMES = {
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


# -- one line -----------------------------------------------------------------------------------------------------


def parse_row(line: bytes, where: str, error: type[GymError] = ConfigError) -> Row:
    """Parse a line that must be a JSON object; `where` is its location, for example `rows.jsonl:7`.

    Raises:
        GymError: (of type `error`) the line is not a JSON object.
    """
    row = parse_object(line)
    if isinstance(row, RowProblem):
        detail = f" ({row.detail.removeprefix('first: ')})" if row.detail else ""
        raise error(f"{row}{detail}", where=where)
    return row


def read_line(raw: bytes) -> tuple[Row | None, list[RowProblem]]:
    """Parse a line (without its line feed) strictly; return the row, if any, and the problems of its JSON.

    Constructs that orjson accepts and other parsers treat differently are problems, above all duplicate keys.
    """
    if raw.startswith(BOM):
        row, more = read_line(raw[len(BOM) :])
        return row, [BYTE_ORDER_MARK, *more]
    problems = [CRLF] if raw.endswith(b"\r") else []
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return None, [*problems, *_json_problems(raw, error)]
    if type(row) is not dict:
        return None, [*problems, _not_an_object(row)]
    try:
        if _can_have_duplicate_keys(raw, row):
            problems += _duplicate_keys(raw)
    except orjson.JSONEncodeError:  # orjson parses deeper nesting than it can encode
        return None, [*problems, TOO_DEEP]
    return row, problems


def exact_row(raw: bytes) -> Row:
    """Parse a line that `read_line` accepted. Integers beyond 64 bits, which orjson makes floats, stay exact."""
    row: Row = json.loads(raw) if _BEYOND_64_BITS.search(raw) else orjson.loads(raw)
    return row


def row_line(row: Row) -> bytes:
    """Encode a row as a line, with its line feed."""
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def wildcard_path(path: tuple[str | int, ...]) -> str:
    """Format a path as `a.b[*].c`: the paths of all elements of a list have the same text."""
    return re.sub(r"\[\d+\]", "[*]", dotted_path(path))


def parse_object(line: bytes) -> Row | RowProblem:
    """Parse a JSON object; return the problem if the line is not one."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if line.startswith(BOM):
            return BYTE_ORDER_MARK
        return _json_problems(line, error)[0]
    return row if isinstance(row, dict) else _not_an_object(row)


def _not_an_object(value: Any) -> RowProblem:
    return RowProblem("", f"the line is {_KIND_NAMES[type(value)]}, not a JSON object")


def _can_have_duplicate_keys(raw: bytes, row: Row) -> bool:
    """Return False if the parsed row has all quotes of the line: parsing drops duplicate keys with their quotes.

    Lines with the escape \\u0022 are not counted, because a row is encoded with another escape.
    """
    if b"\\" in raw and b"\\u0022" in raw:  # the first test is fast and False for most lines
        return True
    return raw.count(b'"') != orjson.dumps(row).count(b'"')


class _KeyRecorder(dict[str, Any]):
    """A dict that records its duplicate keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.duplicates: list[str] = []
        if len(self) < len(pairs):
            self.duplicates = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def _duplicate_keys(raw: bytes) -> list[RowProblem]:
    """Return a problem for every duplicate key in a line."""
    row = json.loads(raw, object_pairs_hook=_KeyRecorder)
    return [
        RowProblem(path, f"the key {key!r} is given twice")
        for path, value in _walk(row, lambda value: isinstance(value, _KeyRecorder) and bool(value.duplicates))
        for key in value.duplicates
    ]


def _json_problems(raw: bytes, error: orjson.JSONDecodeError) -> list[RowProblem]:
    """Return the problems of a line that orjson rejects."""
    if not raw.strip(SPACE):
        return [RowProblem("", "the line is empty")]
    try:
        text = raw.decode()
    except UnicodeDecodeError as decode_error:
        byte = f"first: byte 0x{raw[decode_error.start]:02x} at column {decode_error.start + 1}"
        return [RowProblem("", "the line is not UTF-8", f"{byte}; save the file as UTF-8")]
    if "depth" in error.msg:
        return [TOO_DEEP]
    try:
        row = json.loads(text)
    except json.JSONDecodeError as json_error:
        return [
            RowProblem("", f"the line is not JSON: {json_error.msg.lower()}", f"first: at column {json_error.colno}")
        ]
    except RecursionError:
        return [TOO_DEEP]
    except ValueError:  # Python rejects integers of more than a few thousand digits
        return [RowProblem("", "the line contains a number with thousands of digits")]
    problems = [
        RowProblem(path, f"{_spell_float(value)} is not JSON", "use null, or remove the field")
        for path, value in _walk(row, lambda value: isinstance(value, float) and not math.isfinite(value))
    ]
    problems += [RowProblem(path, "the text contains a lone surrogate") for path, _ in _walk(row, _has_surrogate)]
    return problems or [RowProblem("", f"the line is not JSON: {error.msg}", f"first: at column {error.colno}")]


def _spell_float(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity, or a number beyond 1.8e308,"


def _has_surrogate(value: Any) -> bool:
    if not isinstance(value, str) or value.isascii():
        return False
    return any("\ud800" <= character <= "\udfff" for character in value)


def _walk(value: Any, matches: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield every matching value and every matching key in a JSON value, with its wildcard path."""
    pending: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while pending:
        path, value = pending.pop()
        if matches(value):
            yield wildcard_path(path), value
        children: list[tuple[str | int, Any]] = []
        if isinstance(value, dict):
            yield from ((wildcard_path((*path, "(key)")), key) for key in value if matches(key))
            children = list(value.items())
        elif isinstance(value, list):
            children = list(enumerate(value))
        pending += [((*path, key), child) for key, child in reversed(children)]


# -- one row ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class RequestSettings:
    """All parameters of a request except `input`."""

    values: dict[str, Any]
    """The parameters as parsed by the wire types."""
    encoded: bytes
    """The parameters as JSON with sorted keys."""
    separators: int
    """Number of commas and colons in the values when encoded as JSON."""


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The parameters of a valid row."""

    input: Any
    settings: RequestSettings


class RowChecker:
    """Checks rows quickly by caching validated settings.

    The common forms of `input` are recognised without building objects, and the other parameters are validated once
    for each distinct value: in most files tools and sampling parameters are the same on every line. Other forms are
    validated by the wire types, so exactly the rows that the servers accept are valid.
    """

    def __init__(self) -> None:
        self._settings: dict[bytes, RequestSettings] = {}

    def parse_request(self, row: Row) -> RowRequest | None:
        """Return the request in a row; None if the row is invalid (`row_problems` returns the reasons)."""
        params = row.get(PARAMS)
        if type(params) is not dict or "input" not in params:
            return None
        items = params["input"]
        if not _is_simple(items) and _validate({"input": items}) is None:
            return None
        rest = {name: value for name, value in params.items() if name != "input"}
        encoded = orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)
        settings = self._settings.get(encoded)
        if settings is None:
            model = _validate({"input": "", **rest})
            if model is None:
                return None
            values = {name: getattr(model, name) for name in rest}
            settings = RequestSettings(values, encoded, sum(map(count_separators, rest.values())))
            if len(self._settings) >= MAX_CACHED_SETTINGS:
                self._settings.clear()
            self._settings[encoded] = settings
        return RowRequest(items, settings)


def row_problems(row: Row) -> list[RowProblem]:
    """Return the validation errors of the wire types for a row; empty for a valid run request."""
    try:
        BaseRunRequest.model_validate(row)
    except ValidationError as error:
        return list(dict.fromkeys(_validation_problems(row, error)))
    return []


def count_separators(value: Any) -> int:
    """Count the commas and colons between the parts of a value when encoded as JSON."""
    if isinstance(value, dict):
        total = max(2 * len(value) - 1, 0)
        children = list(value.values())
    elif isinstance(value, list):
        total = max(len(value) - 1, 0)
        children = value
    else:
        return 0
    for child in children:
        if type(child) is not str:
            total += count_separators(child)
    return total


def _validate(params: dict[str, Any]) -> NeMoGymResponseCreateParamsNonStreaming | None:
    try:
        return NeMoGymResponseCreateParamsNonStreaming.model_validate(params)
    except ValidationError:
        return None


def _is_simple(items: Any) -> bool:
    """Return whether an input is a text, or a list of messages and function calls in their simplest form."""
    if type(items) is str:
        return True
    return type(items) is list and all(type(item) is dict and _is_simple_item(item) for item in items)


def _is_simple_item(item: dict[str, Any]) -> bool:
    """Return whether an item is a plain text message, or a function call or output with only its required fields."""
    role = item.get("role")
    if type(role) is str:
        is_bare = len(item) == 2 or (len(item) == 3 and item.get("type") == "message")
        return is_bare and role in ROLES and type(item.get("content")) is str
    kind = item.get("type")
    fields = SIMPLE_ITEMS.get(kind) if type(kind) is str else None
    return item.keys() == fields and all(type(value) is str for value in item.values())


def _validation_problems(row: Row, error: ValidationError) -> Iterator[RowProblem]:
    """Convert pydantic's errors to problems with paths in the row."""
    for detail in error.errors(include_url=False, include_input=False):
        path, container = _data_path(row, detail["loc"])
        kind, context = detail["type"], detail.get("ctx", {})
        reason = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if kind == "extra_forbidden":
            reason = _unknown_field(path, container)
        elif kind in ("model_type", "dict_type"):
            reason = "should be an object"
        elif kind == "union_tag_invalid":
            reason = f"unknown type {context['tag']!r}: expected one of {context['expected_tags']}"
        elif kind == "union_tag_not_found":
            reason = "has no type"
        yield RowProblem(wildcard_path(path), reason[:1].lower() + reason[1:])


def _data_path(row: Row, location: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], Any]:
    """Convert pydantic's error location to a path in the row; also return the object or list that contains the error.

    A location also contains branches of unions, which are not keys of the data and are removed.
    """
    path: list[int | str] = []
    container: Any = row
    value: Any = row
    tag_may_follow = False
    for number, part in enumerate(location):
        if isinstance(value, list) and isinstance(part, int):
            path.append(part)
            container, value, tag_may_follow = value, value[part], True
        elif isinstance(value, dict):
            is_branch = tag_may_follow and part == value.get("type")
            tag_may_follow = False
            is_last = number == len(location) - 1  # may be a missing field
            if not is_branch and (part in value or is_last):
                path.append(part)
                container, value = value, value.get(part)
    return tuple(path), container


def _unknown_field(path: tuple[int | str, ...], container: Any) -> str:
    """Return the reason for an unknown field, with a hint for names of Chat Completions."""
    name = str(path[-1])
    if path[:-1] == (PARAMS,):
        if name in CHAT_NAMES:
            return f"not a field of the Responses API — its name there is '{CHAT_NAMES[name]}'"
        fields = NeMoGymResponseCreateParamsNonStreaming.model_fields
        return f"not a field of the Responses API{did_you_mean(name, fields)}"
    if name == "function" and isinstance(container, Mapping) and container.get("type") == "function":
        return "a Chat Completions tool — here name, description and parameters are next to type"
    return "unknown field"


# -- one file -----------------------------------------------------------------------------------------------------


def check_file(path: Path, *, needs_params: bool) -> tuple[int, RowProblems]:
    """Return the number of rows of a file, and problems for lines that are not JSON objects; blank lines are skipped.

    With `needs_params`, a row must also have `responses_create_params`, because no prompt adds it later.
    """
    count, problems = 0, RowProblems()
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            count += 1
            row = parse_object(line)
            if isinstance(row, RowProblem):
                problems.add(number, [row])
            elif needs_params and PARAMS not in row:
                problems.add(number, [NO_PARAMS])
    return count, problems
