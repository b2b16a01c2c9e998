"""Whether a row is a valid run request, quickly when it is and with every reason when it is not.

The common forms of `input` are recognised without building objects, and the other parameters are validated once for
each different value: in most files tools and sampling parameters are the same on every line. What this accepts, the
servers accept; whatever it does not recognise is given to the wire types.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from nemo_gym.config.problems import did_you_mean
from nemo_gym.data.lines import Row, anywhere
from nemo_gym.data.problems import Problem
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME as PARAMS
from nemo_gym.wire.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.wire.tasks import BaseRunRequest

MOST_SETTINGS = 4096
"""Different values remembered; files with more have values of their own on each row, which nothing is gained by."""

ROLES = frozenset({"user", "assistant", "system", "developer"})
PLAIN_ITEMS = {
    "function_call": {"type", "call_id", "name", "arguments"},
    "function_call_output": {"type", "call_id", "output"},
}
CHAT_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "functions": "tools",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}
"""What people bring along from Chat Completions."""


@dataclass(slots=True, eq=False)
class Settings:
    """All parameters of a request but `input`: what the wire types make of each, and how they are written."""

    values: dict[str, Any]
    written: bytes
    """As JSON with sorted keys."""
    separators: int
    """Commas and colons between the parts of the values, if they were written as JSON."""


@dataclass(frozen=True, slots=True)
class Request:
    """The parameters of a row that was accepted."""

    input: Any
    settings: Settings


class RowChecker:
    """Checks rows, and remembers the settings it has seen."""

    def __init__(self) -> None:
        self._settings: dict[bytes, Settings] = {}
        self._values: dict[tuple[str, bytes], Any] = {}

    def accepted(self, row: Row) -> Request | None:
        """The request in a row, or None when something is wrong with it."""
        params = row.get(PARAMS)
        if type(params) is not dict or "input" not in params:
            return None
        given = params["input"]
        if not _is_plain(given) and _validated({"input": given}) is None:
            return None
        rest = {name: value for name, value in params.items() if name != "input"}
        written = orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)
        settings = self._settings.get(written)
        if settings is None:
            settings = self._checked(rest, written)
            if settings is None:
                return None
            _remember(self._settings, written, settings)
        return Request(given, settings)

    def _checked(self, rest: dict[str, Any], written: bytes) -> Settings | None:
        values = {}
        for name, value in rest.items():
            key = (name, orjson.dumps(value))
            if key not in self._values:
                model = _validated({"input": "", name: value})
                if model is None:
                    return None
                _remember(self._values, key, getattr(model, name))
            values[name] = self._values[key]
        return Settings(values, written, sum(map(separators, rest.values())))


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= MOST_SETTINGS:
        known.clear()
    known[key] = value


def problems_of(row: Row) -> list[Problem]:
    """Everything the wire types have against a row; empty when it is a run request."""
    try:
        BaseRunRequest.model_validate(row)
    except ValidationError as error:
        return list(dict.fromkeys(_explained(row, error)))
    return []


def separators(value: Any) -> int:
    """How many commas and colons stand between the parts of a value when it is written as JSON."""
    if isinstance(value, dict):
        total = max(2 * len(value) - 1, 0)
        children = list(value.values())
    elif isinstance(value, list):
        total = max(len(value) - 1, 0)
        children = value
    else:
        return 0
    for child in children:
        if type(child) is not str:
            total += separators(child)
    return total


def _validated(params: dict[str, Any]) -> NeMoGymResponseCreateParamsNonStreaming | None:
    try:
        return NeMoGymResponseCreateParamsNonStreaming.model_validate(params)
    except ValidationError:
        return None


def _is_plain(given: Any) -> bool:
    """Whether an input is a text, or a list of messages and function calls in their simplest form."""
    if type(given) is str:
        return True
    return type(given) is list and all(type(item) is dict and _is_plain_item(item) for item in given)


def _is_plain_item(item: dict[str, Any]) -> bool:
    role = item.get("role")
    if type(role) is str:
        simplest = len(item) == 2 or (len(item) == 3 and item.get("type") == "message")
        return simplest and role in ROLES and type(item.get("content")) is str
    kind = item.get("type")
    fields = PLAIN_ITEMS.get(kind) if type(kind) is str else None
    return item.keys() == fields and all(type(value) is str for value in item.values())


def _explained(row: Row, error: ValidationError) -> Iterator[Problem]:
    for detail in error.errors(include_url=False, include_input=False):
        path, holder = _place(row, detail["loc"])
        kind, context = detail["type"], detail.get("ctx", {})
        reason = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if kind == "extra_forbidden":
            reason = _unknown_field(path, holder)
        elif kind in ("model_type", "dict_type"):
            reason = "should be an object"
        elif kind == "union_tag_invalid":
            reason = f"unknown type {context['tag']!r}: there are {context['expected_tags']}"
        elif kind == "union_tag_not_found":
            reason = "has no type"
        yield Problem(anywhere(path), reason[:1].lower() + reason[1:])


def _place(row: Row, location: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], Any]:
    """Where in the row an error is, and the object around it.

    A location also names branches of unions; those are no keys of the data and are left out.
    """
    path: list[int | str] = []
    holder: Any = row
    value: Any = row
    in_list = False
    for number, part in enumerate(location):
        if isinstance(value, list) and isinstance(part, int):
            path.append(part)
            holder, value, in_list = value, value[part], True
        elif isinstance(value, dict):
            branch = in_list and part == value.get("type")
            in_list = False
            if not branch and (part in value or number == len(location) - 1):
                path.append(part)
                holder, value = value, value.get(part)
    return tuple(path), holder


def _unknown_field(path: tuple[int | str, ...], holder: Any) -> str:
    name = str(path[-1])
    if path[:-1] == (PARAMS,):
        if name in CHAT_NAMES:
            return f"not a field of the Responses API — it is called '{CHAT_NAMES[name]}' there"
        fields = NeMoGymResponseCreateParamsNonStreaming.model_fields
        return f"not a field of the Responses API{did_you_mean(name, fields)}"
    if name == "function" and isinstance(holder, Mapping) and holder.get("type") == "function":
        return "a Chat Completions tool — here name, description and parameters stand beside type"
    return "unknown field"
