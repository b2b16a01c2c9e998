"""Compare the output or value of a program with the expected one, outside the box."""

import json
import re
from decimal import Decimal
from typing import Any

LONGEST_QUOTE = 200
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,6})?", re.ASCII)


def output_difference(printed: str, expected: str) -> str | None:
    """Return the first difference of two texts, or None. Space around the text and around each line is ignored.

    Lines with different text are equal if both consist of numbers of equal value, one by one: `1.50 2` is `1.5 2.0`.
    Nothing is rounded.
    """
    lines, expected_lines = _lines(printed), _lines(expected)
    if not printed.strip() and expected.strip():
        return "nothing was printed"
    for number, (line, right) in enumerate(zip(lines, expected_lines, strict=False), start=1):
        if line != right and not _same_numbers(line, right):
            return f"line {number} is {quote(line)}, expected {quote(right)}"
    if len(lines) != len(expected_lines):
        return f"{len(lines)} lines, expected {len(expected_lines)}"
    return None


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_numbers(line: str, right: str) -> bool:
    words, expected = line.split(), right.split()
    if len(words) != len(expected):
        return False
    return all(_equal(one, other) for one, other in zip(words, expected, strict=True))


def _equal(one: str, other: str) -> bool:
    if _NUMBER.fullmatch(one) is None or _NUMBER.fullmatch(other) is None:
        return False
    return Decimal(one) == Decimal(other)


def value_difference(returned: str, expected: Any) -> str | None:
    """Return the difference of the returned value, as JSON, from `expected`, or None.

    Tuples are lists and `1` is `1.0`; nothing is rounded.
    """
    try:
        value = json.loads(returned)
    except (ValueError, RecursionError):
        return "the returned value cannot be read"
    try:
        is_same = bool(value == expected)
    except RecursionError:
        is_same = False
    return None if is_same else f"returned {quote(returned)}, expected {quote(json.dumps(expected))}"


def quote(text: str) -> str:
    """Return a text in quotes, cut if it is long."""
    return repr(text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…")
