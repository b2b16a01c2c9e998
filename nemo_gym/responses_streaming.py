"""Streaming for the Responses API: the whole answer is made first, then told as events.

Clients that insist on a stream also send more than our request type knows; `sanitise_request` reduces such a request
to what a model can take, and lists what it left out.
"""

from collections.abc import Iterator
from functools import cache
from time import time
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.convert import responses_events, sse
from nemo_gym.convert.streamed_request import flattened_request
from nemo_gym.wire.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.wire.tools import ToolParam
from nemo_gym.wire.unions import NeMoGymResponseInputItem

_MOST_ROUNDS = 8
"""Pruning one level of unknown fields can uncover another; nothing real needs more rounds than this."""


def sanitise_request(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A streaming request as one our strict request type accepts, and what had to be left out of it.

    Wrong values of known fields stay: the validation that follows explains them to the caller.

    Raises:
        ConversionError: the body is not a request at all.
    """
    request, dropped = flattened_request(body)
    known = NeMoGymResponseCreateParamsNonStreaming.model_fields
    dropped += [f"{key}: not a field of a request" for key in request if key not in known]
    request = {key: value for key, value in request.items() if key in known}
    if isinstance(request.get("input"), list):
        request["input"] = _valid("input", request["input"], _item_adapter(), dropped)
    if isinstance(request.get("tools"), list):
        request["tools"] = _valid("tools", request["tools"], _tool_adapter(), dropped)
    options = {key: value for key, value in request.items() if key not in ("input", "tools")}
    pruned, _ = _without_unknown_fields(options, _options_adapter(), "", dropped)
    return request | pruned, dropped


def replay(response: dict[str, Any]) -> Iterator[bytes]:
    """A finished response, told as server-sent events."""
    return sse.encode_typed(responses_events.events_from_response(response))


def replay_failure(
    message: str,
    model: str,
    *,
    response_id: str | None = None,
    created_at: int | None = None,
    code: str = "server_error",
) -> Iterator[bytes]:
    """A failure, told as server-sent events: the stream has begun, so there is no status left to say it with."""
    events = responses_events.events_of_failure(
        message,
        model=model,
        response_id=response_id or f"resp_{uuid4().hex}",
        created_at=int(time()) if created_at is None else created_at,
        code=code,
    )
    return sse.encode_typed(events)


def _valid(name: str, values: list[Any], adapter: TypeAdapter[Any], dropped: list[str]) -> list[Any]:
    """The values that our types accept, each without the fields they do not know."""
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
    """`value` without the fields that a strict type forbids, and what else is wrong with it, if anything."""
    problem = None
    for _ in range(_MOST_ROUNDS):
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False, include_context=False)
        else:
            return value, None
        unknown = [found["loc"] for found in errors if found["type"] == "extra_forbidden"]
        others = [found for found in errors if found["type"] != "extra_forbidden"]
        problem = _told(others[0], value) if others else "has fields we do not know"
        if not unknown:
            break
        for location in unknown:
            path = _path(value, location)
            value = _without(value, path)
            dropped.append(f"{_place(where, path)}: not a field we know")
    return value, problem


def _told(error: ErrorDetails, value: Any) -> str:
    if error["type"] == "union_tag_invalid" and not error["loc"] and isinstance(value, dict):
        return f"unknown type {value.get('type')!r}"
    return error["msg"]


def _place(where: str, path: list[int | str]) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return (where + steps).removeprefix(".")


def _path(value: Any, location: tuple[int | str, ...]) -> list[int | str]:
    """The steps of an error's location that lead somewhere in `value`; the others name branches of unions."""
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
    """A copy of `value` without what lies at the end of `path`."""
    step, rest = path[0], path[1:]
    if not rest:
        return {key: item for key, item in value.items() if key != step}
    shorter: Any = value.copy()
    shorter[step] = _without(value[step], rest)
    return shorter


@cache
def _item_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(NeMoGymResponseInputItem)


@cache
def _tool_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(ToolParam)


class _Options(NeMoGymResponseCreateParamsNonStreaming):
    """A request of which only the options are looked at."""

    input: Any = ""


@cache
def _options_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_Options)
