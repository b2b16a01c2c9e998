"""Show runs and rollouts on a terminal. Control characters in model output are escaped."""

import re
from collections.abc import Iterator
from typing import Any

from nemo_gym.metrics.answer_totals import describe_answers
from nemo_gym.metrics.intervals import MeanWithInterval
from nemo_gym.view.conversation import LONGEST_TEXT, read_events
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.summary import summarize
from nemo_gym.wire.stored_rollout import RolloutId

# Control characters except line ends and tabs, and marks that change the direction of text.
_TERMINAL_CODES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST_CELL = 40
LONGEST_ERROR = 100


def escape_terminal_codes(text: str) -> str:
    """Replace control characters, which a terminal would interpret, by visible escapes."""
    return _TERMINAL_CODES.sub(lambda match: f"\\x{ord(match.group()):02x}", text.replace("\r\n", "\n"))


def overview_lines(run: RunDatabase) -> Iterator[str]:
    """Summarize a run in a few lines."""
    summary = summarize(run)
    reward = summary["reward"]
    yield f"{summary['name']}  ({summary['path']})"
    if reward["mean"] is not None:
        low, high = reward["interval_95"] or (None, None)
        mean = MeanWithInterval(reward["mean"], reward["n"], reward["tasks"], low=low, high=high)
        yield f"mean reward  {mean}"
    totals = {kind: summary["tokens"][f"tokens_{kind}"]["sum"] for kind in ("in", "out")}
    if any(totals.values()):
        yield "tokens       " + " · ".join(f"{total:,} {kind}" for kind, total in totals.items())
    for entry in summary["metrics"] if isinstance(summary["metrics"], list) else ():
        if isinstance(entry, dict) and (problems := describe_answers(entry)):
            yield f"answers      {problems}"
    for entry in summary["outcomes"]:
        kind = f": {escape_terminal_codes(entry['kind'])}" if entry["kind"] else ""
        yield f"{entry['count']:>9}  {entry['outcome']}{kind}"
    for phase in summary["latency"]:
        fraction = "" if phase["share"] is None else f"  {phase['share']:6.1%} of the time"
        yield f"{phase['phase']:<13} {phase['p50']:8.2f} s median  {phase['p95']:8.2f} s p95{fraction}"
    for point in summary["pass_at_k"]:
        yield f"pass@{point['k']:<4} {point['chance']:.4f}"


def table_rows(run: RunDatabase, *, filter_text: str = "", words: str = "", count: int = 50) -> Iterator[list[str]]:
    """Yield the table: the header, at most `count` rollouts, and the number of rollouts that are not listed.

    The column of errors appears only if a listed rollout has one.
    """
    page = run.page(filter_text=filter_text, words=words, count=count)
    has_errors = any(row["message"] for row in page.rows)
    header = ["task", "repeat", "outcome", "reward", "turns", "tokens", "extracted", "expected"]
    header += ["error"] if has_errors else []
    yield header
    for row in page.rows:
        outcome = row["outcome"] + (f": {row['kind']}" if row["outcome"] != "scored" else "")
        yield [
            str(row["task"]),
            str(row["rollout"]),
            escape_terminal_codes(outcome),
            "" if row["reward"] is None else f"{row['reward']:.3f}",
            str(row["turns"]),
            str(row["tokens_in"] + row["tokens_out"]),
            _cell(row["extracted"]),
            _cell(row["expected"]),
            *([_cell(row["message"], LONGEST_ERROR)] if has_errors else []),
        ]
    if page.total > len(page.rows):
        yield [f"… {page.total - len(page.rows)} more", *[""] * (len(header) - 1)]


def rollout_lines(run: RunDatabase, rollout_id: RolloutId) -> Iterator[str] | None:
    """Return the conversation of a rollout; None if the rollout does not exist."""
    record = run.record(rollout_id)
    if record is None:
        return None
    return _conversation_lines(record, run.row(rollout_id))


def _conversation_lines(record: dict[str, Any], facts: dict[str, Any]) -> Iterator[str]:
    """Yield the facts of a rollout, then its events."""
    reward = "" if facts["reward"] is None else f"  reward {facts['reward']:g}"
    kind = f": {facts['kind']}" if facts["kind"] else ""
    title = f"task {facts['task']}, repeat {facts['rollout']}  {facts['outcome']}{kind}{reward}"
    yield escape_terminal_codes(title)
    for name in ("message", "extracted", "expected", "rule"):
        if facts[name]:
            yield f"{name}: {escape_terminal_codes(facts[name])}"
    for event in read_events(record)[1]:
        yield ""
        name = f" {event['name']}" if event.get("name") else ""
        yield escape_terminal_codes(f"── {event['role']} · {event['kind']}{name}")
        yield escape_terminal_codes(event["text"])
        if event["length"] > LONGEST_TEXT:
            yield f"… {event['length'] - LONGEST_TEXT} more characters"


def _cell(text: str, longest: int = LONGEST_CELL) -> str:
    line = escape_terminal_codes(" ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"
