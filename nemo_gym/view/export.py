"""A run as a folder of plain files that can be shared and opened from disk, without a server."""

from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import permutations
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import GymError
from nemo_gym.view.conversation import LONGEST_TEXT, event_text, event_tokens, events, judgements, timings
from nemo_gym.view.index import RunIndex
from nemo_gym.view.server import STATIC, rest_of
from nemo_gym.view.summary import compare, summary

MOST_ROLLOUTS = 20_000
"""Each is a file of its own; more would make a folder nobody can open."""
PAGE = 500


class TooMuchToExport(GymError, ValueError):
    """A bundle of so many rollouts would be of no use."""

    exit_status = 2


def export(
    indexes: Sequence[RunIndex], folder: Path, *, where: str = "", told: Callable[[int, int], None] = lambda *_: None
) -> int:
    """Write the bundle and return how many rollouts are in it; `told` hears of progress.

    Raises:
        TooMuchToExport: more rollouts match than a folder should hold.
        FilterError: `where` cannot be read.
    """
    total = sum(index.page(where=where, count=0).total for index in indexes)
    if total > MOST_ROLLOUTS:
        raise TooMuchToExport(
            f"{total} rollouts are too many for a bundle ({MOST_ROLLOUTS} at most)",
            fix='narrow it: --where "reward < 1"',
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, _ in STATIC.values():
        (folder / name).write_bytes(files("nemo_gym.view").joinpath("static", name).read_bytes())
    runs = []
    done = 0
    for number, index in enumerate(indexes):
        rows = _rows(index, where)
        for row in rows:
            place = (row["task"], row["rollout"])
            _write(folder / "data" / str(number), f"{number}/{place[0]}-{place[1]}", _rollout(index, place, row))
            done += 1
            told(done, total)
        runs.append({"summary": summary(index), "rows": rows})
    pairs = permutations(range(len(indexes)), 2)
    comparisons = {f"{one}-{two}": compare(indexes[one], indexes[two]) for one, two in pairs}
    _write(folder / "data", "bundle", {"runs": runs, "comparisons": comparisons})
    return done


def _rows(index: RunIndex, where: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while len(page := index.page(where=where, start=len(rows), count=PAGE).rows):
        rows += page
    return rows


def _rollout(index: RunIndex, place: tuple[int, int], row: dict[str, Any]) -> dict[str, Any]:
    record = index.record(place) or {}
    total, shown = events(record, 0, 1_000_000)
    long = [event["number"] for event in shown if event["length"] > LONGEST_TEXT]
    return {
        "facts": row,
        "attempts": 1,
        "events": shown,
        "total": total,
        "fields": rest_of(record),
        "timings": timings(record),
        "judgements": judgements(record),
        "texts": {str(number): event_text(record, number, LONGEST_TEXT, 10 * LONGEST_TEXT) for number in long},
        "tokens": {
            str(event["number"]): event_tokens(record, event["number"]) for event in shown if event.get("tokens")
        },
        "raw": record,
    }


def _write(folder: Path, name: str, data: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = b"gymLoaded(" + orjson.dumps(name) + b", " + orjson.dumps(data) + b");\n"
    (folder / f"{name.rpartition('/')[2]}.js").write_bytes(content)
