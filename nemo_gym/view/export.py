"""Export the viewer's page with its data as a folder (bundle) that can be shared and opened without a server."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version as installed_version
from itertools import permutations
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import GymError
from nemo_gym.view.comparison import compare_runs, compare_several
from nemo_gym.view.conversation import LONGEST_TEXT, event_text, event_tokens
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.rollout_page import dataset_row, first_response_event, rollout_page
from nemo_gym.view.server import page_files
from nemo_gym.view.summary import rollout_context, run_entry, statistics_of, summarize
from nemo_gym.view.token_sequence import sequence_facts
from nemo_gym.view.tool_list import list_tools

MAX_TOKENS = 200_000
"""Tokens of a rollout that a bundle holds."""
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
    advice: Mapping[str, str] | None = None,
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
    for name, file in page_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(file.read_bytes())
    bundle = []
    done = 0
    for number, run in enumerate(runs):
        rows = run.page(filter_text=filter_text, count=MAX_ROLLOUTS).rows
        entry = rollout_context(run, number)
        for row in rows:
            row.pop("annotation", None)  # annotations are notes of their author, not part of a shared bundle
            name = f"{number}/{row['task']}-{row['rollout']}"
            _write_script(folder / "data" / str(number), name, _rollout_data(run, row, entry, advice or {}))
            done += 1
            on_progress(done, total)
        columns = [column for column in statistics_of(run)["columns"] if column["name"] != "annotation"]
        summary = summarize(run, number)
        bundle.append({"entry": run_entry(run, number), "summary": summary, "columns": columns, "rows": rows})
    session = {"version": installed_version("nemo-gym"), "annotations": False, "paths": [], "bundle": True}
    pairs = permutations(range(len(runs)), 2)
    comparisons = {f"{one}-{two}": compare_runs(runs[one], runs[two]) for one, two in pairs}
    numbers = range(len(runs))
    several = {"comparison_of_all": compare_several(runs, numbers)} if len(runs) > 2 else {}
    _write_script(
        folder / "data", "bundle", {**several, "session": session, "runs": bundle, "comparisons": comparisons}
    )
    return done


def _rollout_data(
    run: RunDatabase, row: dict[str, Any], entry: Mapping[str, Any], advice: Mapping[str, str]
) -> dict[str, Any]:
    """Return the content of a rollout's page, and what the server sends on request: more text, tokens, the record."""
    record = run.record((row["task"], row["rollout"])) or {}
    page = rollout_page(run, record, row, entry, advice)
    long_events = [event["number"] for event in page["events"] if event["length"] > LONGEST_TEXT]
    events_with_tokens = [event["number"] for event in page["events"] if event.get("tokens")]
    attempts = {"attempt": 0, "attempts": 1, "attempt_list": run.attempts((row["task"], row["rollout"]))[:1]}
    return {
        **page,
        **attempts,  # earlier attempts are not exported
        "texts": {str(number): event_text(record, number, LONGEST_TEXT, 10 * LONGEST_TEXT) for number in long_events},
        "tokens": {str(number): event_tokens(record, number) for number in events_with_tokens},
        "tool_list": list_tools(record),
        **({"sequence": _whole_sequence(record)} if events_with_tokens else {}),
        "row": dataset_row(run, record),
        "raw": record,
    }


def _whole_sequence(record: dict[str, Any]) -> dict[str, Any]:
    return sequence_facts(record, first_response_event(record), 0, MAX_TOKENS)


def _write_script(folder: Path, name: str, data: Any) -> None:
    """Write data as a script: a page that is opened from a file cannot fetch JSON, but can load scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    content = b"gymLoaded(" + orjson.dumps(name) + b", " + orjson.dumps(data) + b");\n"
    (folder / f"{name.rpartition('/')[2]}.js").write_bytes(content)
