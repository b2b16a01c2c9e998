"""Export the viewer's page with its data as a folder (bundle) that can be shared and opened without a server."""

from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import GymError
from nemo_gym.view.api import rollout_page
from nemo_gym.view.comparison import compare_runs
from nemo_gym.view.conversation import LONGEST_TEXT, event_text, event_tokens, read_events
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.server import page_files
from nemo_gym.view.summary import summarize

MAX_ROLLOUTS = 20_000
"""Each rollout is one file; file managers are slow with more files in a folder."""


class TooMuchToExport(GymError, ValueError):
    """A bundle would have more than `MAX_ROLLOUTS` rollouts."""

    exit_status = 2


def export_bundle(
    runs: Sequence[RunDatabase],
    folder: Path,
    *,
    filter_text: str = "",
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> int:
    """Write the bundle and return its number of rollouts; `on_progress` receives the number written and the total.

    Raises:
        TooMuchToExport: more than `MAX_ROLLOUTS` rollouts match the filter.
        FilterError: the filter is invalid.
    """
    total = sum(run.page(filter_text=filter_text, count=0).total for run in runs)
    if total > MAX_ROLLOUTS:
        problem = f"{total} rollouts are too many for a bundle ({MAX_ROLLOUTS} at most)"
        raise TooMuchToExport(problem, fix='select fewer: --where "reward < 1"')
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in page_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(entry.read_bytes())
    bundle = []
    done = 0
    for number, run in enumerate(runs):
        rows = run.page(filter_text=filter_text, count=MAX_ROLLOUTS).rows
        for row in rows:
            name = f"{number}/{row['task']}-{row['rollout']}"
            _write_script(folder / "data" / str(number), name, _rollout_data(run, row))
            done += 1
            on_progress(done, total)
        bundle.append({"summary": summarize(run), "rows": rows})
    pairs = permutations(range(len(runs)), 2)
    comparisons = {f"{one}-{two}": compare_runs(runs[one], runs[two]) for one, two in pairs}
    _write_script(folder / "data", "bundle", {"runs": bundle, "comparisons": comparisons})
    return done


def _rollout_data(run: RunDatabase, row: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a rollout's page, and what the server sends on request: more text, tokens, the record."""
    record = run.record((row["task"], row["rollout"])) or {}
    total, events = read_events(record)
    long_events = [event["number"] for event in events if event["length"] > LONGEST_TEXT]
    return {
        **rollout_page(record, row, events, total),
        "attempts": 1,  # earlier attempts are not exported
        "texts": {str(number): event_text(record, number, LONGEST_TEXT, 10 * LONGEST_TEXT) for number in long_events},
        "tokens": {
            str(event["number"]): event_tokens(record, event["number"]) for event in events if event.get("tokens")
        },
        "raw": record,
    }


def _write_script(folder: Path, name: str, data: Any) -> None:
    """Write data as a script: a page that is opened from a file cannot fetch JSON, but can load scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    content = b"gymLoaded(" + orjson.dumps(name) + b", " + orjson.dumps(data) + b");\n"
    (folder / f"{name.rpartition('/')[2]}.js").write_bytes(content)
