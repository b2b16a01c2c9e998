"""Dataset rows: parse a line, check a row, check a file. Every part that reads a dataset uses these functions.

`parse_row` accepts any JSON object. `read_line` is strict: it also reports what readers of JSON disagree on, such as
repeated keys. `RowChecker` and `row_problems` decide whether a row is a valid run request.
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
from nemo_gym.wire.tasks import BaseRunRequest

Row = dict[str, Any]

BOM = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"
CRLF = RowProblem("", "the line ends in CRLF", "write plain line feeds: sed -i 's/\\r$//' FILE")
TOO_DEEP = RowProblem("", "the line is nested too deep")
NO_PARAMS = RowProblem(PARAMS, "the field is missing")

MAX_CACHED_SETTINGS = 4096
"""Size of each cache; a file with more distinct values repeats few of them, so caching does not help."""
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
_KINDS = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number", type(None): "null"}


# -- one line -----------------------------------------------------------------------------------------------------


def parse_row(line: bytes, where: str, error: type[GymError] = ConfigError) -> Row:
    """Parse a line that must hold a JSON object; `where` is its location, for example `rows.jsonl:7`.

    Raises:
        GymError: (of type `error`) the line is not a JSON object.
    """
    row = _loads(line)
    if isinstance(row, RowProblem):
        detail = f" ({row.detail})" if row.detail else ""
        raise error(f"{row}{detail}", where=where)
    return row


def read_line(raw: bytes) -> tuple[Row | None, list[RowProblem]]:
    """Parse a line (without its line feed) strictly; return the row, if any, and the problems of its JSON.

    Anything orjson accepts silently although other readers disagree on it is a problem, above all repeated keys.
    """
    problems = [CRLF] if raw.endswith(b"\r") else []
    if raw.startswith(BOM):
        row, more = read_line(raw[len(BOM) :])
        return row, [RowProblem("", "the line begins with a byte order mark (BOM)", "save the file without it"), *more]
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return None, [*problems, *_json_problems(raw, error)]
    if type(row) is not dict:
        return None, [*problems, _not_an_object(row)]
    try:
        if not _has_single_keys(raw, row):
            problems += _repeated_keys(raw)
    except orjson.JSONEncodeError:  # orjson reads deeper than it writes
        return None, [*problems, TOO_DEEP]
    return row, problems


def exact_row(raw: bytes) -> Row:
    """Parse a line that `read_line` accepted, keeping integers beyond 64 bits, which orjson turns into floats."""
    row: Row = json.loads(raw) if _BEYOND_64_BITS.search(raw) else orjson.loads(raw)
    return row


def row_line(row: Row) -> bytes:
    """Encode a row as a line, with its line feed."""
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def wildcard_path(path: tuple[str | int, ...]) -> str:
    """Write a path as `a.b[*].c`: the same text for every element of a list."""
    return re.sub(r"\[\d+\]", "[*]", dotted_path(path))


def _loads(line: bytes) -> Row | RowProblem:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return _json_problems(line, error)[0]
    return row if isinstance(row, dict) else _not_an_object(row)


def _not_an_object(value: Any) -> RowProblem:
    return RowProblem("", f"the line is {_KINDS[type(value)]}, not a JSON object")


def _has_single_keys(raw: bytes, row: Row) -> bool:
    """Return whether no object repeats a key, by counting quotes: a dropped key takes its quotes with it.

    May return False without cause, never True without: a line that writes a quote as \\u0022 is not counted.
    """
    if b"\\" in raw and b"\\u0022" in raw:  # the first test is fast, and most lines have no backslash
        return False
    return raw.count(b'"') == orjson.dumps(row).count(b'"')


class _KeyRecorder(dict[str, Any]):
    """An object that remembers which of its keys were repeated."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: list[str] = []
        if len(self) < len(pairs):
            self.repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def _repeated_keys(raw: bytes) -> list[RowProblem]:
    row = json.loads(raw, object_pairs_hook=_KeyRecorder)
    return [
        RowProblem(path, f"the key {key!r} is given more than once")
        for path, value in _walk(row, lambda value: isinstance(value, _KeyRecorder) and bool(value.repeated))
        for key in value.repeated
    ]


def _json_problems(raw: bytes, error: orjson.JSONDecodeError) -> list[RowProblem]:
    """Explain why a line is not JSON."""
    if not raw.strip(SPACE):
        return [RowProblem("", "the line is empty")]
    try:
        text = raw.decode()
    except UnicodeDecodeError as wrong:
        detail = f"first: byte 0x{raw[wrong.start]:02x} at column {wrong.start + 1}"
        return [RowProblem("", "the line is not UTF-8", detail)]
    if "depth" in error.msg:
        return [TOO_DEEP]
    try:
        row = json.loads(text)
    except json.JSONDecodeError as wrong:
        return [RowProblem("", f"the line is not JSON: {wrong.msg.lower()}", f"first: at column {wrong.colno}")]
    except RecursionError:
        return [TOO_DEEP]
    except ValueError:  # Python refuses integers of more than a few thousand digits
        return [RowProblem("", "the line holds a number of thousands of digits")]
    problems = [
        RowProblem(path, f"{_spelling(value)} is not JSON", "write null, or leave the field out")
        for path, value in _walk(row, lambda value: isinstance(value, float) and not math.isfinite(value))
    ]
    problems += [
        RowProblem(path, "the text holds half a character (a lone surrogate)") for path, _ in _walk(row, _has_surrogate)
    ]
    return problems or [RowProblem("", f"the line is not JSON: {error.msg}", f"first: at column {error.colno}")]


