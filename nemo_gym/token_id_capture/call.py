"""Run one model call with its capture: lineage, token memory, intent, model, record."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from nemo_gym.token_id_capture.context import (
    CaptureContext,
    abandon_call,
    capture_tokens,
    context_for,
    mark_incomplete,
    register_call_intent,
    reset_token_sink,
    resolve_parent,
    set_token_sink,
)
from nemo_gym.token_id_capture.external_capture import commit_external_call, fail_external_call
from nemo_gym.token_id_capture.fingerprint import RequestItems, as_object, request_items
from nemo_gym.token_id_capture.memory import restore_token_fields

_PAYLOAD_FIELDS = {"id", "model", "output", "choices", "content", "role"}

Request = dict[str, Any] | BaseModel


async def run_captured(
    template: CaptureContext, rollout_id: str, body: Request, call_model: Callable[[Request], Awaitable[Any]]
) -> Any:
    """Call the model for a Responses or Chat request, and return its answer after the generation is stored."""
    context = context_for(template, rollout_id)
    token = set_token_sink(context)
    try:
        await _resolve(body)
        request = restore_token_fields(body, context)
        await register_call_intent()
        try:
            answer = await call_model(request)
        except BaseException:
            await asyncio.shield(fail_external_call(context) if context.external_staging else abandon_call())
            raise
        await _capture(context, answer)
        return answer
    finally:
        reset_token_sink(token)


def _payload(answer: BaseModel) -> Mapping[str, Any]:
    """Return an answer as a mapping; the token arrays of a response are not copied."""
    output = getattr(answer, "output", None)
    if not isinstance(output, list):
        return answer.model_dump(include=_PAYLOAD_FIELDS, exclude_unset=True)
    details = getattr(answer, "incomplete_details", None)
    fields = {name: getattr(answer, name, None) for name in ("id", "model")}
    return {**fields, "incomplete_details": details, "output": list(map(as_object, output))}


async def _resolve(body: Request) -> None:
    """Resolve the call that a request continues; a malformed request is left to its validation."""
    try:
        items = request_items(body)
    except (TypeError, ValueError):
        items = RequestItems()
    await resolve_parent(items)


async def _capture(context: CaptureContext, answer: Any) -> None:
    """Store the generation of an answer: a model, a mapping, or an HTTP response with JSON."""
    store = partial(commit_external_call, context) if context.external_staging else capture_tokens
    if isinstance(answer, BaseModel):
        await store(_payload(answer))
        return
    if isinstance(answer, Mapping):
        await store(answer)
        return
    if getattr(answer, "status_code", 200) >= 400:
        await abandon_call()
        return
    try:
        payload = from_json(answer.body)
        if not isinstance(payload, dict):
            raise ValueError("it is not an object")
    except (AttributeError, ValueError) as error:
        await mark_incomplete(context, f"the answer of the model server cannot be read: {error}")
        return
    await store(payload)
