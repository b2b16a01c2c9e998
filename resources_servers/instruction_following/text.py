"""Split a reply into sentences, words and paragraphs, in the same way for every checker."""

import re
from typing import Literal

Relation = Literal["less than", "at least"]

_NEVER_LAST = re.compile(
    r"mrs?|ms|dr|prof|st|vs|fig|eq|e\.g|i\.e|cf|gen|col|sgt|capt|lt|rev|hon|gov|sen|rep|mt", re.IGNORECASE
)
"""Abbreviations that never end a sentence."""
_MAY_BE_LAST = re.compile(
    r"sr|jr|etc|no|vol|figs|eqs|ch|sec|pp|eds?|dept|inc|ltd|co|corp|approx|est|ca|al|ft|min|max|[ap]\.m|u\.[skn]|e\.u|"
    r"ph\.d|[mb]\.[ad]|d\.c|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun",
    re.IGNORECASE,
)

_END = re.compile(r"[.!?…]+[\"'”’»)\]*_]*(?=\s|$)|[。！？｡।۔؟]+[」』”’）]*")
_LAST_WORD = re.compile(r"[^\s\"'“‘«(\[*_]+$")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_MARKER = re.compile(r"(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})")
_WORD = re.compile(r"\w+")
_LONG_WORD = re.compile(r"[^\W_]+(?:[-'’./&][^\W_]+)*")


def satisfies_relation(count: int, relation: Relation, bound: int) -> bool:
    """Return whether `count` is `less than` or `at least` `bound`."""
    return count < bound if relation == "less than" else count >= bound


def words(text: str) -> list[str]:
    """Return runs of letters, digits and underscores, as IFEval counts them: `don't` has two."""
    return _WORD.findall(text)


def whole_words(text: str) -> list[str]:
    """Return words as people see them: `don't`, `well-known` and `U.S` are one word."""
    return _LONG_WORD.findall(text)


def sentences(text: str) -> list[str]:
    """Return the sentences of `text`, each with its final mark; text after the last mark is one more sentence.

    A full stop after an abbreviation, an initial or the number of a list item does not end a sentence. Neither does a
    line break: a heading belongs to the sentence after it.
    """
    parts, start = [], 0
    content = _LETTER_OR_DIGIT.search(text)
    for mark in _END.finditer(text):
        if content is None or mark.start() <= content.start() or _continues_after(text, start, mark):
            continue
        parts.append(text[start : mark.end()].strip())
        start = mark.end()
        content = _LETTER_OR_DIGIT.search(text, start)
    return parts if content is None else [*parts, text[start:].strip()]


def _continues_after(text: str, start: int, mark: re.Match[str]) -> bool:
    """Return whether the sentence that begins at `start` continues after `mark`."""
    rest = text[mark.end() : mark.end() + 40].lstrip()
    sign = mark.group()
    if sign.startswith("."):
        return rest != "" and _is_abbreviation_dot(text, start, mark, rest)
    # «"Really?" he asked.» is one sentence.
    return len(sign) > 1 and sign[-1] in "\"'”’»" and rest[:1].islower()


def _is_abbreviation_dot(text: str, start: int, mark: re.Match[str], rest: str) -> bool:
    last = _LAST_WORD.search(text, max(start, mark.start() - 40), mark.start())
    word = last.group() if last else ""
    if _NEVER_LAST.fullmatch(word):
        return True
    if mark.group().startswith("..") or _MAY_BE_LAST.fullmatch(word):
        return rest[:1].islower() or rest[:1].isdigit()
    line = text[max(start, mark.start() - 40) : mark.start() - len(word)].rpartition("\n")[2]
    if _MARKER.fullmatch(word) and not line.strip(" \t*_#>-"):
        return True
    return len(word) == 1 and word.isupper() and word != "I"  # an initial


def split_parts(text: str, divider: str) -> list[str] | None:
    """Return the parts of `text` between dividers; None if an inner part is empty. Empty ends do not count."""
    parts = [part.strip() for part in text.split(divider)]
    inner = parts[not parts[0] : len(parts) - (not parts[-1])]
    return None if "" in inner else inner
