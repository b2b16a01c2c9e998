"""A SQLite database of a run's rollouts for the viewer: built once, extended as the files grow.

It is stored in the user's cache folder, so that viewing a run does not change its folder. Numbers are in the table
`rollouts`, longer texts in `cells`, and words in a full-text index, so that each query reads as little as possible.
Each line of the output (file 0) and of the failures (file 1) is a row of both tables. A failure is not current if the
rollout was scored, or failed again later.
"""

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from nemo_gym.journal import RolloutReader, parse_line, scan_lines
from nemo_gym.keys import NG_FAILURE_CLASS_KEY
from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.view.filters import COLUMNS, Condition, full_text_query, parse_filter
from nemo_gym.view.table_row import TEXT_COLUMNS, TableRow, build_table_row, reward_components
from nemo_gym.wire.stored_rollout import RolloutId

FORMAT = 6
"""Version of the schema; a database with another one is built again."""
BATCH = 4000
HEAD_BYTES = 4096
UNREADABLE_LINE = "unreadable line"

_NUMBER_COLUMNS = tuple(field.name for field in fields(TableRow) if field.name not in TEXT_COLUMNS)
_numbers_of, _texts_of = attrgetter(*_NUMBER_COLUMNS), attrgetter(*TEXT_COLUMNS)

_SCHEMA = f"""
CREATE TABLE rollouts(
    id INTEGER PRIMARY KEY, file INTEGER, start INTEGER, length INTEGER, current INTEGER DEFAULT 1,
    {", ".join(f"{name}{' REAL' if name.startswith(('reward', 'seconds')) else ''}" for name in _NUMBER_COLUMNS)});
CREATE TABLE cells(id INTEGER PRIMARY KEY, {", ".join(TEXT_COLUMNS)}, components TEXT);
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail='none', tokenize='unicode61');
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT);
CREATE INDEX by_place ON rollouts(task, rollout, current);
CREATE INDEX by_task ON rollouts(task, reward) WHERE current;
CREATE INDEX by_reward ON rollouts(reward, task, rollout) WHERE current;
CREATE INDEX by_failed ON rollouts(task, rollout) WHERE file = 1 AND current;
CREATE INDEX by_outcome ON rollouts(current, outcome, kind);
"""


@dataclass(frozen=True)
class ResultPage:
    """One page of the matching rows, and the total number of matching rows."""

    total: int
    rows: list[dict[str, Any]]


