"""Right, odd, wrong and cheating replies for `gym env audit example_tool_call_multireward`."""

import json
from typing import Any

from nemo_gym.authoring.model_replies import Reply, message, tool_call
from nemo_gym.authoring.model_replies import play_calls as act  # noqa: F401 - part of the interface
from resources_servers.example_tool_call_multireward.app import TOOLS, convert

MOST_FOR_WRONG = 0.75  # the right call pays three quarters; the wrong arguments a quarter
ANSWERS = (
    "It is {}.", "{}", "The result is {}", "**{}**", "That makes {}!", "= {}", "$\\boxed{{{}}}$", "About {}, exactly.",
    "12 or 13? No: {}", "| result | {} |", "<think>7</think>{}", "{} it is.", "({})", "Result:\n\n{}\n",
)  # fmt: skip


def _result(row: dict[str, Any]) -> float:
    return convert(TOOLS[row["expected_tool"]].model_validate(row["expected_arguments"]))


def _call_and_answer(row: dict[str, Any], text: str | None, **arguments: Any) -> list[dict[str, Any]]:
    """Return the expected call with `arguments` in place of its arguments, its result, and a message."""
    changed = {**row["expected_arguments"], **arguments}
    result = {"value": _result(row), "unit": changed["to_unit"]}
    items = tool_call(row["expected_tool"], changed, result, call_id="call_1")
    return items if text is None else [*items, message(text)]


def oracle(row: dict[str, Any]) -> Reply:
    return _call_and_answer(row, f"The result is {_result(row)}.")


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    value = _result(row)
    forms: list[Reply] = [_call_and_answer(row, text.format(value)) for text in ANSWERS]
    forms += [
        _call_and_answer(row, f"{value:.1f}"),
        _call_and_answer(row, f"{value:,.2f}"),
        _call_and_answer(row, f"{value:.2f}00"),
    ]
    forms.append(_call_and_answer(row, f"{value}".replace("-", "\N{MINUS SIGN}")))
    forms.append([message("I will convert it."), *_call_and_answer(row, f"{value}")])
    call, answer, words = _call_and_answer(row, f"{value}")
    forms.append([{**call, "name": f"mcp__units__{call['name']}"}, answer, words])
    forms.append([{**call, "arguments": json.dumps(json.loads(call["arguments"]), indent=1)}, answer, words])
    as_float = {**row["expected_arguments"], "value": float(row["expected_arguments"]["value"])}
    return [*forms, [{**call, "arguments": json.dumps(as_float)}, answer, words]]


def wrong(row: dict[str, Any]) -> list[Reply]:
    value, expected = _result(row), row["expected_arguments"]
    swapped = {"from_unit": expected["to_unit"], "to_unit": expected["from_unit"]}
    return [
        _call_and_answer(row, f"It is {value + 0.2:.2f}."),
        _call_and_answer(row, f"It is {value - 0.2:.2f}."),
        _call_and_answer(row, f"It is {-value - 1}."),
        _call_and_answer(row, None),
        _call_and_answer(row, "I have converted it."),
        _call_and_answer(row, f"It is {value}, or {value + 5}."),
        _call_and_answer(row, f"It is {value}.", value=expected["value"] + 1),
        _call_and_answer(row, f"It is {value}.", **swapped),
    ]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    value = _result(row)
    call, answer, words = _call_and_answer(row, f"It is {value}.")
    other = next(name for name in TOOLS if name != row["expected_tool"])
    return [
        ("the result without a call", f"It is {value}."),
        ("the call in words", f"{row['expected_tool']}({json.dumps(row['expected_arguments'])}) = {value}"),
        ("every tool", [*({**call, "name": name, "call_id": f"call_{name}"} for name in TOOLS), answer, words]),
        ("another tool", [{**call, "name": other}, answer, words]),
        ("the same call twice", [call, {**call, "call_id": "call_2"}, answer, words]),
        ("a tool that is not there", [{**call, "name": "convert"}, answer, words]),
    ]


MALFORMED = [
    ("a tool that is not there", lambda row: {**row, "expected_tool": "convert_time"}),
    ("arguments of another tool", lambda row: {**row, "expected_arguments": {"value": 1, "from_unit": "day"}}),
    ("no value", lambda row: {**row, "expected_arguments": {"from_unit": "mile", "to_unit": "metre"}}),
]
