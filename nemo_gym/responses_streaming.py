"""Requests of Responses clients that our request type does not accept as they are, and a response sent as events.

Programs such as coding agents send private fields. `sanitise_request` rewrites tools in a namespace and tools
inside the input, drops fields that our request type does not have, and lists what it drops. A request is treated in the
same way whether it asks for a stream or not.
"""

from collections.abc import Iterator
from copy import deepcopy
from difflib import get_close_matches
from functools import cache
from time import time
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.convert import sse
from nemo_gym.convert.flattened_tools import (
    NamespacedNames,
    flatten_call,
    flatten_choice,
    flatten_tools,
    split_response,
)
from nemo_gym.convert.json_access import Json, expect_dict, expect_list, new_id, optional_list_at, to_dict
from nemo_gym.convert.response_events import events_from_response, events_of_failure, numbered_events
from nemo_gym.wire.engine_options import ENGINE_OPTIONS
from nemo_gym.wire.responses import NeMoGymResponseCreateParamsNonStreaming, NeMoGymResponseInputItem
from nemo_gym.wire.responses_options import ToolParam

_MAX_ROUNDS = 8
"""Removing unknown fields of one level can uncover another; no real request needs more rounds."""


MISSPELT = 0.85
"""Similarity from which an unknown field is a misspelt one; it stays, and the validation that follows explains it."""

_CORE_KINDS = frozenset({"message", "function_call", "function_call_output", "reasoning", "function", "custom"})
"""Types of items and tools whose errors the validation explains; others are hosted, and dropped if they are invalid."""