def _spelling(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity, or a number beyond 1.8e308,"


def _has_surrogate(value: Any) -> bool:
    if not isinstance(value, str) or value.isascii():
        return False
    return any("\ud800" <= character <= "\udfff" for character in value)


def _walk(value: Any, matches: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield every matching value and key with its wildcard path."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        path, value = waiting.pop()
        if matches(value):
            yield wildcard_path(path), value
        children: list[tuple[str | int, Any]] = []
        if isinstance(value, dict):
            yield from ((wildcard_path((*path, "(key)")), key) for key in value if matches(key))
            children = list(value.items())
        elif isinstance(value, list):
            children = list(enumerate(value))
        waiting += [((*path, key), child) for key, child in reversed(children)]


# -- one row ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class RequestSettings:
    """All parameters of a request except `input`."""

    values: dict[str, Any]
    """As the wire types parse them."""
    encoded: bytes
    """As JSON with sorted keys."""
    separators: int
    """Commas and colons between the parts of the values, if they were written as JSON."""


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The parameters of a valid row."""

    input: Any
    settings: RequestSettings


class RowChecker:
    """Checks rows quickly, by caching the settings it has seen.

    The common forms of `input` are recognised without building objects, and the other parameters are validated once
    for each distinct value: in most files tools and sampling parameters are the same on every line. Anything it does
    not recognise is validated by the wire types, so it accepts exactly the rows that the servers accept.
    """

    def __init__(self) -> None:
        self._settings: dict[bytes, RequestSettings] = {}
        self._values: dict[tuple[str, bytes], Any] = {}

    def parse_request(self, row: Row) -> RowRequest | None:
        """Return the request in a row, or None if the row is invalid; `row_problems` explains why."""
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
            settings = self._parse_settings(rest, encoded)
            if settings is None:
                return None
            _remember(self._settings, encoded, settings)
        return RowRequest(items, settings)

    def _parse_settings(self, rest: dict[str, Any], encoded: bytes) -> RequestSettings | None:
        values = {}
        for name, value in rest.items():
            key = (name, orjson.dumps(value))
            if key not in self._values:
                model = _validate({"input": "", name: value})
                if model is None:
                    return None
                _remember(self._values, key, getattr(model, name))
            values[name] = self._values[key]
        return RequestSettings(values, encoded, sum(map(count_separators, rest.values())))


def row_problems(row: Row) -> list[RowProblem]:
    """Return everything the wire types refuse in a row; empty for a valid run request."""
    try:
        BaseRunRequest.model_validate(row)
    except ValidationError as error:
        return list(dict.fromkeys(_validation_problems(row, error)))
    return []


def count_separators(value: Any) -> int:
    """Count the commas and colons between the parts of a value if it is written as JSON."""
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


def _remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    if len(cache) >= MAX_CACHED_SETTINGS:
        cache.clear()
    cache[key] = value


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
    role = item.get("role")
    if type(role) is str:
        is_bare = len(item) == 2 or (len(item) == 3 and item.get("type") == "message")
        return is_bare and role in ROLES and type(item.get("content")) is str
    kind = item.get("type")
    fields = SIMPLE_ITEMS.get(kind) if type(kind) is str else None
    return item.keys() == fields and all(type(value) is str for value in item.values())


def _validation_problems(row: Row, error: ValidationError) -> Iterator[RowProblem]:
    for detail in error.errors(include_url=False, include_input=False):
        path, holder = _data_path(row, detail["loc"])
        kind, context = detail["type"], detail.get("ctx", {})
        reason = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if kind == "extra_forbidden":
            reason = _unknown_field(path, holder)
        elif kind in ("model_type", "dict_type"):
            reason = "should be an object"
        elif kind == "union_tag_invalid":
            reason = f"unknown type {context['tag']!r}: there are {context['expected_tags']}"
        elif kind == "union_tag_not_found":
            reason = "has no type"
        yield RowProblem(wildcard_path(path), reason[:1].lower() + reason[1:])


def _data_path(row: Row, location: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], Any]:
    """Turn pydantic's error location into a path in the row, and return the object around the error too.

    A location also names branches of unions; they are not keys of the data and are left out.
    """
    path: list[int | str] = []
    holder: Any = row
    value: Any = row
    in_list = False
    for number, part in enumerate(location):
        if isinstance(value, list) and isinstance(part, int):
            path.append(part)
            holder, value, in_list = value, value[part], True
        elif isinstance(value, dict):
            is_branch = in_list and part == value.get("type")
            in_list = False
            if not is_branch and (part in value or number == len(location) - 1):
                path.append(part)
                holder, value = value, value.get(part)
    return tuple(path), holder


def _unknown_field(path: tuple[int | str, ...], holder: Any) -> str:
    name = str(path[-1])
    if path[:-1] == (PARAMS,):
        if name in CHAT_NAMES:
            return f"not a field of the Responses API — it is called '{CHAT_NAMES[name]}' there"
        fields = NeMoGymResponseCreateParamsNonStreaming.model_fields
        return f"not a field of the Responses API{did_you_mean(name, fields)}"
    if name == "function" and isinstance(holder, Mapping) and holder.get("type") == "function":
        return "a Chat Completions tool — here name, description and parameters stand beside type"
    return "unknown field"


# -- one file -----------------------------------------------------------------------------------------------------


def check_file(path: Path, *, needs_params: bool) -> tuple[int, RowProblems]:
    """Count the rows of a file and collect the lines that are not JSON objects; blank lines are skipped.

    With `needs_params`, a row must also have `responses_create_params`: no prompt supplies it later.
    """
    count, problems = 0, RowProblems()
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            count += 1
            row = _loads(line)
            if isinstance(row, RowProblem):
                problems.add(number, [row])
            elif needs_params and PARAMS not in row:
                problems.add(number, [NO_PARAMS])
    return count, problems
