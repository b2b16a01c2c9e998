"""Token counts, Responses ↔ Chat ↔ Messages. A detail nobody reported stays unknown (None), never zero."""

from typing import Any

from nemo_gym.convert.shapes import Json, as_count, as_dict


def usage_from_chat(usage: Any) -> Json | None:
    """Chat usage in Responses form."""
    if usage is None:
        return None
    usage = as_dict(usage, "usage")
    return responses_usage(
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        total=_detail(usage, "total_tokens"),
        cached=usage_detail(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning=usage_detail(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def usage_to_chat(usage: Any) -> Json | None:
    """Responses usage in Chat form."""
    if usage is None:
        return None
    usage = as_dict(usage, "usage")
    prompt, completion = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    total = _detail(usage, "total_tokens")
    chat: Json = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion if total is None else total,
    }
    cached = usage_detail(usage, "input_tokens_details", "cached_tokens")
    reasoning = usage_detail(usage, "output_tokens_details", "reasoning_tokens")
    if cached is not None:
        chat["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        chat["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return chat


def usage_from_message(usage: Any) -> Json | None:
    """Messages usage in Responses form: there, tokens read from or written to the cache are counted apart."""
    if usage is None:
        return None
    usage = as_dict(usage, "usage")
    cached = _detail(usage, "cache_read_input_tokens")
    written = _detail(usage, "cache_creation_input_tokens") or 0
    fresh = _count(usage, "input_tokens")
    return responses_usage(fresh + written + (cached or 0), _count(usage, "output_tokens"), cached=cached)


def usage_to_message(usage: Any) -> Json:
    """Responses usage in Messages form; a message always has counts."""
    usage = {} if usage is None else as_dict(usage, "usage")
    cached = usage_detail(usage, "input_tokens_details", "cached_tokens")
    total = _detail(usage, "input_tokens") or 0
    counts = {"input_tokens": total - (cached or 0), "output_tokens": _detail(usage, "output_tokens") or 0}
    return counts | {"cache_read_input_tokens": cached} if cached else counts


def responses_usage(
    given: int, made: int, *, total: int | None = None, cached: int | None = None, reasoning: int | None = None
) -> Json:
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + made if total is None else total,
    }


def usage_detail(usage: Json, group: str, name: str) -> int | None:
    """A count inside one of usage's detail groups, or None when it is unknown."""
    details = usage.get(group)
    if details is None:
        return None
    return _detail(as_dict(details, f"usage.{group}"), name)


def _count(usage: Json, name: str) -> int:
    return as_count(usage.get(name), f"usage.{name}")


def _detail(usage: Json, name: str) -> int | None:
    value = usage.get(name)
    return None if value is None else as_count(value, f"usage.{name}")
