"""An office: five tables and what was plotted, as one session sees them, and how two of them compare."""

from collections import Counter
from collections.abc import Mapping
from functools import cache

from resources_servers.workplace_assistant.world import Row, first_tables

Table = dict[str, Row]

EXACT = frozenset({"status", "list_name", "board"})
"""Columns whose case matters."""


class Office:
    """Rows are replaced, never changed, so that a fresh office costs a few shallow copies."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.tables = {name: dict(table) for name, table in tables.items()}

    @classmethod
    def fresh(cls) -> "Office":
        return cls(_first())

    def add(self, table: str, row: Row) -> str:
        """Keep a new row under the next free id, which is returned."""
        rows = self.tables[table]
        width = len(next(iter(_first()[table])))
        row_id = f"{max(map(int, [*_first()[table], *rows])) + 1:0{width}}"
        rows[row_id] = row
        return row_id

    def change(self, table: str, row_id: str, column: str, value: str) -> None:
        self.tables[table][row_id] = {**self.tables[table][row_id], column: value}


@cache
def _first() -> dict[str, Table]:
    return first_tables()


def differing_tables(one: Office, other: Office) -> list[str]:
    """The tables in which two offices differ.

    Rows that were there from the beginning are compared by their ids, new ones without: their ids only say in which
    order they were made. Case matters in the columns of `EXACT` alone.
    """
    return [name for name in one.tables if _content(name, one) != _content(name, other)]


def _content(name: str, office: Office) -> tuple[Mapping[str, object], Counter[tuple[tuple[str, str], ...]]]:
    """The old rows that are changed (None: gone), and the new ones."""
    first, rows = _first()[name], office.tables[name]
    changed = {row_id: rows.get(row_id) for row_id, row in first.items() if rows.get(row_id) is not row}
    seen = {row_id: row and _comparable(row) for row_id, row in changed.items()}
    old = {row_id: row for row_id, row in seen.items() if row != _comparable(first[row_id])}
    return old, Counter(_comparable(row) for row_id, row in rows.items() if row_id not in first)


def _comparable(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple((column, value if column in EXACT else value.lower()) for column, value in sorted(row.items()))
