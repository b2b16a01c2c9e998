"""Right, odd, wrong and cheating replies for `gym env audit ask_then_answer`."""

from typing import Any

from nemo_gym.authoring.model_replies import Reply, message, tool_call
from nemo_gym.authoring.model_replies import play_calls as act  # noqa: F401 - part of the interface

MOST_FOR_WRONG = 0.0


def _call_and_output(digit: int) -> list[dict[str, Any]]:
    return tool_call("ask", {}, {"digit": digit})


def oracle(row: dict[str, Any]) -> Reply:
    return [*_call_and_output(row["digit"]), message(f"The digit is {row['digit']}.")]


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    digit = row["digit"]
    texts = (
        f"{digit}",
        f" {digit}\n",
        f"{digit}!",
        f"It is {digit}, I say {digit}.",
        f"**{digit}**",
        f"Digit: {digit}",
    )
    forms: list[Reply] = [[*_call_and_output(digit), message(text)] for text in texts]
    forms.append(
        [*_call_and_output(digit), *tool_call("ask", {}, {"digit": digit}, call_id="again"), message(f"{digit}")]
    )
    forms.append([message("I ask first."), *_call_and_output(digit), message(f"{digit}")])
    return forms


def wrong(row: dict[str, Any]) -> list[Reply]:
    digit = row["digit"]
    texts = (f"{(digit + 1) % 10}", f"{digit}{digit}", f"-1{digit}", "I do not know.", f"1{digit} or so")
    return [[*_call_and_output(digit), message(text)] for text in texts]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    digit = row["digit"]
    return [
        ("a right guess", f"{digit}"),
        ("another tool", [*tool_call("tell", {}, {"digit": digit}), message(f"{digit}")]),
        ("every digit", "0 1 2 3 4 5 6 7 8 9"),
        ("two guesses", f"{digit} or {(digit + 1) % 10}"),
        ("the answer before the call only", [message(f"{digit}"), *_call_and_output(digit)]),
        ("the tool's output as the answer", _call_and_output(digit)),
        ("an empty answer", [*_call_and_output(digit), message("")]),
    ]


MALFORMED = [
    ("no digit", lambda row: {key: value for key, value in row.items() if key != "digit"}),
    ("a digit in words", lambda row: {**row, "digit": "seven"}),
    ("two digits", lambda row: {**row, "digit": 12}),
    ("below zero", lambda row: {**row, "digit": -1}),
]
