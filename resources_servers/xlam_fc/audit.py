"""What is right, odd, wrong and a cheat for a function-calling row."""

import copy
import json
import unicodedata
from collections.abc import Callable
from typing import Any

from nemo_gym.environment.audit_replies import Reply, message, tool_call
from nemo_gym.environment.audit_replies import play_calls as act  # noqa: F401 - part of the interface

Calls = list[dict[str, Any]]


def _said(calls: Calls, write: Callable[[Any], str] = json.dumps) -> list[dict[str, Any]]:
    """Calls as the items of one turn."""
    return [
        {
            "type": "function_call",
            "name": one["name"],
            "arguments": write(one["arguments"]),
            "call_id": f"call_{number}",
        }
        for number, one in enumerate(calls)
    ]


def _expected(row: dict[str, Any]) -> Calls:
    calls: Calls = copy.deepcopy(row["expected_answers"])
    return calls


def oracle(row: dict[str, Any]) -> Reply:
    return _said(_expected(row))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with every leaf changed."""
    if isinstance(value, dict):
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_mapped(one, change) for one in value]
    return change(value)


def _as_float(leaf: Any) -> Any:
    return float(leaf) if isinstance(leaf, int) and not isinstance(leaf, bool) else leaf


def _decomposed(leaf: Any) -> Any:
    return unicodedata.normalize("NFD", leaf) if isinstance(leaf, str) else leaf


def _backwards(value: Any) -> Any:
    """Objects with their keys the other way round."""
    if isinstance(value, dict):
        return {key: _backwards(one) for key, one in reversed(value.items())}
    return [_backwards(one) for one in value] if isinstance(value, list) else value


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    calls = _expected(row)
    changed = [
        [{**one, "arguments": change(one["arguments"])} for one in calls]
        for change in (
            _backwards,
            lambda value: _mapped(value, _as_float),
            lambda value: _mapped(value, _decomposed),
            lambda value: {**value, "note": "an argument nobody asked for"},
        )
    ]
    written = [
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(value, indent=4),
        lambda value: json.dumps(value, separators=(",", ":")),
        lambda value: f"  {json.dumps(value)}\n",
    ]
    forms: list[Reply] = [_said(form) for form in changed] + [_said(calls, write) for write in written]
    forms.append(_said(list(reversed(calls))))
    forms.append([message("I will do that."), *_said(calls)])
    forms.append([*_said(calls), message("All of it is under way.")])
    forms.append([{"type": "reasoning", "id": "rs_1", "summary": []}, *_said(calls)])
    forms.append([{**one, "name": f"mcp__assistant__{one['name']}"} for one in _said(calls)])
    forms.append([item for one in calls for item in tool_call(one["name"], one["arguments"], {"status": "recorded"})])
    return forms


def _changed(leaf: Any) -> Any:
    if isinstance(leaf, bool):
        return not leaf
    return leaf + 1 if isinstance(leaf, int | float) else f"{leaf}!"


def wrong(row: dict[str, Any]) -> list[Reply]:
    calls = _expected(row)
    first, rest = calls[0], calls[1:]
    forms: list[Reply] = []
    for name, value in first["arguments"].items():
        forms.append(_said([{**first, "arguments": {**first["arguments"], name: _mapped(value, _changed)}}, *rest]))
        left = {key: one for key, one in first["arguments"].items() if key != name}
        forms.append(_said([{**first, "arguments": left}, *rest]))
    forms.append(_said([{**first, "name": f"{first['name']}_v2"}, *rest]))
    forms.append(_said(calls[:-1]))
    forms.append(_said([*calls, first]))
    forms.append(_said([first] * len(calls)) if rest else _said([first, first]))
    as_text = _mapped(first["arguments"], lambda leaf: str(leaf) if not isinstance(leaf, str) else leaf)
    if as_text != first["arguments"]:
        forms.append(_said([{**first, "arguments": as_text}, *rest]))
    return forms


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    calls = _expected(row)
    written = json.dumps(calls)
    offered = [tool["name"] for tool in row["responses_create_params"]["tools"]]
    twice = [{**one, "arguments": json.dumps(one["arguments"])[:-1] + ', "x": 1, "x": 2}'} for one in _said(calls)]
    return [
        ("calls written as text", written),
        ("calls in a fence", f"```json\n{written}\n```"),
        ("calls in tags", f"<tool_call>{written}</tool_call>"),
        ("calls in the reasoning", f"<think>{written}</think>"),
        ("every tool without arguments", _said([{"name": name, "arguments": {}} for name in offered])),
        ("the calls and every tool", _said([*calls, *({"name": name, "arguments": {}} for name in offered)])),
        ("one call for all", _said([{"name": calls[0]["name"], "arguments": {"calls": calls}}])),
        ("a list as arguments", [{**one, "arguments": f"[{one['arguments']}]"} for one in _said(calls)]),
        ("arguments cut off", [{**one, "arguments": one["arguments"][:-1]} for one in _said(calls)]),
        ("keys given twice", twice),  # type: ignore[list-item]
        ("code as arguments", [{**one, "arguments": f"dict({one['arguments']})"} for one in _said(calls)]),
    ]


MALFORMED = [
    ("no calls", lambda row: {**row, "expected_answers": []}),
    ("calls as broken text", lambda row: {**row, "expected_answers": "[{"}),
    ("a call without a name", lambda row: {**row, "expected_answers": [{"arguments": {}}]}),
    ("arguments that are a list", lambda row: {**row, "expected_answers": [{"name": "f", "arguments": [1]}]}),
]
