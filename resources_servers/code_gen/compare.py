"""What a program printed or returned, compared with what was expected. Runs here, never where the program ran."""

import json
import re
from decimal import Decimal
from typing import Any

LONGEST_SHOWN = 200
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,6})?", re.ASCII)


def output_differs(printed: str, expected: str) -> str | None:
    """Why the lines differ, or None. Space around the text and around each line is ignored.

    Lines that are not the same text are the same when both are nothing but numbers of equal value, one by one:
    `1.50 2` is `1.5 2.0`. Nothing is rounded.
    """
    said, wanted = _lines(printed), _lines(expected)
    if not printed.strip() and expected.strip():
        return "nothing was printed"
    for number, (line, right) in enumerate(zip(said, wanted, strict=False), start=1):
        if line != right and not _same_numbers(line, right):
            return f"line {number} is {shown(line)}, expected {shown(right)}"
    if len(said) != len(wanted):
        return f"{len(said)} lines, expected {len(wanted)}"
    return None


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_numbers(line: str, right: str) -> bool:
    said, wanted = line.split(), right.split()
    if len(said) != len(wanted):
        return False
    return all(_equal(one, other) for one, other in zip(said, wanted, strict=True))


def _equal(one: str, other: str) -> bool:
    if _NUMBER.fullmatch(one) is None or _NUMBER.fullmatch(other) is None:
        return False
    return Decimal(one) == Decimal(other)


def value_differs(returned: str, expected: Any) -> str | None:
    """Why the returned value, as JSON, is not `expected`, or None.

    Tuples are lists and `1` is `1.0`; nothing is rounded.
    """
    try:
        value = json.loads(returned)
    except (ValueError, RecursionError):
        return "the returned value cannot be read"
    try:
        same = bool(value == expected)
    except RecursionError:
        same = False
    return None if same else f"returned {shown(returned)}, expected {shown(json.dumps(expected))}"


def shown(text: str) -> str:
    """`text` for people: quoted, and cut when it is long."""
    return repr(text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…")