def sanitise_request(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a request in the form of our strict request type plus options of engines, and a list of what was dropped.

    Wrong values of known fields stay: the validation that follows explains them.

    Raises:
        ConversionError: the body is not a request at all.
    """
    request, dropped = flatten_request(body)
    fields = NeMoGymResponseCreateParamsNonStreaming.model_fields
    unknown = [key for key in request if key not in fields and key not in ENGINE_OPTIONS]
    unknown = [key for key in unknown if not get_close_matches(key, fields, 1, MISSPELT)]
    dropped += [f"{key}: not a field of a request" for key in unknown]
    request = {key: value for key, value in request.items() if key not in unknown}
    if isinstance(request.get("input"), list):
        request["input"] = _valid_values("input", request["input"], _adapter(NeMoGymResponseInputItem), dropped)
    if isinstance(request.get("tools"), list):
        request["tools"] = _valid_values("tools", request["tools"], _adapter(ToolParam), dropped)
    options = {key: value for key, value in request.items() if key in fields and key not in ("input", "tools")}
    known_options, _ = _without_unknown_fields(options, _adapter(_Options), "", dropped)
    return request | known_options, dropped


def replay(response: dict[str, Any]) -> Iterator[bytes]:
    """Encode a finished response as server-sent events."""
    return sse.encode_typed(numbered_events(events_from_response(response)))


def replay_failure(message: str, model: str, code: str = "server_error") -> Iterator[bytes]:
    """Encode a failure as server-sent events, for a stream that has already sent its status."""
    events = events_of_failure(message, code=code, model=model, response_id=new_id("resp"), created_at=int(time()))
    return sse.encode_typed(numbered_events(events))


def sanitize_streaming_responses_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return a streaming request in the form of our strict request type."""
    return sanitise_request(body)[0]


def validate_streaming_responses_params(body: dict[str, Any]) -> NeMoGymResponseCreateParamsNonStreaming:
    """Return a streaming request as an object of our strict request type."""
    return NeMoGymResponseCreateParamsNonStreaming.model_validate(sanitize_streaming_responses_body(body))


def synthesize_responses_sse(response: Any) -> Iterator[bytes]:
    """Encode a finished response, an object or a dictionary, as server-sent events."""
    return replay(to_dict(response))


def flatten_namespace_tools(tools: list[Any]) -> list[Any]:
    """Return a flat list of tools; a tool of a namespace is called `<namespace>__<name>`."""
    return flatten_tools(tools, [])[0]


def restore_namespace_tool_calls(response: Any, tools: list[Any]) -> dict[str, Any]:
    """Return a response whose calls of flattened tools have their namespaces; `tools` are those of the request."""
    return split_response(to_dict(response), flatten_tools(tools, [])[1])


def flatten_request(body: Any) -> tuple[Json, list[str]]:
    """Return the rewritten request, and descriptions of the dropped elements.

    The result has no `stream` and a flat list of tools, also of those inside the input.

    Raises:
        ConversionError: the body does not have the form of a request.
    """
    body = expect_dict(body, "request")
    dropped: list[str] = []
    request = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    tools = optional_list_at(request, "tools", "request")
    if isinstance(request.get("input"), list):
        items = []
        for index, item in enumerate(request["input"]):
            if isinstance(item, dict) and item.get("type") == "additional_tools":
                tools = tools + expect_list(item.get("tools"), f"input[{index}].tools")
            else:
                items.append(flatten_call(item))
        request["input"] = items
    if tools or "tools" in request:
        request["tools"], names = flatten_tools(tools, dropped)
        if "tool_choice" in request:
            request["tool_choice"] = flatten_choice(request["tool_choice"], names, request["tools"])
    return request, dropped


def namespaced_names(body: Any) -> NamespacedNames:
    """Return the namespaces and names of the tools that `flatten_request` renames, by their flat names."""
    tools = list(body["tools"]) if isinstance(body, dict) and isinstance(body.get("tools"), list) else []
    for item in body.get("input") or () if isinstance(body, dict) and isinstance(body.get("input"), list) else ():
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            tools += expect_list(item.get("tools") or [], "input.tools")
    if not any(isinstance(tool, dict) and tool.get("type") == "namespace" for tool in tools):
        return {}
    return flatten_tools(tools, [])[1]


def _valid_values(name: str, values: list[Any], adapter: TypeAdapter[Any], dropped: list[str]) -> list[Any]:
    """Return the values without unknown fields, and without hosted ones that our types do not accept.

    What is left out is added to `dropped`, by its type instead of its position: it is logged once.
    """
    kept = []
    for value in values:
        kind = value.get("type") if isinstance(value, dict) else None
        path = f"{name}: {kind}" if isinstance(kind, str) else name
        known_part, problem = _without_unknown_fields(value, adapter, path, dropped)
        if problem is None or not isinstance(kind, str) or kind in _CORE_KINDS:
            kept.append(known_part)
        else:
            dropped.append(f"{path}: {problem}")
    return kept


def _without_unknown_fields(
    value: Any, adapter: TypeAdapter[Any], path: str, dropped: list[str]
) -> tuple[Any, str | None]:
    """Return `value` without the fields that a strict type forbids, and the first remaining problem, if any."""
    problem = None
    value = deepcopy(value)
    for _ in range(_MAX_ROUNDS):
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False, include_context=False)
        else:
            return value, None
        unknown = [detail["loc"] for detail in errors if detail["type"] == "extra_forbidden"]
        others = [detail for detail in errors if detail["type"] != "extra_forbidden"]
        problem = _problem_text(others[0], value) if others else "has unknown fields"
        if not unknown:
            break
        for location in unknown:
            field = (path + _delete_field(value, location)).removeprefix(".")
            dropped.append(f"{field}: unknown field")
    return value, problem


def _problem_text(error: ErrorDetails, value: Any) -> str:
    if error["type"] == "union_tag_invalid" and not error["loc"] and isinstance(value, dict):
        return f"unknown type {value.get('type')!r}"
    return error["msg"]


def _delete_field(value: Any, location: tuple[int | str, ...]) -> str:
    """Delete the field at the location of a validation error from `value`, and return its JSON path.

    Steps of the location that `value` does not have are tags of unions.
    """
    holder: Any = None
    path = ""
    last_step: int | str = ""
    for step in location:
        if isinstance(value, list) and isinstance(step, int):
            path += f"[{step}]"
        elif isinstance(value, dict) and step in value:
            path += f".{step}"
        else:
            continue
        holder, last_step, value = value, step, value[step]
    del holder[last_step]
    return path


class _Options(NeMoGymResponseCreateParamsNonStreaming):
    """A request whose input is not validated."""

    input: Any = ""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
