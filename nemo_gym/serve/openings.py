"""Endpoints of a resources server with openings, tools or a `close` hook: wrappers for `/seed_session` and `/verify`.

Servers without these have the plain endpoints, so their rollouts cost nothing more.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request
from pydantic import BaseModel

from nemo_gym.keys import EPISODE_HEADER, OPENING_KEY, SESSION_ID_KEY
from nemo_gym.serve.call_handler import WholeResponse
from nemo_gym.serve.endpoints import Handler, async_handler, json_bytes, resolved_signature
from nemo_gym.serve.session_closing import SessionCloser
from nemo_gym.wire.episode import Opening, Signals
from nemo_gym.wire.run_seed_verify import BaseSeedSessionResponse

REQUEST_NAME = "gym_request"
"""Parameter that receives the request if the wrapped handler has none."""


def with_opening(seed: Handler, tools: list[dict[str, Any]], closer: SessionCloser | None) -> Handler:
    """Wrap `seed_session`: put its opening, by default with `tools`, into the answer; register the session."""
    if closer is not None:
        return _taking_session(seed, functools.partial(_seed_closable, tools=tools, closer=closer))
    call = async_handler(seed)
    usual = json_bytes({OPENING_KEY: {"messages": [], "tools": tools}}) if tools else None

    @functools.wraps(seed)
    async def seed_and_open(*args: Any, **kwargs: Any) -> Any:
        answer = await call(*args, **kwargs)
        if usual is not None and type(answer) is BaseSeedSessionResponse:
            return _signalling(usual, Signals(opening=True))
        return seed_reply(answer, tools, closes=False)

    seed_and_open.__signature__ = resolved_signature(seed)  # type: ignore[attr-defined]
    return seed_and_open


def closing_after(verify: Handler, closer: SessionCloser) -> Handler:
    """Wrap a verify endpoint: the session is closed in the background after it, whatever it returns or raises."""

    async def verify_and_close(call: Callable[[], Awaitable[Any]], session_id: str) -> Any:
        closer.touch(session_id)
        try:
            return await call()
        finally:
            closer.close_later(session_id)

    return _taking_session(verify, verify_and_close)


async def _seed_closable(
    call: Callable[[], Awaitable[Any]], session_id: str, *, tools: list[dict[str, Any]], closer: SessionCloser
) -> Any:
    """Open the session, seed it and return the answer; a failed seed closes the session."""
    await closer.open(session_id)
    try:
        return seed_reply(await call(), tools, closes=True)
    except BaseException:  # also a cancellation
        closer.close_later(session_id)
        raise


def seed_reply(answer: Any, tools: list[dict[str, Any]], *, closes: bool) -> Any:
    """Return the answer of `seed_session` with its opening; unchanged if it has none and the session needs no close."""
    opening = answer if isinstance(answer, Opening) else Opening()
    tools = tools if opening.tools is None else opening.tools  # type: ignore[assignment]
    has_opening = bool(tools or opening.messages)
    if not has_opening and not closes and answer is not opening:
        return answer
    if isinstance(answer, BaseModel):
        fields = answer.model_dump(mode="json", exclude={"messages", "tools"} if answer is opening else None)
    elif answer is None or isinstance(answer, Mapping):
        fields = dict(answer or {})
    else:
        return answer  # a response that the server built
    if has_opening:
        messages = [message.model_dump(mode="json", exclude_unset=True) for message in opening.messages]
        fields[OPENING_KEY] = {"messages": messages, "tools": tools}
    return _signalling(json_bytes(fields), Signals(opening=has_opening, close=closes))


def _signalling(body: bytes, signals: Signals) -> WholeResponse:
    headers = {EPISODE_HEADER: signals.header_value()}
    return WholeResponse(body, media_type="application/json", headers=headers)


def _taking_session(handler: Handler, around: Callable[[Callable[[], Awaitable[Any]], str], Awaitable[Any]]) -> Handler:
    """Wrap a handler: `around` gets a function that calls it, and the session id. Arguments are passed by name."""
    call, signature = async_handler(handler), resolved_signature(handler)
    parameters = {name: item.replace(kind=item.KEYWORD_ONLY) for name, item in signature.parameters.items()}
    own_names = [name for name, item in parameters.items() if item.annotation is Request]
    name = own_names[0] if own_names else REQUEST_NAME
    parameters.setdefault(name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Request))

    @functools.wraps(handler)
    async def handle_in_session(**arguments: Any) -> Any:
        request: Request = arguments[name] if own_names else arguments.pop(name)
        return await around(functools.partial(call, **arguments), request.session[SESSION_ID_KEY])

    handle_in_session.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    return handle_in_session
