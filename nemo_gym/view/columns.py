"""The columns of the table: which ones have values, their ranges, and their values in a row."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.view.database import RunDatabase
from nemo_gym.view.filters import NAMES_IN_FILTERS
from nemo_gym.view.table_row import MODEL_LABEL, PHASES, TEXT_COLUMNS

MAX_VALUES = 30
TITLES = {
    "rollout": "Repeat",
    "whom": "Server",
    "tokens_in": "Tokens in",
    "tokens_out": "Tokens out",
    "tokens_cached": "Cached",
    "tokens_reasoning": "Reasoning",
    "tool_calls": "Tool calls",
    "cut_off": "Cut off",
    "no_answer": "No answer",
    "has_expected": "Contains expected",
    "tool_errors": "Tool errors",
    "seconds": "Time",
    "answer": "Last answer",
}
_MAIN_TEXTS = ("question", "answer", "extracted", "expected", "rule", "message")
_NAMES = ("outcome", "kind", "whom", "agent", "model")
_TOKENS = "tokens"


def describe_columns(run: RunDatabase, ranges: Mapping[str, Sequence[Any]], rollouts: int) -> list[dict[str, Any]]:
    """Return name, title, kind and range of each column that has values, in the order of the chooser.

    `ranges` holds count, smallest and largest value of the columns with numbers.
    """
    columns: list[dict[str, Any]] = []
    for name, (count, low, high) in ranges.items():
        group = "phase" if name.removeprefix("seconds_") in PHASES else "tokens" if name.startswith(_TOKENS) else "main"
        facts = {"kind": "number", "group": group, "count": count, "min": low, "max": high}
        columns.append({**_name_and_title(name), **facts})
    if any(column["name"] in ("tokens_in", "tokens_out") for column in columns):
        columns.append({**_name_and_title(_TOKENS), "kind": "number", "group": _TOKENS, "count": rollouts})
    columns += _name_columns(run)
    columns += [
        {**_name_and_title(name), "kind": "text", "group": "main", "count": n} for name, n in _text_counts(run).items()
    ]
    for name, (count, low, high) in run.component_ranges().items():
        facts = {"name": name, "title": name, "key": f"components.{name}", "kind": "number", "group": "component"}
        columns.append({**facts, "count": count, "min": low, "max": high})
    return sorted(columns, key=_rank)


def cell_value(row: dict[str, Any], column: dict[str, Any]) -> Any:
    """Return the value of a column in a row; empty if it has none."""
    if column["name"] == _TOKENS:
        return row["tokens_in"] + row["tokens_out"]
    value: Any = row
    for part in column.get("key", column["name"]).split(".", 1):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else value


def _name_and_title(column: str) -> dict[str, Any]:
    name = NAMES_IN_FILTERS.get(column, column)
    title = TITLES.get(column) or column.replace("_", " ").capitalize()
    return {"name": name, "title": title, **({"key": column} if name != column else {})}


def _name_columns(run: RunDatabase) -> list[dict[str, Any]]:
    """Return the columns with few short values, and these values, the most frequent first."""
    labels = run.label_names()
    counts: dict[str, Counter[str]] = {name: Counter() for name in (*_NAMES, *labels, "annotation")}
    with run.connection() as database:
        for name in _NAMES:
            if name != MODEL_LABEL:
                query = f"SELECT {name}, count(*) FROM rollouts WHERE current AND {name} != '' GROUP BY 1"
                counts[name].update(dict(database.execute(query)))
        sets = dict(database.execute("SELECT id, text FROM label_sets"))
        query = "SELECT labels, count(*) FROM rollouts WHERE current AND labels IS NOT NULL GROUP BY 1"
        for number, count in database.execute(query):
            for name, value in json.loads(sets[number]).items():
                if name in counts:
                    counts[name][value] += count
        counts["annotation"].update(
            dict(database.execute("SELECT verdict, count(*) FROM annotations WHERE verdict != '' GROUP BY 1"))
        )
    columns = []
    for name, values in counts.items():
        if values:
            key = {"key": f"labels.{name}"} if name in labels else {}
            key = {"key": "annotation.verdict"} if name == "annotation" else key
            group = "label" if name in labels else "main"
            facts = {"kind": "name", "group": group, "count": values.total()}
            listed = [value for value, _ in values.most_common(MAX_VALUES)]
            columns.append({**_name_and_title(name), **key, **facts, "values": listed})
    return columns


def _text_counts(run: RunDatabase) -> dict[str, int]:
    """Return the columns with longer texts that have one, and how many rollouts have it."""
    counts = ", ".join(f"sum(c.{name} != '')" for name in TEXT_COLUMNS)
    with run.connection() as database:
        values = database.execute(f"SELECT {counts} FROM cells c").fetchone()
    texts = dict(zip(TEXT_COLUMNS, values, strict=True))
    return {name: texts[name] for name in _MAIN_TEXTS if texts[name]}


_ORDER = ("task", "repeat", "question", "agent", "model", "outcome", "kind", "reward", "extracted", "expected", "turns")
_GROUPS = ("main", "label", "component", "tokens", "phase")


def _rank(column: dict[str, Any]) -> tuple[int, int]:
    order = _ORDER.index(column["name"]) if column["name"] in _ORDER else len(_ORDER)
    return _GROUPS.index(column["group"]), order
