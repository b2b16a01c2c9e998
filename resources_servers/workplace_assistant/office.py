"""An office: five tables and its plots as one session sees them, and the comparison of two offices."""

from collections import Counter
from collections.abc import Mapping
from functools import cache

from resources_servers.workplace_assistant.world import Row, build_tables

Table = dict[str, Row]

EXACT = frozenset({"status", "list_name", "board"})
"""Columns whose case matters."""


class Office:
    """The tables of one session; rows are replaced, never changed, so that a new office costs a few shallow copies."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.tables = {name: dict(table) for name, table in tables.items()}

    @classmethod
    def new(cls) -> "Office":
        return cls(_initial_tables())

    def add(self, table: str, row: Row) -> str:
        """Add a row under the next free id and return the id."""
        rows = self.tables[table]
        width = len(next(iter(_initial_tables()[table])))
        row_id = f"{max(map(int, [*_initial_tables()[table], *rows])) + 1:0{width}}"
        rows[row_id] = row
        return row_id

    def change(self, table: str, row_id: str, column: str, value: str) -> None:
        self.tables[table][row_id] = {**self.tables[table][row_id], column: value}


@cache
def _initial_tables() -> dict[str, Table]:
    return build_tables()


def differing_tables(one: Office, other: Office) -> list[str]:
    """Return the names of the tables in which two offices differ.

    Initial rows are compared by their ids, new rows without, because their ids depend on the order of the calls. Case
    matters only in the columns of `EXACT`.
    """
    return [name for name in one.tables if _changes(name, one) != _changes(name, other)]


def _changes(name: str, office: Office) -> tuple[Mapping[str, object], Counter[tuple[tuple[str, str], ...]]]:
    """Return the initial rows that changed (None: deleted), and the new rows."""
    first, rows = _initial_tables()[name], office.tables[name]
    changed = {row_id: rows.get(row_id) for row_id, row in first.items() if rows.get(row_id) is not row}
    seen = {row_id: row and _comparable(row) for row_id, row in changed.items()}
    old = {row_id: row for row_id, row in seen.items() if row != _comparable(first[row_id])}
    return old, Counter(_comparable(row) for row_id, row in rows.items() if row_id not in first)


def _comparable(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple((column, value if column in EXACT else value.lower()) for column, value in sorted(row.items()))
