"""Right, odd, wrong and cheating replies for `gym env audit xlam_fc`."""

import copy
import json
import unicodedata
from collections.abc import Callable
from typing import Any

from nemo_gym.authoring.model_replies import Reply, message, tool_call
from nemo_gym.authoring.model_replies import play_calls as act  # noqa: F401 - part of the interface

Calls = list[dict[str, Any]]


def _call_items(calls: Calls, write: Callable[[Any], str] = json.dumps) -> list[dict[str, Any]]:
    """Return calls as the items of one turn."""
    return [
        {
            "type": "function_call",
            "name": one["name"],
            "arguments": write(one["arguments"]),
            "call_id": f"call_{number}",
        }
        for number, one in enumerate(calls)
    ]


def _expected_calls(row: dict[str, Any]) -> Calls:
    calls: Calls = copy.deepcopy(row["expected_answers"])
    return calls


def oracle(row: dict[str, Any]) -> Reply:
    return _call_items(_expected_calls(row))


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value with every leaf changed."""
    if isinstance(value, dict):
        return {key: _map_leaves(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_map_leaves(one, change) for one in value]
    return change(value)


def _as_float(leaf: Any) -> Any:
    return float(leaf) if isinstance(leaf, int) and not isinstance(leaf, bool) else leaf


def _decompose(leaf: Any) -> Any:
    return unicodedata.normalize("NFD", leaf) if isinstance(leaf, str) else leaf


def _reverse_keys(value: Any) -> Any:
    """Return the value with the keys of all objects in reverse order."""
    if isinstance(value, dict):
        return {key: _reverse_keys(one) for key, one in reversed(value.items())}
    return [_reverse_keys(one) for one in value] if isinstance(value, list) else value


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    calls = _expected_calls(row)
    changed = [
        [{**one, "arguments": change(one["arguments"])} for one in calls]
        for change in (
            _reverse_keys,
            lambda value: _map_leaves(value, _as_float),
            lambda value: _map_leaves(value, _decompose),
        )
    ]
    written = [
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(value, indent=4),
        lambda value: json.dumps(value, separators=(",", ":")),
        lambda value: f"  {json.dumps(value)}\n",
    ]
    forms: list[Reply] = [_call_items(form) for form in changed] + [_call_items(calls, write) for write in written]
    forms.append(_call_items(list(reversed(calls))))
    forms.append([message("I will do that."), *_call_items(calls)])
    forms.append([*_call_items(calls), message("All of it is under way.")])
    forms.append([{"type": "reasoning", "id": "rs_1", "summary": []}, *_call_items(calls)])
    forms.append([{**one, "name": f"mcp__assistant__{one['name']}"} for one in _call_items(calls)])
    forms.append([item for one in calls for item in tool_call(one["name"], one["arguments"], {"status": "recorded"})])
    return forms


def _change_leaf(leaf: Any) -> Any:
    if isinstance(leaf, bool):
        return not leaf
    return leaf + 1 if isinstance(leaf, int | float) else f"{leaf}!"


def wrong(row: dict[str, Any]) -> list[Reply]:
    calls = _expected_calls(row)
    first, rest = calls[0], calls[1:]
    forms: list[Reply] = []
    for name, value in first["arguments"].items():
        forms.append(
            _call_items([{**first, "arguments": {**first["arguments"], name: _map_leaves(value, _change_leaf)}}, *rest])
        )
        left = {key: one for key, one in first["arguments"].items() if key != name}
        forms.append(_call_items([{**first, "arguments": left}, *rest]))
    forms.append(_call_items([{**first, "name": f"{first['name']}_v2"}, *rest]))
    forms.append(_call_items(calls[:-1]))
    forms.append(_call_items([*calls, first]))
    forms.append(_call_items([first] * len(calls)) if rest else _call_items([first, first]))
    as_text = _map_leaves(first["arguments"], lambda leaf: str(leaf) if not isinstance(leaf, str) else leaf)
    if as_text != first["arguments"]:
        forms.append(_call_items([{**first, "arguments": as_text}, *rest]))
    return forms


def _with_argument(call: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**call, "arguments": {**call["arguments"], name: value}}


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    calls = _expected_calls(row)
    written = json.dumps(calls)
    offered = [tool["name"] for tool in row["responses_create_params"]["tools"]]
    twice = [
        {**one, "arguments": json.dumps(one["arguments"])[:-1] + ', "x": 1, "x": 2}'} for one in _call_items(calls)
    ]
    return [
        ("calls written as text", written),
        ("calls in a fence", f"```json\n{written}\n```"),
        ("calls in tags", f"<tool_call>{written}</tool_call>"),
        ("calls in the reasoning", f"<think>{written}</think>"),
        ("every tool without arguments", _call_items([{"name": name, "arguments": {}} for name in offered])),
        ("the calls and every tool", _call_items([*calls, *({"name": name, "arguments": {}} for name in offered)])),
        ("one call for all", _call_items([{"name": calls[0]["name"], "arguments": {"calls": calls}}])),
        ("a list as arguments", [{**one, "arguments": f"[{one['arguments']}]"} for one in _call_items(calls)]),
        ("arguments cut off", [{**one, "arguments": one["arguments"][:-1]} for one in _call_items(calls)]),
        ("an invented argument", _call_items([_with_argument(one, "admin", True) for one in calls])),
        ("an invented argument in one call", _call_items([*calls[:-1], _with_argument(calls[-1], "force", "yes")])),
        ("keys given twice", twice),  # type: ignore[list-item]
        ("code as arguments", [{**one, "arguments": f"dict({one['arguments']})"} for one in _call_items(calls)]),
    ]


MALFORMED = [
    ("no calls", lambda row: {**row, "expected_answers": []}),
    ("calls as broken text", lambda row: {**row, "expected_answers": "[{"}),
    ("a call without a name", lambda row: {**row, "expected_answers": [{"arguments": {}}]}),
    ("arguments that are a list", lambda row: {**row, "expected_answers": [{"name": "f", "arguments": [1]}]}),
]
