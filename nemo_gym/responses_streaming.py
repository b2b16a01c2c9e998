"""Streaming for the Responses API: a finished response, sent as events.

Clients that require a stream also send fields that our request type does not have; `sanitise_request` drops and lists
them.
"""

from collections.abc import Iterator
from functools import cache
from time import time
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.convert import sse, streams
from nemo_gym.convert.streaming_request import flatten_request
from nemo_gym.convert.wire_objects import new_id
from nemo_gym.wire.responses import NeMoGymResponseCreateParamsNonStreaming, NeMoGymResponseInputItem
from nemo_gym.wire.responses_options import ToolParam

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
    pruned, _ = _without_unknown_fields(options, _adapter(_Options), "", dropped)
    return request | pruned, dropped


def replay(response: dict[str, Any]) -> Iterator[bytes]:
    """Encode a finished response as server-sent events."""
    return sse.encode_typed(streams.events_from_response(response))


def replay_failure(message: str, model: str) -> Iterator[bytes]:
    """Encode a failure as server-sent events, for a stream that has already sent its status."""
    events = streams.events_of_failure(message, model=model, response_id=new_id("resp"), created_at=int(time()))
    return sse.encode_typed(events)


def _valid_values(name: str, values: list[Any], adapter: TypeAdapter[Any], dropped: list[str]) -> list[Any]:
    """Return the values that our types accept, without unknown fields."""
    kept = []
    for index, value in enumerate(values):
        where = f"{name}[{index}]"
        pruned, problem = _without_unknown_fields(value, adapter, where, dropped)
        if problem is None:
            kept.append(pruned)
        else:
            dropped.append(f"{where}: {problem}")
    return kept


def _without_unknown_fields(
    value: Any, adapter: TypeAdapter[Any], where: str, dropped: list[str]
) -> tuple[Any, str | None]:
    """Return `value` without the fields that a strict type forbids, and its other problem, if any."""
    problem = None
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
            path = _path(value, location)
            value = _without(value, path)
            dropped.append(f"{_location(where, path)}: unknown field")
    return value, problem


def _problem_text(error: ErrorDetails, value: Any) -> str:
    if error["type"] == "union_tag_invalid" and not error["loc"] and isinstance(value, dict):
        return f"unknown type {value.get('type')!r}"
    return error["msg"]


def _location(where: str, path: list[int | str]) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return (where + steps).removeprefix(".")


def _path(value: Any, location: tuple[int | str, ...]) -> list[int | str]:
    """Return the steps of an error's location that exist in `value`; the others are tags of unions."""
    path: list[int | str] = []
    for step in location:
        if _holds(value, step):
            value = value[step]
            path.append(step)
    return path


def _holds(value: Any, step: int | str) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, dict) and step in value


def _without(value: Any, path: list[int | str]) -> Any:
    """Return a copy of `value` without the field at `path`."""
    step, rest = path[0], path[1:]
    if not rest:
        return {key: item for key, item in value.items() if key != step}
    shorter: Any = value.copy()
    shorter[step] = _without(value[step], rest)
    return shorter


class _Options(NeMoGymResponseCreateParamsNonStreaming):
    """A request whose input is not validated."""

    input: Any = ""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
