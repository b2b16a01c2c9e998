"""Queries of the viewer on the index of a run: pages of rollouts and tasks, neighbours and stored records."""

import json
import re
import sqlite3
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nemo_gym.journal import RolloutReader, parse_line
from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.view.filters import COLUMNS, Condition, filter_names, filter_parts, full_text_query, parse_filter
from nemo_gym.view.index import MAX_COMPONENTS, NUMBER_COLUMNS, UNREADABLE_LINE, RunIndex
from nemo_gym.view.table_row import LABEL_NAMES, MODEL_LABEL, TEXT_COLUMNS
from nemo_gym.wire.stored_rollout import RolloutId

MAX_REPEATS_SHOWN = 64
DEEP = 2000
"""From this position on, a page of a sorted table is taken from the cached list of all its ids."""
KEPT_ORDERS = 3
KEPT_TOTALS = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ANNOTATION = "(SELECT n.verdict FROM annotations n WHERE n.task = r.task AND n.rollout = r.rollout)"

TASK_GROUPS = {
    "all": "1",
    "mixed": "low < high",
    "solved": "scored > 0 AND solved = scored",
    "unsolved": "scored > 0 AND solved = 0",
    "unscored": "scored = 0",
}
"""Groups of tasks by their results, as conditions on the sums of a task. A task may be in two of them."""
TASK_ORDERS = {
    "task": "task",
    "mean": "mean",
    "spread": "high - low",
    "scored": "scored",
    "solved": "solved",
}
_REWARD = "iif(r.masked, NULL, r.reward)"
_TASK_SUMS = (
    f"r.task AS task, avg({_REWARD}) AS mean, count({_REWARD}) AS scored, coalesce(sum({_REWARD} >= 1), 0) AS solved,"
    f" min({_REWARD}) AS low, max({_REWARD}) AS high"
)


@dataclass(frozen=True)
class ResultPage:
    """One page of the matching rows, and the total number of matching rows."""

    total: int
    rows: list[dict[str, Any]]
    start: int = 0


@dataclass(frozen=True)
class Selection:
    """The rows that a table shows, and their order."""

    filter_text: str = ""
    words: str = ""
    sort: str = "task"
    down: bool = False


class RecentResults:
    """Results of queries that are slow to repeat: the most recently used ones are kept. Threads may share it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """Return a stored result; None if it is not in the cache."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def keep(self, key: Any, value: Any) -> None:
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)


