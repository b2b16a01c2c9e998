"""One line of a dataset file as a row, or everything that is wrong with the line."""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from nemo_gym.config.problems import dotted
from nemo_gym.data.problems import Problem

Row = dict[str, Any]

BOM = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"
CRLF = Problem("", "the line ends in CRLF", "write plain line feeds: sed -i 's/\\r$//' FILE")
TOO_DEEP = Problem("", "the line is nested too deep")

_BEYOND_64_BITS = re.compile(rb"[0-9]{19}")
_KINDS = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number", type(None): "null"}


def read_line(raw: bytes) -> tuple[Row | None, list[Problem]]:
    """The row that a line (without its line feed) holds, and what is wrong with how it is written.

    Whatever orjson accepts silently and other readers do not agree on is a problem: keys given twice above all.
    """
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return _diagnosed(raw, error)
    problems = [CRLF] if raw.endswith(b"\r") else []
    if type(row) is not dict:
        return None, [*problems, Problem("", f"the line is {_KINDS[type(row)]}, not a JSON object")]
    try:
        if not _keys_are_single(raw, row):
            problems += _repeated_keys(raw)
    except orjson.JSONEncodeError:  # it reads deeper than it writes
        return None, [*problems, TOO_DEEP]
    return row, problems


def exact_row(raw: bytes) -> Row:
    """The row of a line that `read_line` accepted, with whole numbers of any size; orjson makes them floats."""
    row: Row = json.loads(raw) if _BEYOND_64_BITS.search(raw) else orjson.loads(raw)
    return row


def row_line(row: Row) -> bytes:
    """A row as a line, with its line feed."""
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a whole number beyond 64 bits
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _keys_are_single(raw: bytes, row: Row) -> bool:
    """Whether each object has each key once, by counting quotes: a key that was dropped took its own with it.

    May be False without cause, never True without: a quote can also be written as \\u0022, and then we do not count.
    """
    if b"\\" in raw and b"\\u0022" in raw:  # the first is over in no time, and most lines have none
        return False
    return raw.count(b'"') == orjson.dumps(row).count(b'"')


class _Object(dict[str, Any]):
    """An object that remembers which keys came twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: list[str] = []
        if len(self) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen and key not in self.repeated:
                    self.repeated.append(key)
                seen.add(key)


def _repeated_keys(raw: bytes) -> list[Problem]:
    row = json.loads(raw, object_pairs_hook=_Object)
    return [
        Problem(place, f"the key {key!r} is given more than once")
        for place, value in _walk(row, lambda value: isinstance(value, _Object) and bool(value.repeated))
        for key in value.repeated
    ]


def _diagnosed(raw: bytes, error: orjson.JSONDecodeError) -> tuple[Row | None, list[Problem]]:
    """Why a line is not JSON, in words; a byte order mark alone still leaves a row to look at."""
    problems = [CRLF] if raw.endswith(b"\r") else []
    if not raw.strip(SPACE):
        return None, [*problems, Problem("", "the line is empty")]
    if raw.startswith(BOM):
        row, more = read_line(raw[len(BOM) :])
        return row, [Problem("", "the line begins with a byte order mark (BOM)", "save the file without it"), *more]
    try:
        text = raw.decode()
    except UnicodeDecodeError as wrong:
        detail = f"first: byte 0x{raw[wrong.start]:02x} at column {wrong.start + 1}"
        return None, [*problems, Problem("", "the line is not UTF-8", detail)]
    return None, [*problems, *_why_not_json(text, error)]


def _why_not_json(text: str, error: orjson.JSONDecodeError) -> list[Problem]:
    if "depth" in error.msg:
        return [TOO_DEEP]
    try:
        row = json.loads(text)
    except json.JSONDecodeError as wrong:
        return [Problem("", f"the line is not JSON: {wrong.msg.lower()}", f"first: at column {wrong.colno}")]
    except RecursionError:
        return [TOO_DEEP]
    except ValueError:  # Python reads no whole number of more than a few thousand digits
        return [Problem("", "the line holds a number of thousands of digits")]
    found = [
        Problem(place, f"{_spelled(value)} is not JSON", "write null, or leave the field out")
        for place, value in _walk(row, lambda value: isinstance(value, float) and not math.isfinite(value))
    ]
    found += [
        Problem(place, "the text holds half a character (a lone surrogate)") for place, _ in _walk(row, _is_halved)
    ]
    return found or [Problem("", f"the line is not JSON: {error.msg}", f"first: at column {error.colno}")]


def _spelled(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity, or a number beyond 1.8e308,"


def _is_halved(value: Any) -> bool:
    if not isinstance(value, str) or value.isascii():
        return False
    return any("\ud800" <= character <= "\udfff" for character in value)


def _walk(value: Any, wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Every wanted value with its place in the row; places in lists read `[*]`."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        path, value = waiting.pop()
        if wanted(value):
            yield anywhere(path), value
        children: list[tuple[str | int, Any]] = []
        if isinstance(value, dict):
            yield from ((anywhere((*path, "(key)")), key) for key in value if wanted(key))
            children = list(value.items())
        elif isinstance(value, list):
            children = list(enumerate(value))
        waiting += [((*path, key), child) for key, child in reversed(children)]


def anywhere(path: tuple[str | int, ...]) -> str:
    """`a.b[*].c`: the place of a value, the same for every element of a list."""
    return re.sub(r"\[\d+\]", "[*]", dotted(path))
