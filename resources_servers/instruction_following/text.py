"""Sentences, words and paragraphs of a reply, told apart the same way by every checker."""

import re
from typing import Literal

Relation = Literal["less than", "at least"]

_NEVER_LAST = re.compile(
    r"mrs?|ms|dr|prof|st|vs|fig|eq|e\.g|i\.e|cf|gen|col|sgt|capt|lt|rev|hon|gov|sen|rep|mt", re.IGNORECASE
)
"""Abbreviations that something has to follow."""
_MAY_BE_LAST = re.compile(
    r"sr|jr|etc|no|vol|figs|eqs|ch|sec|pp|eds?|dept|inc|ltd|co|corp|approx|est|ca|al|ft|min|max|[ap]\.m|u\.[skn]|e\.u|"
    r"ph\.d|[mb]\.[ad]|d\.c|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun",
    re.IGNORECASE,
)

_END = re.compile(r"[.!?…]+[\"'”’»)\]*_]*(?=\s|$)|[。！？｡।۔؟]+[」』”’）]*")
_LAST_WORD = re.compile(r"[^\s\"'“‘«(\[*_]+$")
_SAID = re.compile(r"[^\W_]")
_MARKER = re.compile(r"(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})")
_WORD = re.compile(r"\w+")
_LONG_WORD = re.compile(r"[^\W_]+(?:[-'’./&][^\W_]+)*")


def compares(count: int, relation: Relation, bound: int) -> bool:
    """Whether `count` is `less than` or `at least` `bound`."""
    return count < bound if relation == "less than" else count >= bound


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, as IFEval counts them: `don't` has two."""
    return _WORD.findall(text)


def whole_words(text: str) -> list[str]:
    """Words as people see them: `don't`, `well-known` and `U.S` are one."""
    return _LONG_WORD.findall(text)


def sentences(text: str) -> list[str]:
    """The sentences of `text`, each with the mark that ends it; text behind the last mark is one more.

    A full stop behind an abbreviation, an initial or the number of a list item ends nothing. Line breaks end nothing
    either: a heading belongs to the sentence behind it.
    """
    found, start = [], 0
    said = _SAID.search(text)
    for mark in _END.finditer(text):
        if said is None or mark.start() <= said.start() or _goes_on(text, start, mark):
            continue
        found.append(text[start : mark.end()].strip())
        start = mark.end()
        said = _SAID.search(text, start)
    return found if said is None else [*found, text[start:].strip()]


def _goes_on(text: str, start: int, mark: re.Match[str]) -> bool:
    """Whether the sentence that began at `start` goes on behind `mark`."""
    behind = text[mark.end() : mark.end() + 40].lstrip()
    sign = mark.group()
    if sign.startswith("."):
        return behind != "" and _is_no_stop(text, start, mark, behind)
    # «"Really?" he asked.» is one sentence.
    return len(sign) > 1 and sign[-1] in "\"'”’»" and behind[:1].islower()


def _is_no_stop(text: str, start: int, mark: re.Match[str], behind: str) -> bool:
    last = _LAST_WORD.search(text, max(start, mark.start() - 40), mark.start())
    word = last.group() if last else ""
    if _NEVER_LAST.fullmatch(word):
        return True
    if mark.group().startswith("..") or _MAY_BE_LAST.fullmatch(word):
        return behind[:1].islower() or behind[:1].isdigit()
    line = text[max(start, mark.start() - 40) : mark.start() - len(word)].rpartition("\n")[2]
    if _MARKER.fullmatch(word) and not line.strip(" \t*_#>-"):
        return True
    return len(word) == 1 and word.isupper() and word != "I"  # an initial


def divided(text: str, divider: str) -> list[str] | None:
    """The parts of `text` between dividers; None when one in the middle is empty. Empty ends do not count."""
    parts = [part.strip() for part in text.split(divider)]
    inner = parts[not parts[0] : len(parts) - (not parts[-1])]
    return None if "" in inner else inner
