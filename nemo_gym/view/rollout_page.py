"""The page of a rollout: its conversation by turns, verdict or failure, repeats, times, and the row of the dataset."""

from collections.abc import Mapping
from typing import Any

import orjson

from nemo_gym.journal import read_rows
from nemo_gym.keys import AGENT_REF_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.rollouts.run_files import materialized_path_for
from nemo_gym.view.conversation import GENERATED_IDS, read_events, read_judgements, read_timings
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.failure_page import describe_failure
from nemo_gym.view.tool_list import list_tools
from nemo_gym.view.turns import event_turns, timeline, turn_facts
from nemo_gym.view.verdict import cut_value, read_verdict
from nemo_gym.wire.stored_rollout import StoredRollout

MAX_REPEATS_SHOWN = 256
LONGEST_ROW_FILE = 64_000_000
"""Planned rows are searched for the row of a task only in files up to this size; else it is made from the record."""
_ADDED_FIELDS = frozenset({"response", "reward", AGENT_REF_KEY_NAME})


def rollout_page(
    run: RunDatabase,
    record: dict[str, Any],
    facts: dict[str, Any],
    entry: Mapping[str, Any],
    advice: Mapping[str, str],
    window: tuple[int, int | None] = (0, None),
) -> dict[str, Any]:
    """Return the content of a rollout's page with a window of its events (start, count).

    `entry` is the entry of the run in the list of runs, `advice` what to do by kind of failure.
    """
    total, events = read_events(record, *window)
    first_event = first_response_event(record)
    turns = event_turns(record)
    repeats = run.repeats(facts["task"])
    page: dict[str, Any] = {
        "facts": facts,
        "total": total,
        "events": [_with_turn(event, turns, first_event) for event in events],
        "turns": turn_facts(record, first_event),
        "timeline": timeline(record),
        "repeats": [{name: one[name] for name in ("rollout", "reward", "outcome", "kind")} for one in repeats][
            :MAX_REPEATS_SHOWN
        ],
        "verdict": read_verdict(record, facts, repeats, entry),
        "tools": len(list_tools(record)),
        "fields": {name: cut_value(value) for name, value in record.items() if name not in _CONVERSATION},
        "timings": read_timings(record),
        "judgements": read_judgements(record),
    }
    failure = describe_failure(run, record, facts, entry, advice)
    if failure is not None:
        page["failure"] = failure
    tokens = sum(
        len(item[GENERATED_IDS])
        for item in StoredRollout(record).output
        if isinstance(item, dict) and isinstance(item.get(GENERATED_IDS), list)
    )
    if tokens:
        page["has_tokens"] = tokens
    if "annotation" in facts:
        page["annotation"] = facts["annotation"]
    return {name: value for name, value in page.items() if name != "timeline" or value}


_CONVERSATION = ("responses_create_params", "response")


def first_response_event(record: Mapping[str, Any]) -> int:
    """Return the number of the event of the first item of the response."""
    stored = StoredRollout(record)
    total, _ = read_events(record, 0, 0)
    return total - len(stored.output)


def dataset_row(run: RunDatabase, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the dataset that a rollout came from: as it was planned, else from the record."""
    path, task = materialized_path_for(run.run.output), record.get(TASK_INDEX_KEY_NAME)
    row: Mapping[str, Any] = record
    if path.is_file() and path.stat().st_size <= LONGEST_ROW_FILE:
        row = next((one for one in read_rows(path) if one.get(TASK_INDEX_KEY_NAME) == task), record)
    planned = row is not record
    names = [name for name in row if not name.startswith("_ng_") and (planned or name not in _ADDED_FIELDS)]
    return {name: row[name] for name in names}


def _with_turn(event: dict[str, Any], turns: Mapping[int, int], first_event: int) -> dict[str, Any]:
    """Return an event with its turn, and with a mark if it is the error of a tool."""
    index = event["number"] - first_event
    if index in turns:
        event["turn"] = turns[index]
    if event["kind"] == "tool_result" and _is_error(event["text"]):
        event["error"] = True
    return event


def _is_error(text: str) -> bool:
    """Return whether the output of a tool is an object with an error."""
    if not text.startswith("{") or '"error"' not in text[:2000]:
        return False
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and bool(value.get("error"))
