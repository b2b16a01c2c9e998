"""A SQLite index of a run's rollouts for the viewer: built once, extended as the files grow.

It is stored in the user's cache folder, so that viewing a run does not change its folder. Numbers are in the table
`rollouts`, longer texts in `cells`, and words in a full-text index, so that each query reads as little as possible.
Each line of the output (file 0) and of the failures (file 1) is a row of both tables. A failure is not current if the
rollout was scored, or failed again later. Labels (the model, a difficulty) have few values, so a row has the number of
a set of labels instead of their text.
"""

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from nemo_gym.journal import parse_line, scan_lines
from nemo_gym.keys import NG_FAILURE_CLASS_KEY
from nemo_gym.rollouts.annotations import read_annotations
from nemo_gym.rollouts.run_files import RunFiles, annotations_path_for
from nemo_gym.view.table_row import MODEL_LABEL, TEXT_COLUMNS, TableRow, build_table_row, reward_components, row_labels

FORMAT = 10
"""Version of the schema; a database with another version is built again."""
BATCH = 4000
HEAD_BYTES = 4096
MAX_LABEL_SETS = 1000
"""With more sets of labels, these are no names of groups: only the model is kept."""
MAX_COMPONENTS = 40
UNREADABLE_LINE = "unreadable line"
MEASURED = "current AND reward IS NOT NULL AND NOT masked"
"""Condition of the rollouts whose rewards enter a mean; the reward of a masked one measures nothing."""

NUMBER_COLUMNS = tuple(field.name for field in fields(TableRow) if field.name not in TEXT_COLUMNS)
_numbers_of, _texts_of = attrgetter(*NUMBER_COLUMNS), attrgetter(*TEXT_COLUMNS)

_SCHEMA = f"""
CREATE TABLE rollouts(
    id INTEGER PRIMARY KEY, file INTEGER, start INTEGER, length INTEGER, current INTEGER DEFAULT 1, labels INTEGER,
    {", ".join(f"{name}{' REAL' if name.startswith(('reward', 'seconds')) else ''}" for name in NUMBER_COLUMNS)});
CREATE TABLE cells(id INTEGER PRIMARY KEY, {", ".join(TEXT_COLUMNS)}, components TEXT);
CREATE TABLE label_sets(id INTEGER PRIMARY KEY, text TEXT UNIQUE);
CREATE TABLE components(name TEXT PRIMARY KEY, count INTEGER, low REAL, high REAL);
CREATE TABLE annotations(task INTEGER, rollout INTEGER, verdict TEXT, note TEXT, at TEXT, PRIMARY KEY (task, rollout));
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail='none', tokenize='unicode61');
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT);
CREATE INDEX by_place ON rollouts(task, rollout, current);
CREATE INDEX by_task ON rollouts(task, reward, masked) WHERE current;
CREATE INDEX by_reward ON rollouts(reward, task, rollout, masked) WHERE current;
CREATE INDEX by_failed ON rollouts(task, rollout) WHERE file = 1 AND current;
CREATE INDEX by_outcome ON rollouts(current, outcome, kind);
"""


class RunIndex:
    """The index of one run. Each method opens its own connection, so threads can query while another thread builds."""

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
        self.follow_annotations()
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

    def follow_annotations(self) -> None:
        """Read the annotations again if their file changed."""
        try:
            facts = annotations_path_for(self.run.output).lstat()
            state = f"{facts.st_mtime_ns} {facts.st_size}"
        except OSError:
            state = ""
        with self.connection() as database:
            if state == (_meta(database, "annotations") or ""):
                return
            rows = [
                (*one.rollout_id, one.verdict, one.note, one.at) for one in read_annotations(self.run.output).values()
            ]
            database.execute("DELETE FROM annotations")
            database.executemany("INSERT INTO annotations VALUES (?, ?, ?, ?, ?)", rows)
            _set_meta(database, "annotations", state)
            database.commit()

    def _add_lines(self, number: int, path: Path) -> bool:
        """Add the next batch of complete lines of a file; return whether there were any."""
        if not path.exists():
            return False
        with self.connection() as database:
            if path.stat().st_size == _bytes_done(database, number):
                return False
            database.execute("BEGIN IMMEDIATE")  # another viewer of this run may add the same lines
            done = _bytes_done(database, number)
            if path.stat().st_size < done:  # the file was rewritten
                _delete_rows(database)
                done = 0
            batch = _Batch(database)
            for start, line in islice(scan_lines(path, done), BATCH):
                if not line.endswith(b"\n"):
                    break  # still being written
                batch.add(number, start, line)
                done = start + len(line)
            if not batch.rows:
                return False
            batch.insert()
            _mark_superseded_failures(database)
            _set_meta(database, f"done {number}", str(done))
            _set_meta(database, f"head {number}", _file_head(path, done))
            database.commit()
            return True


