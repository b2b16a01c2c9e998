"""Match regular expressions that come from data, with bounded work.

A model writes the text, and a harmless-looking expression can take longer than the age of the universe on it: Python's
`re` cannot be interrupted, so one answer would stop a whole process. The package `regex` has a time limit.
"""

import re
from functools import lru_cache
from math import prod
from typing import Any

MAX_SECONDS = 0.5
"""Processor time for all matches of one expression in one text."""
MAX_LENGTH = 5_000
MAX_REPEATS = 10_000
"""Maximum product of the counts (`{5}`, `{2,10}`) of an expression, which the package unrolls."""

_COUNT = re.compile(r"\{(\d{1,20})(?:,(\d{0,20}))?\}")


class UnusablePattern(ValueError):
    """A text is not a regular expression, or one that is too large to be matched."""


class PatternTooSlow(TimeoutError):
    """A match was not decided within `MAX_SECONDS`."""


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Any:
    """Return the compiled expression.

    Raises:
        UnusablePattern: it cannot be compiled, or is too large.
    """
    import regex

    counts = [max(int(low), int(high or 0)) for low, high in _COUNT.findall(pattern)]
    if len(pattern) > MAX_LENGTH or prod(count for count in counts if count) > MAX_REPEATS:
        raise UnusablePattern(f"{pattern[:100]!r} is too large for a regular expression")
    try:
        re.compile(pattern)  # what `regex` adds to the language is not accepted
        return regex.compile(pattern, regex.VERSION0)
    except (re.error, regex.error, OverflowError, RecursionError) as problem:
        raise UnusablePattern(f"{pattern[:100]!r} is not a regular expression: {problem}") from None


def last_match(pattern: str, text: str) -> Any:
    """Return the last match of an expression in a text; None without one.

    Raises:
        UnusablePattern: the expression cannot be used.
        PatternTooSlow: the matches were not found in time.
    """
    last = None
    try:
        for match in compile_pattern(pattern).finditer(text, timeout=MAX_SECONDS):
            last = match
    except TimeoutError:
        raise PatternTooSlow(f"{pattern[:100]!r} takes longer than {MAX_SECONDS:g} s on this text") from None
    return last


def has_match(pattern: str, text: str, seconds: float = MAX_SECONDS) -> bool:
    """Return whether an expression matches somewhere in a text; raises the errors of `last_match`."""
    try:
        return compile_pattern(pattern).search(text, timeout=seconds) is not None
    except TimeoutError:
        raise PatternTooSlow(f"{pattern[:100]!r} takes longer than {seconds:g} s on this text") from None
