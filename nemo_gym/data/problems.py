"""Rows that cannot be used: which lines, which field and why, grouped so that a thousand bad lines read as one."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.errors import GymError

EN_DASH = "–"


class DataError(GymError, ValueError):
    """Rows, or what is known about them, cannot be used as they are."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one row."""

    field: str
    """Where in the row, with `[*]` for any place in a list; empty for the line as a whole."""
    reason: str
    detail: str = ""
    """What only this row shows, such as the column."""

    def __str__(self) -> str:
        place = f"{self.field}: " if self.field else ""
        return f"{place}{self.reason}"


class LineRanges:
    """Line numbers in increasing order, kept as ranges."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = array("q")  # first, last, first, last, …

    def add(self, line: int) -> None:
        """Count a line that is not before the last one; adding the last one again changes nothing."""
        ends = self._ends
        if ends and line <= ends[-1] + 1:
            ends[-1] = max(line, ends[-1])
        else:
            ends.extend((line, line))

    def merge(self, other: "LineRanges", after: int) -> None:
        """Add the lines of `other`, which were counted from `after`."""
        for first, last in other:
            self.add(first + after)
            self._ends[-1] = last + after

    def until(self, line: int) -> "LineRanges":
        """Only the lines up to this one."""
        kept = LineRanges()
        for first, last in self:
            if first <= line:
                kept._ends.extend((first, min(last, line)))
        return kept

    def number(self, count: int) -> int:
        """The line that is the `count`th, from 1; the last one if there are fewer."""
        for first, last in self:
            if count <= last - first + 1:
                return first + count - 1
            count -= last - first + 1
        return self._ends[-1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._ends[::2], self._ends[1::2], strict=True)

    def __len__(self) -> int:
        """How many lines."""
        return sum(last - first + 1 for first, last in self)

    def __str__(self) -> str:
        parts = [str(first) if first == last else f"{first}{EN_DASH}{last}" for first, last in self]
        return f"{'line' if len(self) == 1 else 'lines'} {', '.join(parts)}"


@dataclass(slots=True)
class Group:
    """All lines that share one problem."""

    lines: LineRanges = field(default_factory=LineRanges)
    first_detail: str = ""


class Problems:
    """What is wrong with the rows of one file."""

    __slots__ = ("_bad", "_groups")

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], Group] = {}
        self._bad = LineRanges()

    def add(self, line: int, problems: Iterable[Problem]) -> None:
        """Note what is wrong with a line; lines come in order."""
        for problem in problems:
            group = self._groups.setdefault((problem.field, problem.reason), Group(first_detail=problem.detail))
            group.lines.add(line)
            self._bad.add(line)

    def merge(self, other: "Problems", after: int) -> None:
        """Add what was found in a part of the file that begins after line `after`."""
        for key, found in other._groups.items():
            group = self._groups.setdefault(key, Group(first_detail=found.first_detail))
            group.lines.merge(found.lines, after)
        self._bad.merge(other._bad, after)

    def first(self, count: int) -> "Problems":
        """What is wrong with the first `count` rows that have a problem."""
        kept = Problems()
        last = self._bad.number(count)
        kept._bad = self._bad.until(last)
        for key, group in self._groups.items():
            lines = group.lines.until(last)
            if lines:
                kept._groups[key] = Group(lines, group.first_detail)
        return kept

    @property
    def rows(self) -> int:
        """How many rows cannot be used."""
        return len(self._bad)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __str__(self) -> str:
        return "\n".join(self._texts())

    def _texts(self) -> Iterator[str]:
        for (place, reason), group in self._groups.items():
            detail = f" ({group.first_detail})" if group.first_detail else ""
            yield f"{group.lines}: {Problem(place, reason)}{detail}"

    def report(self) -> list[dict[str, Any]]:
        """The groups as plain data."""
        return [
            {
                "lines": [list(ends) for ends in group.lines],
                "count": len(group.lines),
                "field": place,
                "reason": reason,
                "first_detail": group.first_detail,
            }
            for (place, reason), group in self._groups.items()
        ]


def counted(rows: int) -> str:
    """`1 row`, `2 rows`."""
    return f"{rows} row" if rows == 1 else f"{rows} rows"
