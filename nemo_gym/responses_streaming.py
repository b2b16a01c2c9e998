"""Streaming for the Responses API: a finished response, sent as events.

Clients that require a stream, such as coding agents, send requests that our request type does not accept.
`sanitise_request` rewrites tools in a namespace, tools inside the input and leading system messages, drops fields that
our request type does not have, and lists what it drops.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from time import time
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.convert import sse, streams
from nemo_gym.convert.chat_conversation import leading_system_texts
from nemo_gym.convert.json_access import Json, expect_dict, expect_list, expect_text, new_id, optional_list_at, text_at
from nemo_gym.wire.responses import NeMoGymResponseCreateParamsNonStreaming, NeMoGymResponseInputItem
from nemo_gym.wire.responses_options import ToolParam

_NAMESPACE_SEPARATOR = "__"

_MAX_ROUNDS = 8
"""Removing unknown fields of one level can uncover another; no real request needs more rounds."""


def sanitise_request(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a streaming request in the form of our strict request type, and a list of what was dropped.

    Wrong values of known fields stay: the validation that follows explains them.

    Raises:
        ConversionError: the body is not a request at all.
    """
    request, dropped = flatten_request(body)
    fields = NeMoGymResponseCreateParamsNonStreaming.model_fields
    dropped += [f"{key}: not a field of a request" for key in request if key not in fields]
    request = {key: value for key, value in request.items() if key in fields}
    if isinstance(request.get("input"), list):
        request["input"] = _valid_values("input", request["input"], _adapter(NeMoGymResponseInputItem), dropped)
    if isinstance(request.get("tools"), list):
        request["tools"] = _valid_values("tools", request["tools"], _adapter(ToolParam), dropped)
    options = {key: value for key, value in request.items() if key not in ("input", "tools")}
    known_options, _ = _without_unknown_fields(options, _adapter(_Options), "", dropped)
    return request | known_options, dropped


def replay(response: dict[str, Any]) -> Iterator[bytes]:
    """Encode a finished response as server-sent events."""
    return sse.encode_typed(streams.events_from_response(response))


def replay_failure(message: str, model: str) -> Iterator[bytes]:
    """Encode a failure as server-sent events, for a stream that has already sent its status."""
    events = streams.events_of_failure(message, model=model, response_id=new_id("resp"), created_at=int(time()))
    return sse.encode_typed(events)


def flatten_request(body: Any) -> tuple[Json, list[str]]:
    """Return the rewritten request, and descriptions of the dropped elements.

    The result has no `stream`, a flat list of tools, and the leading system messages as `instructions`.

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
                items.append(_flatten_call(item))
        system_texts, request["input"] = leading_system_texts(items)
        if system_texts:
            instructions = [expect_text(request["instructions"], "instructions")] if request.get("instructions") else []
            request["instructions"] = "\n\n".join([*instructions, *system_texts])
    if tools or "tools" in request:
        request["tools"] = _flatten_tools(tools, dropped)
    return request, dropped


def _flatten_call(item: Any) -> Any:
    """Return a function call with the flat name of its tool; other items are returned unchanged."""
    if not isinstance(item, dict) or item.get("type") != "function_call" or "namespace" not in item:
        return item
    call = {key: value for key, value in item.items() if key != "namespace"}
    if item["namespace"]:
        namespace = expect_text(item["namespace"], "function_call.namespace")
        call["name"] = f"{namespace}{_NAMESPACE_SEPARATOR}{text_at(item, 'name', 'function_call')}"
    return call


def _flatten_tools(tools: list[Any], dropped: list[str]) -> list[Any]:
    """Replace each namespace by its tools, whose names get the namespace as prefix; add what is lost to `dropped`."""
    flat: list[Any] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            flat.append(tool)
            continue
        path = f"tools[{index}]"
        namespace = text_at(tool, "name", path)
        for position, inner in enumerate(expect_list(tool.get("tools"), f"{path}.tools")):
            if isinstance(inner, dict) and isinstance(inner.get("name"), str):
                flat.append({**inner, "name": f"{namespace}{_NAMESPACE_SEPARATOR}{inner['name']}"})
            else:
                dropped.append(f"{path}.tools[{position}]: has no name")
        if tool.get("description"):
            dropped.append(f"{path}.description: a flat list of tools cannot have one")
    return flat


def _valid_values(name: str, values: list[Any], adapter: TypeAdapter[Any], dropped: list[str]) -> list[Any]:
    """Return the values that our types accept, without unknown fields; add the others and the fields to `dropped`."""
    kept = []
    for index, value in enumerate(values):
        path = f"{name}[{index}]"
        known_part, problem = _without_unknown_fields(value, adapter, path, dropped)
        if problem is None:
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
