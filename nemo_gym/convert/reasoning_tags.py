"""Read and write inline reasoning: `<think>…</think>` in the text of an assistant message."""

import re
from collections.abc import Callable, Iterable

THINK_TAG_PATTERN = re.compile(r"<think>(.*?)</think>", re.DOTALL)

SplitThoughts = Callable[[str], tuple[list[str], str]]
"""Splits the text of a message into its thoughts and the text without them."""


def wrap_in_think_tags(texts: Iterable[str]) -> str:
    return "".join(f"<think>{text}</think>" for text in texts)


def parse_think_tags(content: str) -> tuple[list[str], str]:
    """Return the thoughts in `content`, in order, and the text without them."""
    if "<think>" not in content:  # the common case; the pattern would scan every character
        return [], content
    return THINK_TAG_PATTERN.findall(content), THINK_TAG_PATTERN.sub("", content)


def no_thoughts(content: str) -> tuple[list[str], str]:
    """Return no thoughts and the unchanged text, for models without inline reasoning."""
    return [], content


def outside_think_tags(content: str, tokens: list[str]) -> list[int]:
    """Return the indices of the `tokens` outside the thoughts; all indices if the tokens do not join to `content`."""
    spans = [match.span() for match in THINK_TAG_PATTERN.finditer(content)]
    if not spans or "".join(tokens) != content:
        return list(range(len(tokens)))
    outside, start, span = [], 0, 0
    for index, token in enumerate(tokens):
        while span < len(spans) and start >= spans[span][1]:
            span += 1
        if span == len(spans) or start + len(token) <= spans[span][0]:
            outside.append(index)
        start += len(token)
    return outside