class RunDatabase(RunIndex):
    """The index of one run, with the queries of the viewer."""

    def __init__(self, run: RunFiles, path: Path | None = None) -> None:
        super().__init__(run, path)
        self.statistics_lock = threading.Lock()
        """Held while the statistics of the run are computed."""

    @cached_property
    def _orders(self) -> RecentResults:
        return RecentResults(KEPT_ORDERS)

    @cached_property
    def _totals(self) -> RecentResults:
        return RecentResults(KEPT_TOTALS)

    def version(self) -> str:
        """Return a text that changes with the content of the index."""
        with self.connection() as database:
            query = "SELECT name, value FROM meta WHERE name LIKE 'done %' OR name = 'annotations' ORDER BY name"
            return "-".join(str(value) for _, value in database.execute(query))

    def page(
        self,
        *,
        filter_text: str = "",
        words: str = "",
        sort: str = "task",
        down: bool = False,
        start: int = 0,
        count: int = 100,
        at: RolloutId | None = None,
    ) -> ResultPage:
        """Return one page of the rollouts that match a filter, sorted; raises FilterError for an invalid filter.

        With `at`, the page has this rollout in its middle, if the rollout matches.
        """
        selection = Selection(filter_text, words, sort, down)
        condition = self.condition(filter_text, words)
        if at is not None:
            position = self.position(at, selection)
            start = max(0, position - count // 2) if position is not None else start
        with self.connection() as database:
            total = self._total(database, condition)
            if start >= DEEP and self._column(sort) != "r.task":
                ids: Sequence[int] = self._ordered_ids(database, selection)[start : start + count]
            else:
                query = f"SELECT id {self._order_clauses(selection, condition)} LIMIT ? OFFSET ?"
                ids = [row[0] for row in database.execute(query, (*condition.values, count, start))]
            return ResultPage(total, _read_rows(database, ids), start)

    def every_row(self, selection: Selection) -> Iterator[dict[str, Any]]:
        """Yield all matching rows in their order."""
        with self.connection() as database:
            ids = self._ordered_ids(database, selection)
        for start in range(0, len(ids), 500):
            with self.connection() as database:  # each part may be read on another thread
                rows = _read_rows(database, ids[start : start + 500])
            yield from rows

    def count(self, *, filter_text: str = "", words: str = "") -> int:
        """Return the number of matching rollouts."""
        with self.connection() as database:
            return self._total(database, self.condition(filter_text, words))

    def position(self, rollout_id: RolloutId, selection: Selection) -> int | None:
        """Return the position of a rollout among the matching rollouts, from 0; None if it does not match."""
        condition = self.condition(selection.filter_text, selection.words)
        with self.connection() as database:
            query = f"SELECT r.id {_from_clause(condition)} AND r.task = ? AND r.rollout = ?"
            row = database.execute(query, (*condition.values, *rollout_id)).fetchone()
            if row is None:
                return None
            if self._column(selection.sort) == "r.task":
                sign = ">" if selection.down else "<"
                query = (
                    f"SELECT count(*) {_from_clause(condition)} AND (r.task {sign} ? OR r.task = ? AND r.rollout < ?)"
                )
                task, repeat = rollout_id
                position: int = database.execute(query, (*condition.values, task, task, repeat)).fetchone()[0]
                return position
            return self._ordered_ids(database, selection).index(row[0])

    def row(self, rollout_id: RolloutId) -> dict[str, Any]:
        """Return the table row of a rollout, which must exist."""
        task, repeat = rollout_id
        return self.page(filter_text=f"task == {task} and repeat == {repeat}", count=1).rows[0]

    def repeats(self, task: int) -> list[dict[str, Any]]:
        """Return repeat, reward, outcome, kind and extracted answer of the rollouts of a task."""
        query = (
            "SELECT rollout, reward, outcome, kind, extracted, masked FROM rollouts r JOIN cells c USING (id)"
            " WHERE r.task = ? AND r.current ORDER BY r.rollout LIMIT 1000"
        )
        names = ("rollout", "reward", "outcome", "kind", "extracted", "masked")
        with self.connection() as database:
            return [dict(zip(names, row, strict=True)) for row in database.execute(query, (task,))]

    def tasks(
        self,
        *,
        filter_text: str = "",
        words: str = "",
        start: int = 0,
        count: int = 100,
        group: str = "all",
        sort: str = "task",
        down: bool = False,
    ) -> ResultPage:
        """Return one page of the tasks that have matching rollouts, with these; raises FilterError for a bad filter."""
        condition = self.condition(filter_text, words)
        order = f"{TASK_ORDERS.get(sort, 'task')} {'DESC' if down else 'ASC'}, task"
        sums = f"SELECT {_TASK_SUMS} {_from_clause(condition)} GROUP BY r.task"
        query = f"SELECT task, mean, scored, solved FROM ({sums}) WHERE {TASK_GROUPS.get(group, '1')} ORDER BY {order}"
        with self.connection() as database:
            means = database.execute(f"{query} LIMIT ? OFFSET ?", (*condition.values, count, start)).fetchall()
            rows = [self._task_row(database, condition, *facts) for facts in means]
        groups = self.task_groups(filter_text=filter_text, words=words)
        return ResultPage(groups.get(group, groups["all"]), rows, start)

    def task_groups(self, *, filter_text: str = "", words: str = "") -> dict[str, int]:
        """Count the tasks that have matching rollouts, by group."""
        condition = self.condition(filter_text, words)
        key = ("groups", condition, self.version())
        groups: dict[str, int] | None = self._totals.get(key)
        if groups is None:
            sums = f"SELECT {_TASK_SUMS} {_from_clause(condition)} GROUP BY r.task"
            counts = ", ".join(f"coalesce(sum({rule}), 0)" for rule in TASK_GROUPS.values())
            with self.connection() as database:
                values = database.execute(f"SELECT {counts} FROM ({sums})", condition.values).fetchone()
            groups = dict(zip(TASK_GROUPS, values, strict=True))
            self._totals.keep(key, groups)
        return groups

    def neighbours(
        self,
        rollout_id: RolloutId,
        *,
        filter_text: str = "",
        words: str = "",
        sort: str = "task",
        down: bool = False,
    ) -> dict[str, tuple[int, int] | None]:
        """Return the previous and the next matching rollout in the order of the table; None at either end."""
        selection = Selection(filter_text, words, sort, down)
        condition = self.condition(filter_text, words)
        with self.connection() as database:
            if down or self._column(sort) != "r.task":
                return self._sorted_neighbours(database, rollout_id, selection)
            query = f"SELECT r.task, r.rollout {_from_clause(condition)} AND (r.task, r.rollout)"
            values = (*condition.values, *rollout_id)
            following = database.execute(f"{query} > (?, ?) ORDER BY 1, 2 LIMIT 1", values).fetchone()
            previous = database.execute(f"{query} < (?, ?) ORDER BY 1 DESC, 2 DESC LIMIT 1", values).fetchone()
        return {"previous": previous, "next": following}

    def filter_facts(self, filter_text: str) -> dict[str, Any]:
        """Return how many rollouts match a filter, and each of the parts that `and` joins, and its columns' ranges."""
        encoded = filter_text.encode("utf-16-le", "surrogatepass")
        spans = filter_parts(filter_text)
        parts = []
        for start, end in spans:
            text = encoded[2 * start : 2 * end].decode("utf-16-le", "replace")
            parts.append({"text": text, "from": start, "to": end, "total": self.count(filter_text=text)})
        columns = self.columns()
        ranges = [{"name": name, **self._range(columns[name])} for name in filter_names(filter_text) if name in columns]
        return {
            "total": self.count(filter_text=filter_text),
            "of": self.count(),
            "parts": parts,
            "columns": [facts for facts in ranges if facts.get("min") is not None],
        }

    def columns(self) -> dict[str, str]:
        """Return the SQL of every name that filters of this run may use."""
        more = {
            name: f"(SELECT json_extract(l.text, '$.{name}') FROM label_sets l WHERE l.id = r.labels)"
            for name in (MODEL_LABEL, *self.label_names())
        }
        more |= {name: f"json_extract(c.components, '$.{name}')" for name in self.component_ranges()}
        return {**more, "annotation": _ANNOTATION, **COLUMNS}

    def label_names(self) -> list[str]:
        """Return the names of the labels of this run, without the model, in the order of `LABEL_NAMES`."""
        with self.connection() as database:
            query = "SELECT DISTINCT key FROM label_sets, json_each(label_sets.text)"
            names = {row[0] for row in database.execute(query)}
        return [name for name in LABEL_NAMES if name in names]

    def component_ranges(self) -> dict[str, tuple[int, float, float]]:
        """Return count, smallest and largest value of each part of the rewards that a filter can name."""
        with self.connection() as database:
            query = "SELECT name, count, low, high FROM components ORDER BY count DESC, name LIMIT ?"
            rows = database.execute(query, (MAX_COMPONENTS,)).fetchall()
        taken = {*COLUMNS, *LABEL_NAMES, MODEL_LABEL, "annotation"}
        return {name: (n, low, high) for name, n, low, high in rows if _NAME.fullmatch(name) and name not in taken}

    def locations(self, rollout_id: RolloutId) -> list[tuple[int, int]]:
        """Return file number and byte offset of each stored attempt of a rollout, the current one first."""
        query = "SELECT file, start FROM rollouts WHERE task = ? AND rollout = ? ORDER BY current DESC, id DESC"
        with self.connection() as database:
            return database.execute(query, rollout_id).fetchall()

    def attempts(self, rollout_id: RolloutId) -> list[dict[str, Any]]:
        """Return outcome and kind of each stored attempt of a rollout, the current one first."""
        query = "SELECT outcome, kind FROM rollouts WHERE task = ? AND rollout = ? ORDER BY current DESC, id DESC"
        with self.connection() as database:
            rows = database.execute(query, rollout_id).fetchall()
        return [{"attempt": number, "outcome": outcome, "kind": kind} for number, (outcome, kind) in enumerate(rows)]

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

    def condition(self, filter_text: str, words: str = "") -> Condition:
        """Return the condition of a filter and of words to search for, over the current records."""
        condition = parse_filter(filter_text, self.columns() if filter_text.strip() else None)
        sql, values = f"r.current AND {condition.sql}", condition.values
        query = full_text_query(words)
        if query is None:
            return Condition(sql, values)
        return Condition(f"{sql} AND r.id IN (SELECT rowid FROM words WHERE words MATCH ?)", (*values, query))

    def _column(self, sort: str) -> str:
        """Return the SQL of a column to sort by; for an unknown name, of the task."""
        return COLUMNS.get(sort) or self.columns().get(sort, "r.task")

    def _order_clauses(self, selection: Selection, condition: Condition) -> str:
        """Return the clauses FROM, WHERE and ORDER BY of a selection."""
        column = self._column(selection.sort)
        direction = "DESC" if selection.down else "ASC"
        by_task = f"r.task {direction}, r.rollout"
        order = by_task if column == "r.task" else f"{column} {direction}, r.task, r.rollout"
        return f"{_from_clause(condition, needs_cells='c.' in column)} ORDER BY {order}"

    def _ordered_ids(self, database: sqlite3.Connection, selection: Selection) -> "array[int]":
        """Return the ids of all matching rows in their order; the last few results are kept."""
        key = (selection, self.version())
        ids: array[int] | None = self._orders.get(key)
        if ids is None:
            condition = self.condition(selection.filter_text, selection.words)
            query = f"SELECT id {self._order_clauses(selection, condition)}"
            ids = array("Q", (row[0] for row in database.execute(query, condition.values)))
            self._orders.keep(key, ids)
        return ids

    def _sorted_neighbours(
        self, database: sqlite3.Connection, rollout_id: RolloutId, selection: Selection
    ) -> dict[str, tuple[int, int] | None]:
        ids = self._ordered_ids(database, selection)
        query = "SELECT id FROM rollouts WHERE task = ? AND rollout = ? AND current"
        row = database.execute(query, rollout_id).fetchone()
        try:
            position = ids.index(row[0]) if row else None
        except ValueError:  # the rollout does not match
            position = None
        neighbours: dict[str, tuple[int, int] | None] = {"previous": None, "next": None}
        if position is not None:
            for name, other in (("previous", position - 1), ("next", position + 1)):
                if 0 <= other < len(ids):
                    query = "SELECT task, rollout FROM rollouts WHERE id = ?"
                    neighbours[name] = database.execute(query, (ids[other],)).fetchone()
        return neighbours

    def _total(self, database: sqlite3.Connection, condition: Condition) -> int:
        """Count the matching rows; the last totals are kept."""
        key = (condition, self.version())
        total: int | None = self._totals.get(key)
        if total is None:
            query = f"SELECT count(*) {_from_clause(condition)}"
            total = int(database.execute(query, condition.values).fetchone()[0])
            self._totals.keep(key, total)
        return total

    def _range(self, column: str) -> dict[str, Any]:
        """Return the smallest and the largest number in a column; empty if it has no numbers."""
        join = "JOIN cells c USING (id)" if "c." in column else ""
        query = f"SELECT min({column}), max({column}) FROM rollouts r {join} WHERE r.current"
        with self.connection() as database:
            low, high = database.execute(query).fetchone()
        return {"min": low, "max": high} if isinstance(low, int | float) else {}

    def _task_row(
        self, database: sqlite3.Connection, condition: Condition, task: int, mean: float, scored: int, solved: int
    ) -> dict[str, Any]:
        """Return the row of a task with the rollouts that match."""
        query = (
            f"SELECT r.id, r.agent, r.rollout, r.reward, r.outcome, r.kind {_from_clause(condition)} AND r.task = ?"
            " ORDER BY r.rollout LIMIT 1000"
        )
        repeats = database.execute(query, (*condition.values, task)).fetchall()
        question = database.execute("SELECT question FROM cells WHERE id = ?", repeats[0][:1]).fetchone()[0]
        names = ("rollout", "reward", "outcome", "kind")
        rollouts = [dict(zip(names, repeat[2:], strict=True)) for repeat in repeats]
        facts = {"task": task, "mean": mean, "scored": scored, "solved": solved, "question": question}
        row = {**facts, "agent": repeats[0][1], "rollouts": rollouts[:MAX_REPEATS_SHOWN]}
        return row if len(rollouts) <= MAX_REPEATS_SHOWN else {**row, "more": len(rollouts) - MAX_REPEATS_SHOWN}


def _from_clause(condition: Condition, *, needs_cells: bool = False) -> str:
    join = "JOIN cells c USING (id)" if needs_cells or condition.needs_cells else ""
    return f"FROM rollouts r {join} WHERE {condition.sql}"


def _read_rows(database: sqlite3.Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    names = [*NUMBER_COLUMNS, *TEXT_COLUMNS, "components", "labels", "verdict", "note", "at"]
    columns = [f"r.{name}" for name in NUMBER_COLUMNS] + [f"c.{name}" for name in (*TEXT_COLUMNS, "components")]
    query = (
        f"SELECT {', '.join(columns)}, (SELECT text FROM label_sets l WHERE l.id = r.labels), n.verdict, n.note, n.at"
        " FROM rollouts r JOIN cells c USING (id) LEFT JOIN annotations n ON n.task = r.task AND n.rollout = r.rollout"
        " WHERE r.id = ?"
    )
    stored_rows = (database.execute(query, (row_id,)).fetchone() for row_id in ids)
    # a row is missing if the file was rewritten since its id was read
    return [_complete_row(dict(zip(names, row, strict=True))) for row in stored_rows if row is not None]


def _complete_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its components, its labels and its annotation as objects."""
    verdict, note, at = (row.pop(name) for name in ("verdict", "note", "at"))
    labels = json.loads(row["labels"] or "{}")
    model = labels.pop(MODEL_LABEL, "")
    annotation = {} if verdict is None else {"annotation": {"verdict": verdict, "note": note, "at": at}}
    return {**row, "model": model, "components": json.loads(row["components"]), "labels": labels, **annotation}