class _Batch:
    """New rows, collected before they are inserted."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._first_id = database.execute("SELECT coalesce(max(id), 0) FROM rollouts").fetchone()[0] + 1
        self._label_ids: dict[str, int] = {
            text: number for number, text in database.execute("SELECT id, text FROM label_sets")
        }
        self._known_labels = len(self._label_ids)
        self.rows: list[tuple[Any, ...]] = []
        self._cells: list[tuple[Any, ...]] = []
        self._words: list[tuple[int, str]] = []
        self._components: dict[str, tuple[int, float, float]] = {}

    def add(self, file: int, start: int, line: bytes) -> None:
        """Add the row of a line."""
        record = parse_line(line)
        if record is None:
            record = {NG_FAILURE_CLASS_KEY: UNREADABLE_LINE}
        row_id = self._first_id + len(self.rows)
        row = build_table_row(record, row_id - 1)
        components = reward_components(record)
        self.rows.append((row_id, file, start, len(line), 1, self._label_id(row_labels(record)), *_numbers_of(row)))
        self._cells.append((row_id, *_texts_of(row), json.dumps(components)))
        self._words.append((row_id, " ".join(text for text in _texts_of(row) if text)))
        for name, value in components.items():
            count, low, high = self._components.get(name, (0, value, value))
            self._components[name] = (count + 1, min(low, value), max(high, value))

    def insert(self) -> None:
        """Insert the rows, and the labels and components that they have."""
        execute_many = self._database.executemany
        execute_many(f"INSERT INTO rollouts VALUES ({_placeholders(self.rows)})", self.rows)
        execute_many(f"INSERT INTO cells VALUES ({_placeholders(self._cells)})", self._cells)
        execute_many("INSERT INTO words(rowid, text) VALUES (?, ?)", self._words)
        new_labels = list(self._label_ids.items())[self._known_labels :]
        execute_many("INSERT INTO label_sets(text, id) VALUES (?, ?)", new_labels)
        execute_many(
            "INSERT INTO components VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count,"
            " low = min(low, excluded.low), high = max(high, excluded.high)",
            [(name, *facts) for name, facts in self._components.items()],
        )

    def _label_id(self, labels: Mapping[str, str]) -> int | None:
        """Return the number of a set of labels; None for no labels, and for too many different sets."""
        if not labels:
            return None
        text = json.dumps(labels, sort_keys=True)
        if text not in self._label_ids and len(self._label_ids) >= MAX_LABEL_SETS:
            text = json.dumps({MODEL_LABEL: labels.get(MODEL_LABEL, "")})
        if text not in self._label_ids and len(self._label_ids) < 2 * MAX_LABEL_SETS:
            self._label_ids[text] = len(self._label_ids) + 1
        return self._label_ids.get(text)


def _mark_superseded_failures(database: sqlite3.Connection) -> None:
    """Mark failures as not current if the rollout was scored, or failed again later."""
    database.execute(
        """UPDATE rollouts SET current = 0 WHERE file = 1 AND current AND EXISTS (
            SELECT 1 FROM rollouts later WHERE later.task = rollouts.task AND later.rollout = rollouts.rollout
            AND (later.file = 0 OR later.id > rollouts.id AND later.file = 1))"""
    )


def _delete_rows(database: sqlite3.Connection) -> None:
    """Empty all tables."""
    for table in ("rollouts", "cells", "label_sets", "components"):
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
