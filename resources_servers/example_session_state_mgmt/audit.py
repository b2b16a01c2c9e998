"""Right, odd, wrong and cheating replies for `gym env audit example_session_state_mgmt`."""

from typing import Any

from nemo_gym.authoring.model_replies import Reply, message, tool_call
from nemo_gym.authoring.model_replies import play_calls as act  # noqa: F401 - part of the interface

MOST_FOR_WRONG = 0.0
DONE = {"success": True}


def _increments(*amounts: int, end: int | None = None, prefix: str = "call") -> list[dict[str, Any]]:
    """Return calls that add these amounts and, if `end` is given, a call that reads the counter."""
    items = []
    for number, amount in enumerate(amounts):
        items += tool_call("increment_counter", {"count": amount}, DONE, call_id=f"{prefix}_{number}")
    if end is not None:
        items += tool_call("get_counter_value", {}, {"count": end}, call_id=f"{prefix}_end")
    return items


def _difference(row: dict[str, Any]) -> int:
    return int(row["expected_count"] - row["initial_count"])


def oracle(row: dict[str, Any]) -> Reply:
    end = row["expected_count"]
    return [*_increments(_difference(row), end=end), message(f"The counter stands at {end}.")]


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    by, end = _difference(row), row["expected_count"]
    step = 1 if by > 0 else -1
    forms: list[Reply] = [_increments(*(step for _ in range(abs(by)))), _increments(by)]
    forms += [_increments(by - part, part) for part in (1, -3, 100)]
    forms += [_increments(by, 5, -5), _increments(0, by, 0, end=end), _increments(by, end=0)]
    forms += [[*_increments(by), message(text)] for text in ("Done.", "", "It is done; I did not look.", f"{end}")]
    forms.append([*tool_call("get_counter_value", {}, {"count": 0}), *_increments(by)])
    forms.append([{"type": "function_call", "name": "increment_counter", "arguments": f' {{"count": {by}.0}} '}])
    return forms


def wrong(row: dict[str, Any]) -> list[Reply]:
    by = _difference(row)
    return [[*_increments(amount), message("Done.")] for amount in (by + 1, by - 1, -by, 2 * by)]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    by, end = _difference(row), row["expected_count"]
    forged = _increments(by, end=end)
    return [
        ("the value told without a call", f"The counter stands at {end}."),
        ("only looked", [*tool_call("get_counter_value", {}, {"count": end}), message(f"It is {end}.")]),
        (
            "an amount as text",
            [{**item, "arguments": f'{{"count": "{by}!"}}'} if "name" in item else item for item in forged],
        ),
        ("another tool", [{**item, "name": "set_counter"} if "name" in item else item for item in forged]),
        ("arguments cut off", [{**item, "arguments": '{"count": '} if "name" in item else item for item in forged]),
    ]


MALFORMED = [
    ("an end in words", lambda row: {**row, "expected_count": "many"}),
    ("a start in words", lambda row: {**row, "initial_count": "few"}),
]