class RunDatabase:
    """The database of one run. Each method opens its own connection, so threads can query while another one builds."""

    def __init__(self, run: RunFiles, path: Path | None = None) -> None:
        self.run = run
        self.path = path or _cache_path(run)
        self._recreate_if_outdated()

    @property
    def files(self) -> tuple[Path, Path]:
        return self.run.output, self.run.failures

    def grow(self) -> bool:
        """Add a batch of new lines of each file; return whether there may be more. Incomplete last lines are left."""
        added_output, added_failures = (self._add_lines(number, path) for number, path in enumerate(self.files))
        return added_output or added_failures

    def build(self) -> None:
        """Add all lines of the files."""
        while self.grow():
            pass

    def progress(self) -> tuple[int, int]:
        """Return the number of bytes that were added so far, and the size of the files."""
        with self.connection() as database:
            done = sum(_bytes_done(database, number) for number in range(len(self.files)))
        return done, sum(path.stat().st_size for path in self.files if path.exists())

    def page(
        self,
        *,
        filter_text: str = "",
        words: str = "",
        sort: str = "task",
        down: bool = False,
        start: int = 0,
        count: int = 100,
    ) -> ResultPage:
        """Return one page of the rollouts that match a filter, sorted; raises FilterError for an invalid filter."""
        condition = _condition(filter_text, words)
        column = COLUMNS.get(sort, "r.task")
        direction = "DESC" if down else "ASC"
        order = f"{column} {direction}, r.task, r.rollout" if column != "r.task" else f"r.task {direction}, r.rollout"
        source = _from_clause(condition, needs_cells=column.startswith("c."))
        with self.connection() as database:
            total = database.execute(f"SELECT count(*) {source}", condition.values).fetchone()[0]
            query = f"SELECT id {source} ORDER BY {order} LIMIT ? OFFSET ?"
            ids = [row[0] for row in database.execute(query, (*condition.values, count, start))]
            return ResultPage(total, _read_rows(database, ids))

    def row(self, rollout_id: RolloutId) -> dict[str, Any]:
        """Return the table row of a rollout, which must exist."""
        task, repeat = rollout_id
        return self.page(filter_text=f"task == {task} and repeat == {repeat}", count=1).rows[0]

    def tasks(self, *, filter_text: str = "", words: str = "", start: int = 0, count: int = 100) -> ResultPage:
        """Return one page of the tasks that have matching rollouts, with these; raises FilterError for a bad filter."""
        condition = _condition(filter_text, words)
        source = _from_clause(condition)
        with self.connection() as database:
            total = database.execute(f"SELECT count(DISTINCT r.task) {source}", condition.values).fetchone()[0]
            query = f"SELECT r.task, avg(r.reward) {source} GROUP BY r.task ORDER BY r.task LIMIT ? OFFSET ?"
            means = database.execute(query, (*condition.values, count, start)).fetchall()
            rows = []
            columns = "r.id, r.rollout, r.reward, r.outcome, r.kind"
            query = f"SELECT {columns} {source} AND r.task = ? ORDER BY r.rollout"
            for task, mean in means:
                repeats = database.execute(query, (*condition.values, task)).fetchall()
                question = database.execute("SELECT question FROM cells WHERE id = ?", repeats[0][:1]).fetchone()[0]
                names = ("rollout", "reward", "outcome", "kind")
                rollouts = [dict(zip(names, repeat[1:], strict=True)) for repeat in repeats]
                rows.append({"task": task, "mean": mean, "question": question, "rollouts": rollouts})
            return ResultPage(total, rows)

    def neighbours(
        self, rollout_id: RolloutId, *, filter_text: str = "", words: str = ""
    ) -> dict[str, tuple[int, int] | None]:
        """Return the previous and the next matching rollout, in the order of tasks; None at either end."""
        condition = _condition(filter_text, words)
        query = f"SELECT r.task, r.rollout {_from_clause(condition)} AND (r.task, r.rollout)"
        values = (*condition.values, *rollout_id)
        with self.connection() as database:
            following = database.execute(f"{query} > (?, ?) ORDER BY 1, 2 LIMIT 1", values).fetchone()
            previous = database.execute(f"{query} < (?, ?) ORDER BY 1 DESC, 2 DESC LIMIT 1", values).fetchone()
        return {"previous": previous, "next": following}

    def locations(self, rollout_id: RolloutId) -> list[tuple[int, int]]:
        """Return file number and byte offset of each stored attempt of a rollout, the current one first."""
        query = "SELECT file, start FROM rollouts WHERE task = ? AND rollout = ? ORDER BY current DESC, id DESC"
        with self.connection() as database:
            return database.execute(query, rollout_id).fetchall()

    def record(self, rollout_id: RolloutId, attempt: int = 0) -> dict[str, Any] | None:
        """Return a stored record of a rollout; `attempt` 0 is the current one. None if there is no such record."""
        locations = self.locations(rollout_id)
        if attempt >= len(locations):
            return None
        file, start = locations[attempt]
        with RolloutReader(self.files) as reader:
            line = reader.line(start, file)
        record = parse_line(line)
        return record if record is not None else {UNREADABLE_LINE: line.decode("utf-8", errors="replace")}

    def cached_value(self, name: str) -> Any:
        """Return the value that `cache_value` stored last, if it was under this name; otherwise None."""
        with self.connection() as database:
            stored_name, value = json.loads(_meta(database, "cached") or "[null, null]")
        return value if stored_name == name else None

    def cache_value(self, name: str, value: Any) -> None:
        """Store a value that is slow to compute. It replaces the previous one, whatever its name."""
        with self.connection() as database:
            _set_meta(database, "cached", json.dumps([name, value]))
            database.commit()

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Open the database for a `with` block."""
        database = sqlite3.connect(self.path, timeout=30)
        try:
            database.execute("PRAGMA synchronous = OFF")  # a damaged database is built again
            database.execute("PRAGMA cache_size = -65536")
            yield database
        finally:
            database.close()

    def _recreate_if_outdated(self) -> None:
        """Delete the database and create an empty one if it has another format or was made from other files."""
        try:
            with self.connection() as database:
                meta = dict(database.execute("SELECT name, value FROM meta"))
            is_current = meta.get("format") == str(FORMAT) and all(
                _has_same_head(path, meta.get(f"head {number}", ""), int(meta.get(f"done {number}", 0)))
                for number, path in enumerate(self.files)
            )
        except sqlite3.DatabaseError:
            is_current = False
        if is_current:
            return
        for ending in ("", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)
        with self.connection() as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(_SCHEMA)
            database.execute("INSERT INTO meta VALUES ('format', ?)", (str(FORMAT),))
            database.commit()

    def _add_lines(self, number: int, path: Path) -> bool:
        """Add the next batch of complete lines of a file; return whether there were any."""
        if not path.exists():
            return False
        with self.connection() as database:
            done = _bytes_done(database, number)
            if path.stat().st_size < done:  # the file was rewritten
                _delete_rows(database)
                done = 0
            first_id = database.execute("SELECT coalesce(max(id), 0) FROM rollouts").fetchone()[0] + 1
            rows: list[tuple[Any, ...]] = []
            cells: list[tuple[Any, ...]] = []
            texts: list[tuple[int, str]] = []
            for start, line in islice(scan_lines(path, done), BATCH):
                if not line.endswith(b"\n"):
                    break  # still being written
                record = parse_line(line)
                if record is None:
                    record = {NG_FAILURE_CLASS_KEY: UNREADABLE_LINE}
                row_id = first_id + len(rows)
                row = build_table_row(record, row_id - 1)
                rows.append((row_id, number, start, len(line), 1, *_numbers_of(row)))
                cells.append((row_id, *_texts_of(row), json.dumps(reward_components(record))))
                texts.append((row_id, " ".join(text for text in _texts_of(row) if text)))
                done = start + len(line)
            if not rows:
                return False
            database.executemany(f"INSERT INTO rollouts VALUES ({_placeholders(rows)})", rows)
            database.executemany(f"INSERT INTO cells VALUES ({_placeholders(cells)})", cells)
            database.executemany("INSERT INTO words(rowid, text) VALUES (?, ?)", texts)
            _mark_superseded_failures(database)
            _set_meta(database, f"done {number}", str(done))
            _set_meta(database, f"head {number}", _file_head(path, done))
            database.commit()
            return True


def _condition(filter_text: str, words: str) -> Condition:
    """Build the condition of a filter and of words to search for, over the current records."""
    condition = parse_filter(filter_text)
    sql, values = f"r.current AND {condition.sql}", condition.values
    query = full_text_query(words)
    if query is None:
        return Condition(sql, values)
    return Condition(f"{sql} AND r.id IN (SELECT rowid FROM words WHERE words MATCH ?)", (*values, query))


def _from_clause(condition: Condition, *, needs_cells: bool = False) -> str:
    join = "JOIN cells c USING (id)" if needs_cells or condition.needs_cells else ""
    return f"FROM rollouts r {join} WHERE {condition.sql}"


def _read_rows(database: sqlite3.Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    names = [*_NUMBER_COLUMNS, *TEXT_COLUMNS, "components"]
    query = f"SELECT {', '.join(names)} FROM rollouts JOIN cells USING (id) WHERE id = ?"
    rows = [dict(zip(names, database.execute(query, (row_id,)).fetchone(), strict=True)) for row_id in ids]
    return [{**row, "components": json.loads(row["components"])} for row in rows]


def _mark_superseded_failures(database: sqlite3.Connection) -> None:
    """Mark failures as not current if the rollout was scored, or failed again later."""
    database.execute(
        """UPDATE rollouts SET current = 0 WHERE file = 1 AND current AND EXISTS (
            SELECT 1 FROM rollouts later WHERE later.task = rollouts.task AND later.rollout = rollouts.rollout
            AND (later.file = 0 OR later.id > rollouts.id AND later.file = 1))"""
    )


def _delete_rows(database: sqlite3.Connection) -> None:
    """Empty all tables."""
    for table in ("rollouts", "cells"):
        database.execute(f"DELETE FROM {table}")
    database.execute("INSERT INTO words(words) VALUES ('delete-all')")
    database.execute("DELETE FROM meta WHERE name != 'format'")


def _bytes_done(database: sqlite3.Connection, number: int) -> int:
    return int(_meta(database, f"done {number}") or 0)


def _meta(database: sqlite3.Connection, name: str) -> str | None:
    row = database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def _placeholders(rows: Sequence[Sequence[Any]]) -> str:
    return ", ".join("?" * len(rows[0]))


def _set_meta(database: sqlite3.Connection, name: str, value: str) -> None:
    database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def _file_head(path: Path, done: int) -> str:
    """Return the size and hash of the beginning of a file, of which `done` bytes were added to the database."""
    with path.open("rb") as file:
        return f"{min(done, HEAD_BYTES)} {hashlib.sha256(file.read(min(done, HEAD_BYTES))).hexdigest()}"


def _has_same_head(path: Path, head: str, done: int) -> bool:
    """Return whether a file still begins as when its first `done` bytes were added to the database."""
    if not done:
        return True
    return path.exists() and path.stat().st_size >= done and _file_head(path, done) == head


def _cache_path(run: RunFiles) -> Path:
    """Return the database's path in the user's cache folder, or in a temporary folder if that is not writable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nemo-gym" / "view"
    name = hashlib.sha256(str(run.output).encode()).hexdigest()[:24] + ".sqlite"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache / name
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="nemo-gym-view-")) / name
