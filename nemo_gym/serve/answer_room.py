"""Lower the output limit of a request that the endpoint refuses because the answer would not fit into the context.

What vLLM, SGLang and OpenAI write about the lengths differs with the version. Where it does not say how many tokens the
prompt has (newer vLLM stops counting at the limit), `/tokenize` counts them; without that, the limit is quartered until
the endpoint accepts it.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import ClientResponseError

from nemo_gym.errors import ModelFailed
from nemo_gym.serve.chat_engines import is_too_long
from nemo_gym.transport.event_reader import is_after_events

Json = dict[str, Any]
AnswerT = TypeVar("AnswerT")

_CONTEXT = re.compile(
    rb"context length (?:is|of)(?: only)? (\d+)|maximum model length of (\d+)|max_model_len=[a-z_=]*(\d+)"
    rb"|(\d+) > (\d+) - \d+"
)
_PROMPT = re.compile(
    rb"(\d+) (?:in the messages|in your prompt|input tokens|tokens from the input messages)"
    rb"|\(length (\d+)\)|\d+ > \d+ - (\d+)"
)
_ANSWER = re.compile(rb"supports at most (\d+) completion tokens")
_LIMIT_ABOVE_CONTEXT = b"cannot be greater than max_model_len"
_MOST_REFUSALS = 12
"""Refusals of one request, after which the last one is passed on: enough to quarter a limit of four million."""


@dataclass(frozen=True)
class LengthRefusal:
    """What a refusal says about the lengths; None where it says nothing certain."""

    context: int | None
    room: int | None
    """How long the answer may be; 0 or less if the prompt fills the context."""

    @classmethod
    def of(cls, refusal: ClientResponseError, limit: int | None) -> "LengthRefusal | None":
        """Parse the refusal of a request with this output limit; None if it has another reason than the length."""
        content = getattr(refusal, "response_content", b"")
        if refusal.status != 400 or not isinstance(content, bytes):
            return None
        longest = _ANSWER.search(content)
        if longest is not None:
            return cls(None, int(longest[1])) if int(longest[1]) else None
        text = content.lower()
        if not is_too_long(refusal) and _LIMIT_ABOVE_CONTEXT not in text:
            return None
        contexts, prompts = _CONTEXT.search(text), _PROMPT.search(text)
        context = None if contexts is None else _last_number(contexts)
        prompt = None if prompts is None else _last_number(prompts)
        if context is None or prompt is None:
            return cls(context, None)
        is_bound = b"at least" in text or (limit is not None and prompt == context - limit + 1)
        return cls(context, None if is_bound and prompt < context else context - prompt)


def _last_number(match: re.Match[bytes]) -> int:
    return int([group for group in match.groups() if group is not None][-1])


async def complete_in_context(
    payload: Json,
    complete: Callable[[Json], Awaitable[AnswerT]],
    count_prompt: Callable[[], Awaitable[int]] | None = None,
) -> tuple[Json, AnswerT] | None:
    """Complete a request and return it as it was accepted, with the answer; None if the prompt fills the context.

    `count_prompt` asks the endpoint for the number of tokens of the prompt, if it may have a tokenizer.

    Raises:
        ClientResponseError: the endpoint refuses the request for another reason, or every limit, or after events.
    """
    is_counted = False
    for number in range(1, _MOST_REFUSALS + 1):
        try:
            return payload, await complete(payload)
        except ClientResponseError as error:
            if is_after_events(error):
                raise
            limit = limit_of(payload)
            refusal = LengthRefusal.of(error, limit)
            if refusal is None or (number == _MOST_REFUSALS and limit != 1):
                raise
        room = refusal.room
        if room is None and limit is None:
            return None  # the engine computes the length itself, so the prompt alone is too long
        if room is None and refusal.context is not None and not is_counted and count_prompt is not None:
            is_counted = True
            prompt = await _count_if_possible(count_prompt)
            room = None if prompt is None else refusal.context - prompt
        if limit is not None and (room is None or room >= limit):
            room = limit // 4 or int(limit > 1)
        if room is None or room <= 0:
            return None
        payload = with_limit(payload, room)
    return None


def limit_of(payload: Json) -> int | None:
    """Return the output limit of a chat request."""
    limits = [payload.get(name) for name in ("max_completion_tokens", "max_tokens")]
    return next((limit for limit in limits if type(limit) is int), None)


def with_limit(request: Json, limit: int) -> Json:
    """Return a request for an answer of at most `limit` tokens."""
    names = [name for name in ("max_completion_tokens", "max_tokens") if request.get(name) is not None]
    return {**request, **dict.fromkeys(names or ["max_tokens"], limit)}


async def _count_if_possible(count_prompt: Callable[[], Awaitable[int]]) -> int | None:
    """Return the number of tokens of the prompt, or None if the endpoint has no `/tokenize`."""
    try:
        return await count_prompt()
    except (ClientResponseError, ModelFailed):
        return None
