"""The turns of a rollout: which items belong to which model call, and its tokens and seconds where recorded.

A record made by `gym eval run` has them (`_ng_turns`, `_ng_turn_seconds`). In other records a turn is an unbroken
sequence of items of the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from nemo_gym.keys import NG_TURN_SECONDS_KEY, NG_TURNS_KEY
from nemo_gym.view.table_row import MODEL_ITEMS, content_text, phase_seconds
from nemo_gym.wire.stored_rollout import StoredRollout, finite_float

LONGEST_TITLE = 120
MAX_TURNS = 5000
TOKEN_KINDS = ("input", "cached", "output", "reasoning")


@dataclass
class Turn:
    """One answer of the model: its number from 1, and its items by their number among the items of the response."""

    number: int
    items: list[int] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None
    tool_seconds: float | None = None


def read_turns(record: Mapping[str, Any]) -> list[Turn]:
    """Return the turns of a record, with tokens and seconds where they are recorded."""
    output = StoredRollout(record).output
    counts = _turn_rows(record)
    is_complete = sum(row[0] for row in counts) == sum(map(is_model_item, output)) > 0
    turns = list(_recorded_turns(output, counts) if is_complete else _guessed_turns(output))
    if not is_complete:
        counts = counts if len(counts) == len(turns) else []
    for turn, row in zip(turns, counts, strict=False):
        turn.tokens = {kind: n for kind, n in zip(TOKEN_KINDS, row[1:], strict=False) if isinstance(n, int) and n >= 0}
    seconds = record.get(NG_TURN_SECONDS_KEY)
    if isinstance(seconds, list) and len(turns) <= len(seconds) <= len(turns) + 1:  # the last call may have failed
        for turn, pair in zip(turns, seconds, strict=False):
            if isinstance(pair, list) and len(pair) == 2:
                turn.seconds, turn.tool_seconds = (finite_float(value) for value in pair)
    return turns[:MAX_TURNS]


def is_model_item(item: Any) -> bool:
    """Return whether the model made an item of a response."""
    return isinstance(item, dict) and (item.get("type") in MODEL_ITEMS or item.get("role") == "assistant")


def turn_facts(record: Mapping[str, Any], first_event: int) -> list[dict[str, Any]]:
    """Return the outline of a conversation; `first_event` is the number of the first item of the response."""
    output = StoredRollout(record).output
    turns = read_turns(record)
    slowest = max((turn.seconds or 0.0 for turn in turns), default=0.0)
    facts = []
    for turn in turns:
        items = [output[index] for index in turn.items]
        row: dict[str, Any] = {
            "turn": turn.number,
            "event": first_event + (turn.items[0] if turn.items else 0),
            "title": next(filter(None, map(_title, items)), ""),
            "tools": [str(item.get("name")) for item in items if item.get("type") == "function_call"],
        }
        if turn.tokens:
            row["tokens"] = turn.tokens
        if turn.seconds is not None:
            row |= {"seconds": turn.seconds, "slowest": len(turns) > 1 and turn.seconds == slowest}
        if turn.tool_seconds:
            row["tool_seconds"] = turn.tool_seconds
        facts.append(row)
    return facts


def event_turns(record: Mapping[str, Any]) -> dict[int, int]:
    """Return the turn of each item of the response by the number of the item; an output has the turn of its call."""
    turn_of_item = {index: turn.number for turn in read_turns(record) for index in turn.items}
    calls: dict[Any, int] = {}
    current = 0
    for index, item in enumerate(StoredRollout(record).output):
        if index in turn_of_item:
            current = turn_of_item[index]
            if isinstance(item, dict) and isinstance(item.get("call_id"), str):
                calls[item["call_id"]] = current
        elif current:
            call_id = item.get("call_id") if isinstance(item, dict) else None
            turn_of_item[index] = calls.get(call_id, current) if isinstance(call_id, str) else current
    return turn_of_item


def timeline(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return where the time of a rollout went, in order; empty if no times are recorded."""
    seconds = {name: value for name, value in phase_seconds(StoredRollout(record)).items() if value}
    if not seconds:
        return []
    turns = [turn for turn in read_turns(record) if turn.seconds is not None]
    before = [name for name in ("queue", "seed_session") if name in seconds]
    parts: list[dict[str, Any]] = [{"phase": name, "seconds": seconds.pop(name)} for name in before]
    if turns:
        seconds.pop("model", None)
        seconds.pop("tools", None)
    for turn in turns:
        parts.append({"phase": "model", "seconds": turn.seconds, "turn": turn.number})
        if turn.tool_seconds:
            parts.append({"phase": "tools", "seconds": turn.tool_seconds, "turn": turn.number})
    return parts + [{"phase": name, "seconds": value} for name, value in seconds.items()]


def _turn_rows(record: Mapping[str, Any]) -> list[Sequence[Any]]:
    rows = record.get(NG_TURNS_KEY)
    is_valid = isinstance(rows, list) and all(isinstance(row, list) and row and type(row[0]) is int for row in rows)
    return rows if is_valid and isinstance(rows, list) else []


def _recorded_turns(output: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Iterator[Turn]:
    """Yield the turns by the number of items that each of them has."""
    model_items = (index for index, item in enumerate(output) if is_model_item(item))
    for number, row in enumerate(rows, start=1):
        yield Turn(number, list(islice(model_items, row[0])))


def _guessed_turns(output: Sequence[Any]) -> Iterator[Turn]:
    """Yield the unbroken sequences of items of the model."""
    turn: Turn | None = None
    number = 0
    for index, item in enumerate(output):
        if not is_model_item(item):
            if turn is not None:
                yield turn
            turn = None
            continue
        if turn is None:
            number += 1
            turn = Turn(number)
        turn.items.append(index)
    if turn is not None:
        yield turn


def _title(item: Mapping[str, Any]) -> str:
    text = content_text(item.get("content")) if item.get("role") == "assistant" or item.get("content") else ""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_TITLE else line[: LONGEST_TITLE - 1] + "…"
