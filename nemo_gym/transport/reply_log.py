"""The model replies of a rollout, kept while it runs so that a failed or cancelled rollout returns what was generated.

`ServerClient` adds the reply of every model call if the current context has a log. Agents have one for every rollout
of a collector. An exception carries the response to the error answer (`attach_response`, `error_body`).
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import orjson
from pydantic import BaseModel

from nemo_gym.keys import NG_TURNS_KEY, RESPONSE_KEY_NAME
from nemo_gym.transport.client_response import get_response_json

ERROR_TEXT_KEY = "_ng_error"
BODY_WITH_RESPONSE = f'{{"{ERROR_TEXT_KEY}":'.encode("ascii")
"""First bytes of the body of an error answer that contains a response."""
_RESPONSE_ATTRIBUTE = "nemo_gym_response"
READ_SECONDS = 0.25
"""Time for reading a reply whose body had not arrived when the rollout was cancelled."""


ReplyLog = list[Any]
"""The last request to a model, which repeats the tool outputs, and the replies of all model calls of one rollout."""


async def prefix_response(log: ReplyLog, *, with_turns: bool = False) -> dict[str, Any] | None:
    """Return the replies as one Responses object: all items, with the tool outputs the model has seen.

    With `with_turns`, it has the items and tokens of each turn under NG_TURNS_KEY, which is no field of a response.
    None if no model call was answered. Replies of other dialects, failed replies and unreadable ones are left out.
    """
    last_request, *replies = log
    responses = [response for reply in replies if (response := await _read_response(reply)) is not None]
    if not responses:
        return None
    tool_outputs = _tool_outputs(last_request)
    items: list[Any] = []
    for response in responses:
        items += response["output"]
        call_ids = [item.get("call_id") for item in response["output"] if item.get("type") == "function_call"]
        items += [tool_outputs[call_id] for call_id in call_ids if call_id in tool_outputs]
    turns = {NG_TURNS_KEY: [_turn_counts(response) for response in responses]} if with_turns else {}
    usage = _summed_usage(response.get("usage") for response in responses)
    return {**responses[-1], "output": items, "usage": usage, **turns}


def attach_response(error: Exception, response: dict[str, Any] | None) -> None:
    """Attach what was generated to the exception that ended the rollout, for `error_body`."""
    if response is not None:
        with suppress(AttributeError):  # an exception class with __slots__
            setattr(error, _RESPONSE_ATTRIBUTE, response)


def error_body(error: BaseException, text: str) -> Any:
    """Return the JSON value of an error answer: the text, with what was generated if the exception carries it."""
    response = getattr(error, _RESPONSE_ATTRIBUTE, None)
    return text if response is None else {ERROR_TEXT_KEY: text, RESPONSE_KEY_NAME: response}


def split_error_body(body: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return the text of an error answer and the response in it, if it has one."""
    if isinstance(body, dict) and body.keys() == {ERROR_TEXT_KEY, RESPONSE_KEY_NAME}:
        return body[ERROR_TEXT_KEY], body[RESPONSE_KEY_NAME]
    return body, None


def parse_error_body(content: bytes) -> tuple[Any, dict[str, Any] | None]:
    """Return the text of an error answer and the response in it; a body that was cut has only its text.

    Raises:
        ValueError: the body is not JSON.
    """
    try:
        return split_error_body(orjson.loads(content))
    except orjson.JSONDecodeError:
        if not content.startswith(BODY_WITH_RESPONSE):
            raise
    return json.JSONDecoder().raw_decode(content.decode("utf-8", "replace"), len(BODY_WITH_RESPONSE))[0], None


async def _read_response(reply: Any) -> dict[str, Any] | None:
    """Return the body of a reply; None if it is not a complete Responses object."""
    if getattr(reply, "status", 500) >= 400:
        return None
    with suppress(Exception):  # a reply that cannot be read adds nothing to the prefix
        async with asyncio.timeout(READ_SECONDS):
            body = await get_response_json(reply)
        if isinstance(body, dict) and isinstance(body.get("output"), list):
            return body
    return None


def _tool_outputs(request: Any) -> dict[str, Any]:
    """Return the tool outputs in the input of a model request, by call id."""
    body = request.model_dump(mode="json", exclude_unset=True) if isinstance(request, BaseModel) else request
    items = body.get("input") if isinstance(body, Mapping) else None
    outputs = [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
    return {str(item.get("call_id")): dict(item) for item in outputs if item.get("type") == "function_call_output"}


def _turn_counts(response: Mapping[str, Any]) -> list[int]:
    """Return the number of items of a reply, then its input, cached, output and reasoning tokens, if reported."""
    items, usage = len(response["output"]), response.get("usage")
    return [items, *_token_counts(usage)] if isinstance(usage, Mapping) else [items]


def _token_counts(usage: Mapping[str, Any]) -> list[int]:
    read, written = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    counts = (
        usage.get("input_tokens"),
        read.get("cached_tokens") if isinstance(read, Mapping) else None,
        usage.get("output_tokens"),
        written.get("reasoning_tokens") if isinstance(written, Mapping) else None,
    )
    return [count if isinstance(count, int) else 0 for count in counts]


def _summed_usage(usages: Iterable[Any]) -> dict[str, Any] | None:
    """Return the sums of the counts of all calls; None if no call reports any."""
    reported = [usage for usage in usages if isinstance(usage, Mapping)]
    if not reported:
        return None
    names = ("input_tokens", "output_tokens", "total_tokens")
    sums: dict[str, Any] = {name: sum(usage.get(name) or 0 for usage in reported) for name in names}
    _, cached, _, reasoning = map(sum, zip(*map(_token_counts, reported), strict=True))
    if cached:
        sums["input_tokens_details"] = {"cached_tokens": cached}
    return sums | ({"output_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {})


_log: ContextVar[ReplyLog | None] = ContextVar("nemo_gym_reply_log", default=None)

set_log = _log.set
"""Set the log of the current rollout, at first `[None]`: `ServerClient` adds its model calls to it."""
current_log = _log.get
"""Return the log of the current rollout; None without one."""
