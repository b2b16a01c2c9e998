"""Convert token counts: Chat → Responses, Responses ↔ Messages. A detail that is not reported is None."""

from typing import Any, TypeVar

from nemo_gym.convert.json_access import Json, expect_count, expect_dict
from nemo_gym.wire.chat_completions import (
    CompletionTokensDetails,
    CompletionUsage,
    NeMoGymChatCompletion,
    PromptTokensDetails,
)
from nemo_gym.wire.responses import NeMoGymResponse
from nemo_gym.wire.token_usage import NeMoGymResponseUsage

Answer = TypeVar("Answer", bound=NeMoGymResponse | NeMoGymChatCompletion)


def usage_from_chat(usage: Any) -> Json | None:
    """Convert the usage of a Chat completion to that of a Responses reply."""
    if usage is None:
        return None
    usage = expect_dict(usage, "usage")
    return responses_usage(
        _optional_count(usage, "prompt_tokens") or 0,
        _optional_count(usage, "completion_tokens") or 0,
        total=_optional_count(usage, "total_tokens"),
        cached=usage_detail(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning=usage_detail(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def usage_from_message(usage: Any) -> Json:
    """Convert Messages usage to Responses; Messages counts tokens read from or written to the cache separately."""
    usage = {} if usage is None else expect_dict(usage, "usage")
    cached = _optional_count(usage, "cache_read_input_tokens")
    written_to_cache = _optional_count(usage, "cache_creation_input_tokens") or 0
    uncached = _optional_count(usage, "input_tokens") or 0
    written = _optional_count(usage, "output_tokens") or 0
    return responses_usage(uncached + written_to_cache + (cached or 0), written, cached=cached)


def usage_to_message(usage: Any) -> Json:
    """Convert Responses usage to Messages, where counts are required."""
    usage = {} if usage is None else expect_dict(usage, "usage")
    cached = usage_detail(usage, "input_tokens_details", "cached_tokens")
    total = _optional_count(usage, "input_tokens") or 0
    return {
        "input_tokens": max(total - (cached or 0), 0),
        "output_tokens": _optional_count(usage, "output_tokens") or 0,
        "cache_read_input_tokens": cached or 0,
        "cache_creation_input_tokens": 0,
    }


def responses_usage(
    input_tokens: int,
    output_tokens: int,
    *,
    total: int | None = None,
    cached: int | None = None,
    reasoning: int | None = None,
) -> Json:
    """Build the usage of a Responses reply; the total defaults to the sum."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_tokens + output_tokens if total is None else total,
    }


def usage_detail(usage: Json, group: str, name: str) -> int | None:
    """Return a count in a group of details, or None if it is not reported."""
    details = usage.get(group)
    if details is None:
        return None
    return _optional_count(expect_dict(details, f"usage.{group}"), name)


def _optional_count(usage: Json, name: str) -> int | None:
    value = usage.get(name)
    return None if value is None else expect_count(value, f"usage.{name}")


_NO_TOKENS = responses_usage(0, 0, cached=0, reasoning=0)
_CHAT_DETAILS = {
    "prompt_tokens_details": PromptTokensDetails,
    "completion_tokens_details": CompletionTokensDetails,
}


def with_numeric_usage(answer: Answer) -> Answer:
    """Return a response or completion whose token counts are numbers, 0 where the endpoint reports none."""
    usage: Any = answer.usage
    if isinstance(answer, NeMoGymResponse):
        details = usage and (usage.input_tokens_details, usage.output_tokens_details)
        is_complete = details and all(details) and details[0].cached_tokens is not None
        if is_complete and details[1].reasoning_tokens is not None:
            return answer
        counts = NeMoGymResponseUsage.model_validate(_NO_TOKENS if usage is None else _counts(usage))
        return answer.model_copy(update={"usage": counts})
    if usage is not None:
        numbers = _chat_usage(usage)
        return answer if numbers is usage else answer.model_copy(update={"usage": numbers})
    no_tokens = CompletionUsage(prompt_tokens=0, completion_tokens=0, total_tokens=0)
    return answer.model_copy(update={"usage": _chat_usage(no_tokens)})


def _chat_usage(usage: CompletionUsage) -> CompletionUsage:
    """Return token counts of a completion with all details as numbers."""
    changes = {}
    for name, details in _CHAT_DETAILS.items():
        group = getattr(usage, name) or details()
        nulls = [key for key, value in group.__dict__.items() if value is None]
        if nulls:
            changes[name] = group.model_copy(update=dict.fromkeys(nulls, 0))
    return usage.model_copy(update=changes) if changes else usage


def _counts(usage: NeMoGymResponseUsage) -> Json:
    """Return the token counts of a response with numbers for all details, and its other fields."""
    cached = usage.input_tokens_details.cached_tokens if usage.input_tokens_details else None
    reasoning = usage.output_tokens_details.reasoning_tokens if usage.output_tokens_details else None
    counts = responses_usage(
        usage.input_tokens,
        usage.output_tokens,
        total=usage.total_tokens,
        cached=cached or 0,
        reasoning=reasoning or 0,
    )
    return {**usage.model_dump(), **counts}
