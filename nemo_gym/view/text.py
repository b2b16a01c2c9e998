"""The same facts for people on a remote shell. What models wrote cannot move the cursor or reverse the line."""

import re
from collections.abc import Iterator
from typing import Any

from nemo_gym.view.conversation import LONGEST_TEXT, events
from nemo_gym.view.index import RunIndex
from nemo_gym.view.summary import summary

# Everything a terminal would obey: control characters but for line ends and tabs, and marks that turn text around.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST_CELL = 40


def harmless(text: str) -> str:
    """Text with everything a terminal would obey made visible."""
    return _OBEYED.sub(lambda found: f"\\x{ord(found.group()):02x}", text.replace("\r\n", "\n"))


def overview(index: RunIndex) -> Iterator[str]:
    """A run in a few lines."""
    found = summary(index)
    reward = found["reward"]
    yield f"{found['name']}  ({found['path']})"
    if reward["mean"] is not None:
        half = f" ± {reward['half_width_95']:.4f} (95 %)" if reward["half_width_95"] is not None else ""
        yield f"mean reward  {reward['mean']:.4f}{half}, n = {reward['n']} over {reward['tasks']} tasks"
    for entry in found["outcomes"]:
        yield f"{entry['count']:>9}  {entry['outcome']}{': ' + harmless(entry['kind']) if entry['kind'] else ''}"
    for phase in found["latency"]:
        share = "" if phase["share"] is None else f"  {phase['share']:6.1%} of the time"
        yield f"{phase['phase']:<13} {phase['p50']:8.2f} s median  {phase['p95']:8.2f} s p95{share}"
    for point in found["pass_at_k"]:
        if point["k"] & (point["k"] - 1) == 0:  # 1, 2, 4, 8, …
            yield f"pass@{point['k']:<4} {point['chance']:.4f}"


def rows(index: RunIndex, *, where: str = "", words: str = "", count: int = 50) -> Iterator[list[str]]:
    """The table: heads first, then a line per rollout, then how many more there are."""
    page = index.page(where=where, words=words, count=count)
    yield ["task", "repeat", "outcome", "reward", "turns", "tokens", "extracted", "expected"]
    for row in page.rows:
        outcome = row["outcome"] + (f": {row['kind']}" if row["outcome"] != "scored" else "")
        yield [
            str(row["task"]),
            str(row["rollout"]),
            harmless(outcome),
            "" if row["reward"] is None else f"{row['reward']:.3f}",
            str(row["turns"]),
            str(row["tokens_in"] + row["tokens_out"]),
            _cell(row["extracted"] or row["message"]),
            _cell(row["expected"]),
        ]
    if page.total > len(page.rows):
        yield [f"… {page.total - len(page.rows)} more", *[""] * 7]


def rollout(index: RunIndex, place: tuple[int, int]) -> Iterator[str] | None:
    """A whole rollout as it was said; None if there is none."""
    record = index.record(place)
    if record is None:
        return None
    facts = index.page(where=f"task == {place[0]} and repeat == {place[1]}", count=1).rows[0]
    return _lines(record, facts, place)


def _lines(record: dict[str, Any], facts: dict[str, Any], place: tuple[int, int]) -> Iterator[str]:
    reward = "" if facts["reward"] is None else f"  reward {facts['reward']:g}"
    kind = f": {facts['kind']}" if facts["kind"] else ""
    yield harmless(f"task {place[0]}, repeat {place[1]}  {facts['outcome']}{kind}{reward}")
    for name in ("message", "extracted", "expected", "rule"):
        if facts[name]:
            yield f"{name}: {harmless(facts[name])}"
    start = 0
    while True:
        total, shown = events(record, start)
        for event in shown:
            yield ""
            name = f" {event['name']}" if event.get("name") else ""
            yield harmless(f"── {event['role']} · {event['kind']}{name}")
            yield harmless(event["text"])
            if event["length"] > LONGEST_TEXT:
                yield f"… {event['length'] - LONGEST_TEXT} more characters"
        start += len(shown)
        if start >= total:
            return


def _cell(text: str) -> str:
    plain = harmless(" ".join(text.split()))
    return plain if len(plain) <= LONGEST_CELL else plain[: LONGEST_CELL - 1] + "…"
