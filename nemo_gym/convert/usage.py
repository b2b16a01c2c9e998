"""Convert token counts: Chat → Responses, Responses ↔ Messages. A detail that is not reported is None, not zero."""

from typing import Any

from nemo_gym.convert.json_access import Json, expect_count, expect_dict


def usage_from_chat(usage: Any) -> Json | None:
    """Convert the usage of a Chat completion to that of a Responses reply."""
    if usage is None:
        return None
    usage = expect_dict(usage, "usage")
    return responses_usage(
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        total=_optional_count(usage, "total_tokens"),
        cached=usage_detail(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning=usage_detail(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def usage_from_message(usage: Any) -> Json | None:
    """Convert Messages usage to Responses; Messages counts tokens read from or written to the cache separately."""
    if usage is None:
        return None
    usage = expect_dict(usage, "usage")
    cached = _optional_count(usage, "cache_read_input_tokens")
    written_to_cache = _optional_count(usage, "cache_creation_input_tokens") or 0
    uncached = _count(usage, "input_tokens")
    return responses_usage(uncached + written_to_cache + (cached or 0), _count(usage, "output_tokens"), cached=cached)


def usage_to_message(usage: Any) -> Json:
    """Convert Responses usage to Messages, where counts are required."""
    usage = {} if usage is None else expect_dict(usage, "usage")
    cached = usage_detail(usage, "input_tokens_details", "cached_tokens")
    total = _optional_count(usage, "input_tokens") or 0
    counts = {"input_tokens": total - (cached or 0), "output_tokens": _optional_count(usage, "output_tokens") or 0}
    return counts | {"cache_read_input_tokens": cached} if cached else counts


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


def _count(usage: Json, name: str) -> int:
    return expect_count(usage.get(name), f"usage.{name}")


def _optional_count(usage: Json, name: str) -> int | None:
    value = usage.get(name)
    return None if value is None else expect_count(value, f"usage.{name}")
