"""Problems of dataset rows, and their messages: one for all lines with the same problem. The checks are in `rows`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.errors import GymError

EN_DASH = "–"
LISTED_RANGES = 100
"""Maximum number of line ranges in a message; `--json` prints all."""


class DataError(GymError, ValueError):
    """Dataset rows or their metrics file cannot be used."""


@dataclass(frozen=True, slots=True)
class RowProblem:
    """One reason why a row cannot be used."""

    field: str
    """Path of the field, with `[*]` for any element of a list; empty if the problem concerns the whole line."""
    reason: str
    detail: str = ""
    """Information that differs from row to row, such as the column."""

    def __str__(self) -> str:
        location = f"{self.field}: " if self.field else ""
        return f"{location}{self.reason}"


class LineRanges:
    """Line numbers in increasing order, stored as ranges."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, first: int, last: int | None = None) -> None:
        """Add a line, or the lines from `first` to `last`. `first` must not be before the last range."""
        last = first if last is None else last
        if self._ranges and first <= self._ranges[-1][1] + 1:
            begin, end = self._ranges[-1]
            self._ranges[-1] = (begin, max(end, last))
        else:
            self._ranges.append((first, last))

    def merge(self, other: "LineRanges", after: int) -> None:
        """Add the lines of `other`, whose line 1 is the line after `after`."""
        for first, last in other:
            self.add(first + after, last + after)

    def up_to(self, line: int) -> "LineRanges":
        """Return the lines up to and including `line`."""
        result = LineRanges()
        result._ranges = [(first, min(last, line)) for first, last in self if first <= line]
        return result

    def nth_line(self, count: int) -> int:
        """Return the `count`th line number, counted from 1; the last one if there are fewer."""
        for first, last in self:
            if count <= last - first + 1:
                return first + count - 1
            count -= last - first + 1
        return self._ranges[-1][1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def __len__(self) -> int:
        """Return the number of lines."""
        return sum(last - first + 1 for first, last in self)

    def __str__(self) -> str:
        listed = self._ranges[:LISTED_RANGES]
        parts = [str(first) if first == last else f"{first}{EN_DASH}{last}" for first, last in listed]
        rest = f", … ({len(self)} in all)" if len(self._ranges) > LISTED_RANGES else ""
        return f"{'line' if len(self) == 1 else 'lines'} {', '.join(parts)}{rest}"


@dataclass(slots=True)
class ProblemGroup:
    """All lines that share one problem."""

    lines: LineRanges = field(default_factory=LineRanges)
    first_detail: str = ""


class RowProblems:
    """The problems of the rows of one file."""

    __slots__ = ("_groups", "_invalid_lines")

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], ProblemGroup] = {}
        self._invalid_lines = LineRanges()

    def add(self, line: int, problems: Iterable[RowProblem]) -> None:
        """Add the problems of a line; lines must be added in order."""
        for problem in problems:
            group = self._groups.setdefault((problem.field, problem.reason), ProblemGroup(first_detail=problem.detail))
            group.lines.add(line)
            self._invalid_lines.add(line)

    def merge(self, other: "RowProblems", after: int) -> None:
        """Add the problems of a part of the file that begins after line `after`."""
        for key, part in other._groups.items():
            group = self._groups.setdefault(key, ProblemGroup(first_detail=part.first_detail))
            group.lines.merge(part.lines, after)
        self._invalid_lines.merge(other._invalid_lines, after)

    def first(self, count: int) -> "RowProblems":
        """Return the problems of the first `count` invalid rows."""
        result = RowProblems()
        last = self._invalid_lines.nth_line(count)
        result._invalid_lines = self._invalid_lines.up_to(last)
        for key, group in self._groups.items():
            lines = group.lines.up_to(last)
            if lines:
                result._groups[key] = ProblemGroup(lines, group.first_detail)
        return result

    @property
    def rows(self) -> int:
        """The number of invalid rows."""
        return len(self._invalid_lines)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __str__(self) -> str:
        return "\n".join(self.texts())

    def texts(self) -> Iterator[str]:
        """Yield one text per group: lines, field, reason and the detail of the first line."""
        for (path, reason), group in self._groups.items():
            detail = f" ({group.first_detail})" if group.first_detail else ""
            yield f"{group.lines}: {RowProblem(path, reason)}{detail}"

    def report(self) -> list[dict[str, Any]]:
        """Return the groups as JSON values."""
        return [
            {
                "lines": [[first, last] for first, last in group.lines],
                "count": len(group.lines),
                "field": path,
                "reason": reason,
                "first_detail": group.first_detail,
            }
            for (path, reason), group in self._groups.items()
        ]


def row_count_text(rows: int) -> str:
    """Return `1 row`, `2 rows`."""
    return f"{rows} row" if rows == 1 else f"{rows} rows"
