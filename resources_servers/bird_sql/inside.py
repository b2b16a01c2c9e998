"""The program inside the box: runs one query against a read-only copy of the database, within limits.

The source of this file is sent into the box, where nemo_gym cannot be imported. It prints one JSON object: the distinct
rows, or the failure.
"""

import json
import sqlite3
import sys
import time
from typing import Any

STEPS = 20_000
"""Instructions of SQLite's virtual machine between two checks of the clock."""
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
FORBIDDEN_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "randomblob", "zeroblob"}


def main() -> None:
    job = json.load(sys.stdin)
    try:
        result = run_query(job["sql"], job["seconds"], job["rows"], job["characters"])
    except MemoryError:
        result = {"kind": "memory", "error": "out of memory"}
    json.dump(result, sys.stdout)


def run_query(sql: str, seconds: float, most_rows: int, most_characters: int) -> dict[str, Any]:
    """Return the distinct rows of a query, its tables and number of columns, or the kind of its failure."""
    database = sqlite3.connect("file:data.sqlite?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most_characters)
    tables: set[str] = set()
    refused: list[str] = []

    def authorize(action: int, first: str | None, second: str | None, _database: str | None, _view: str | None) -> int:
        if action == sqlite3.SQLITE_READ and first:
            tables.add(first.lower())
        if action in ALLOWED:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in FORBIDDEN_FUNCTIONS:
            return sqlite3.SQLITE_OK
        refused.append(second or first or "statement")
        return sqlite3.SQLITE_DENY

    deadline = time.process_time() + seconds
    database.set_authorizer(authorize)
    database.set_progress_handler(lambda: time.process_time() > deadline, STEPS)
    try:
        return read_rows(database.execute(sql), most_rows, most_characters) | {"tables": sorted(tables)}
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as problem:
        if refused:
            return {"kind": "forbidden", "error": f"{problem} ({refused[0]})"}
        return {"kind": "time" if time.process_time() > deadline else "sql", "error": str(problem)}


def read_rows(cursor: sqlite3.Cursor, most_rows: int, most_characters: int) -> dict[str, Any]:
    if cursor.description is None:
        return {"kind": "sql", "error": "the statement has no result"}
    lines: set[str] = set()
    size = 0
    for row in cursor:
        line = json.dumps([{"hex": value.hex()} if isinstance(value, bytes) else value for value in row])
        if line not in lines:
            lines.add(line)
            size += len(line)
        if len(lines) > most_rows or size > most_characters:
            return {"kind": "rows", "error": f"more than {most_rows} rows or {most_characters} characters"}
    return {"columns": len(cursor.description), "rows": sorted(lines)}


if __name__ == "__main__":
    main()
