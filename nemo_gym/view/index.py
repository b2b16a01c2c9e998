"""An index of a run's files: built once, grown as they grow, asked by the page.

It is kept in the user's cache folder, so that looking at a run changes nothing in it. Numbers lie in one table, longer
texts in another, words in a full-text index, so that each question reads as little as possible.
"""

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.view.facts import Facts, components_of, facts_of
from nemo_gym.view.query import COLUMNS, Condition, Value, condition, search
from nemo_gym.view.runs import RunFiles

FORMAT = 5
BATCH = 4000
HEAD_BYTES = 4096
SCORED_FILE, FAILED_FILE = 0, 1
BADLY_FORMED = "unreadable line"

_IN_CELLS = ("message", "expected", "extracted", "rule", "answer", "question")
_IN_ROLLOUTS = tuple(field.name for field in fields(Facts) if field.name not in _IN_CELLS)
_NUMBERS_OF, _CELLS_OF = attrgetter(*_IN_ROLLOUTS), attrgetter(*_IN_CELLS)

_SCHEMA = f"""
CREATE TABLE rollouts(
    id INTEGER PRIMARY KEY, file INTEGER, start INTEGER, length INTEGER, current INTEGER DEFAULT 1,
    {", ".join(f"{name}{' REAL' if name.startswith(('reward', 'seconds')) else ''}" for name in _IN_ROLLOUTS)});
CREATE TABLE cells(id INTEGER PRIMARY KEY, {", ".join(_IN_CELLS)}, components TEXT);
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail='none', tokenize='unicode61');
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT);
CREATE INDEX by_place ON rollouts(task, rollout, current);
CREATE INDEX by_task ON rollouts(task, reward) WHERE current;
CREATE INDEX by_reward ON rollouts(reward, task, rollout) WHERE current;
CREATE INDEX by_failed ON rollouts(task, rollout) WHERE file = 1 AND current;
CREATE INDEX by_outcome ON rollouts(current, outcome, kind);
"""


@dataclass(frozen=True)
class Page:
    """Some rows, and how many there are altogether."""

    total: int
    rows: list[dict[str, Any]]


