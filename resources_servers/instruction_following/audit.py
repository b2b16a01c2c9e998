"""Right, odd, wrong and cheating replies for `gym env audit instruction_following`."""

from collections.abc import Callable
from typing import Any

from resources_servers.instruction_following.compose import STYLES, reply

Row = dict[str, Any]


def oracle(row: Row) -> str:
    return reply(row)


def odd_forms(row: Row) -> list[str]:
    forms = [reply(row, style=style) for style in range(1, STYLES)]
    return [*forms, f"<think>How long is it?</think>{reply(row)}", f"  {reply(row)}\n"]


def wrong(row: Row) -> list[str]:
    """Return, for each instruction, a reply that misses only this one."""
    return [reply(row, breaking=name) for name in row["verifier_metadata"]["instruction_id_list"]]


def cheats(row: Row) -> list[tuple[str, str]]:
    ids = row["verifier_metadata"]["instruction_id_list"]
    return [
        ("all answers at once", "My answer is yes. My answer is no. My answer is maybe."),
        ("the ids", " ".join(ids)),
        ("unclosed reasoning", f"<think>{reply(row)}"),
        ("only reasoning", f"<think>{reply(row)}</think>"),
        ("a promise", "I have followed every instruction above."),
    ]


def _metadata(**changes: Any) -> Callable[[Row], Row]:
    return lambda row: {**row, "verifier_metadata": {**row["verifier_metadata"], **changes}}


MALFORMED: list[tuple[str, Callable[[Row], Row]]] = [
    ("no metadata", lambda row: {key: value for key, value in row.items() if key != "verifier_metadata"}),
    ("no instructions", _metadata(instruction_id_list=[], kwargs=[])),
    ("arguments for fewer instructions", _metadata(kwargs=[])),
    ("arguments that are text", _metadata(kwargs=["none"])),
    ("an unknown mode", lambda row: {**row, "grading_mode": "generous"}),
]
