"""Whether a text is near enough to what somebody typed."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

NEAR = 0.7
_BETWEEN_TOKENS = re.compile(r"[\s_\-/]+")


def matches(query: str, fields: Iterable[str]) -> bool:
    """Whether any field contains the query, or it or one of its words is spelt almost like it."""
    wanted = query.lower()
    return any(_near(wanted, text.lower()) for text in fields if text)


def _near(wanted: str, text: str) -> bool:
    if wanted in text:
        return True
    return any(_ratio(wanted, candidate) for candidate in (text, *_BETWEEN_TOKENS.split(text)) if candidate)


def _ratio(wanted: str, candidate: str) -> bool:
    matcher = SequenceMatcher(None, wanted, candidate)
    # The two quick bounds spare the real comparison for almost every word.
    return matcher.real_quick_ratio() >= NEAR and matcher.quick_ratio() >= NEAR and matcher.ratio() >= NEAR