class RunIndex:
    """The index of one run. Connections are opened per use, so any thread may ask while another builds."""

    def __init__(self, run: RunFiles, path: Path | None = None) -> None:
        self.run = run
        self.path = path or _index_path(run)
        self._check()

    @property
    def files(self) -> tuple[Path, Path]:
        return self.run.output, self.run.failures

    def grow(self) -> bool:
        """Take in some of what is new in the files; whether there may be more. Half a last line waits."""
        more = False
        for number, path in enumerate(self.files):
            more = self._grow_from(number, path) or more
        return more

    def build(self) -> None:
        """Take in all there is."""
        while self.grow():
            pass

    def progress(self) -> tuple[int, int]:
        """Bytes taken in and bytes there are."""
        with self.connection() as database:
            done = sum(self._done(database, number) for number in range(len(self.files)))
        return done, sum(path.stat().st_size for path in self.files if path.exists())

    def page(
        self,
        *,
        where: str = "",
        words: str = "",
        sort: str = "task",
        down: bool = False,
        start: int = 0,
        count: int = 100,
    ) -> Page:
        """Rows that match, in order.

        Raises:
            FilterError: the filter cannot be read.
        """
        chosen = self._chosen(where, words)
        column = COLUMNS.get(sort, "r.task")
        direction = "DESC" if down else "ASC"
        order = f"{column} {direction}, r.task, r.rollout" if column != "r.task" else f"r.task {direction}, r.rollout"
        joined = "JOIN cells c USING (id)" if chosen.needs_cells or column.startswith("c.") else ""
        with self.connection() as database:
            total = database.execute(
                f"SELECT count(*) FROM rollouts r {joined} WHERE {chosen.sql}", chosen.values
            ).fetchone()[0]
            ids = [
                row[0]
                for row in database.execute(
                    f"SELECT id FROM rollouts r {joined} WHERE {chosen.sql} ORDER BY {order} LIMIT ? OFFSET ?",
                    (*chosen.values, count, start),
                )
            ]
            return Page(total, self._rows(database, ids))

    def tasks(self, *, where: str = "", words: str = "", start: int = 0, count: int = 100) -> Page:
        """Tasks with the rollouts of each that match, side by side.

        Raises:
            FilterError: the filter cannot be read.
        """
        chosen = self._chosen(where, words)
        joined = f"FROM rollouts r {'JOIN cells c USING (id)' if chosen.needs_cells else ''} WHERE {chosen.sql}"
        with self.connection() as database:
            total = database.execute(f"SELECT count(DISTINCT r.task) {joined}", chosen.values).fetchone()[0]
            asked = f"SELECT r.task, avg(r.reward) {joined} GROUP BY r.task ORDER BY r.task LIMIT ? OFFSET ?"
            found = database.execute(asked, (*chosen.values, count, start)).fetchall()
            return Page(total, [self._task(database, joined, chosen, task, mean) for task, mean in found])

    def _task(
        self, database: sqlite3.Connection, joined: str, chosen: Condition, task: int, mean: float | None
    ) -> dict[str, Any]:
        asked = f"SELECT r.id, r.rollout, r.reward, r.outcome, r.kind {joined} AND r.task = ? ORDER BY r.rollout"
        repeats = database.execute(asked, (*chosen.values, task)).fetchall()
        question = database.execute("SELECT question FROM cells WHERE id = ?", (repeats[0][0],)).fetchone()[0]
        names = ("rollout", "reward", "outcome", "kind")
        shown = [dict(zip(names, repeat[1:], strict=True)) for repeat in repeats]
        return {"task": task, "mean": mean, "question": question, "rollouts": shown}

    def neighbours(
        self, place: tuple[int, int], *, where: str = "", words: str = ""
    ) -> dict[str, tuple[int, int] | None]:
        """The rollouts before and after one in the order of tasks, among those that match."""
        chosen = self._chosen(where, words)
        joined = "JOIN cells c USING (id)" if chosen.needs_cells else ""
        base = f"SELECT r.task, r.rollout FROM rollouts r {joined} WHERE {chosen.sql} AND (r.task, r.rollout)"
        with self.connection() as database:
            after = database.execute(f"{base} > (?, ?) ORDER BY 1, 2 LIMIT 1", (*chosen.values, *place)).fetchone()
            before = database.execute(
                f"{base} < (?, ?) ORDER BY 1 DESC, 2 DESC LIMIT 1", (*chosen.values, *place)
            ).fetchone()
        return {"previous": before, "next": after}

    def places(self, place: tuple[int, int]) -> list[tuple[int, int, int]]:
        """Where the records of a rollout are, the one that counts first: (file, start, length)."""
        with self.connection() as database:
            return database.execute(
                "SELECT file, start, length FROM rollouts WHERE task = ? AND rollout = ?"
                " ORDER BY current DESC, id DESC",
                place,
            ).fetchall()

    def record(self, place: tuple[int, int], attempt: int = 0) -> dict[str, Any] | None:
        """The stored record of a rollout, newest first; None if there is none."""
        found = self.places(place)
        if attempt >= len(found):
            return None
        number, start, length = found[attempt]
        with self.files[number].open("rb") as file:
            file.seek(start)
            line = file.read(length)
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return {BADLY_FORMED: line.decode("utf-8", errors="replace")}
        return record if isinstance(record, dict) else {BADLY_FORMED: record}

    def kept(self, name: str) -> Any:
        """What was kept under a name, or None."""
        with self.connection() as database:
            found = database.execute(
                "SELECT value FROM meta WHERE name = 'kept' AND value LIKE ?", (f"{name}\n%",)
            ).fetchone()
        return json.loads(found[0].partition("\n")[2]) if found else None

    def keep(self, name: str, value: Any) -> None:
        """Keep one answer that took long; the next one takes its place."""
        with self.connection() as database:
            _note(database, "kept", f"{name}\n{json.dumps(value)}")
            database.commit()

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=30)
        try:
            database.execute("PRAGMA synchronous = OFF")  # it can always be built again
            database.execute("PRAGMA cache_size = -65536")
            yield database
        finally:
            database.close()

    def _chosen(self, where: str, words: str) -> Condition:
        chosen = condition(where)
        sql, values = [f"r.current AND {chosen.sql}"], list(chosen.values)
        query = search(words)
        if query is not None:
            sql.append("r.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            values.append(query)
        return Condition(" AND ".join(sql), tuple(values))

    def _rows(self, database: sqlite3.Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
        names = [*_IN_ROLLOUTS, *_IN_CELLS, "components"]
        asked = f"SELECT {', '.join(names)} FROM rollouts JOIN cells USING (id) WHERE id = ?"
        found = [dict(zip(names, database.execute(asked, (number,)).fetchone(), strict=True)) for number in ids]
        return [{**row, "components": json.loads(row["components"])} for row in found]

    def _check(self) -> None:
        """Start over if the index is of another format, or the files are not the ones it was made from."""
        try:
            with self.connection() as database:
                known = dict(database.execute("SELECT name, value FROM meta"))
            fits = known.get("format") == str(FORMAT) and all(
                _same_beginning(path, known.get(f"head {number}", ""), int(known.get(f"done {number}", 0)))
                for number, path in enumerate(self.files)
            )
        except sqlite3.DatabaseError:
            fits = False
        if not fits:
            for ending in ("", "-wal", "-shm"):
                Path(f"{self.path}{ending}").unlink(missing_ok=True)
            with self.connection() as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(_SCHEMA)
                database.execute("INSERT INTO meta VALUES ('format', ?)", (str(FORMAT),))
                database.commit()

    def _done(self, database: sqlite3.Connection, number: int) -> int:
        found = database.execute("SELECT value FROM meta WHERE name = ?", (f"done {number}",)).fetchone()
        return int(found[0]) if found else 0

    def _grow_from(self, number: int, path: Path) -> bool:
        if not path.exists():
            return False
        with self.connection() as database, path.open("rb") as file:
            done = self._done(database, number)
            if path.stat().st_size < done:  # rewritten: what we know is of another file
                self._forget(database)
                done = 0
            file.seek(done)
            first = database.execute("SELECT coalesce(max(id), 0) FROM rollouts").fetchone()[0] + 1
            rows: list[tuple[Any, ...]] = []
            cells: list[tuple[Any, ...]] = []
            texts: list[tuple[int, str]] = []
            lines = 0
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written
                lines += 1
                if not line.isspace():
                    row, cell, text = _taken_in(line, first + len(rows), number, done)
                    rows.append(row)
                    cells.append(cell)
                    texts.append((row[0], text))
                done += len(line)
                if lines >= BATCH:
                    break
            if not lines:
                return False
            database.executemany(f"INSERT INTO rollouts VALUES ({_marks(5 + len(_IN_ROLLOUTS))})", rows)
            database.executemany(f"INSERT INTO cells VALUES ({_marks(2 + len(_IN_CELLS))})", cells)
            database.executemany("INSERT INTO words(rowid, text) VALUES (?, ?)", texts)
            self._settle(database)
            _note(database, f"done {number}", str(done))
            _note(database, f"head {number}", _head(path, done))
            database.commit()
            return True

    def _settle(self, database: sqlite3.Connection) -> None:
        """A failure that was mended, or tried again, is no longer what became of its rollout."""
        database.execute(
            """UPDATE rollouts SET current = 0 WHERE file = 1 AND current AND EXISTS (
                SELECT 1 FROM rollouts later WHERE later.task = rollouts.task AND later.rollout = rollouts.rollout
                AND (later.file = 0 OR later.id > rollouts.id AND later.file = 1))"""
        )

    def _forget(self, database: sqlite3.Connection) -> None:
        for table in ("rollouts", "cells"):
            database.execute(f"DELETE FROM {table}")
        database.execute("INSERT INTO words(words) VALUES ('delete-all')")
        database.execute("DELETE FROM meta WHERE name != 'format'")


def _taken_in(line: bytes, number: int, file: int, start: int) -> tuple[tuple[Any, ...], tuple[Any, ...], str]:
    """A line as its rows of the two tables and its words."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = None
    if not isinstance(record, dict):
        record = {"_ng_failure_class": BADLY_FORMED}
    facts = facts_of(record, number - 1)
    row = (number, file, start, len(line), 1, *_NUMBERS_OF(facts))
    texts: tuple[Value, ...] = _CELLS_OF(facts)
    components = json.dumps(components_of(record))
    return row, (number, *texts, components), " ".join(str(text) for text in texts if text)


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _note(database: sqlite3.Connection, name: str, value: str) -> None:
    database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def _head(path: Path, done: int) -> str:
    """What the beginning of a file looks like: a file that grew still begins the same."""
    with path.open("rb") as file:
        return f"{min(done, HEAD_BYTES)} {hashlib.sha256(file.read(min(done, HEAD_BYTES))).hexdigest()}"


def _same_beginning(path: Path, head: str, done: int) -> bool:
    if not done:
        return True
    return path.exists() and path.stat().st_size >= done and _head(path, done) == head


def _index_path(run: RunFiles) -> Path:
    """A place of this user's for the index; a temporary one where there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nemo-gym" / "view"
    name = hashlib.sha256(str(run.output).encode()).hexdigest()[:24] + ".sqlite"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache / name
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="nemo-gym-view-")) / name
