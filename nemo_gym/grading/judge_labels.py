"""Labels of a judge: read the verdict of its reply, and keep the texts under judgement from containing a label."""

import html
import re
import unicodedata
from collections.abc import Sequence

from nemo_gym.grading.extraction import strip_reasoning
from nemo_gym.grading.result_types import NoAnswer

REPLACEMENT = "[label]"
MAX_ENTITY_LEVELS = 3
"""How often entities are decoded: `&amp;#91;` is a bracket after two levels."""
_DECORATION = "*_`\"'“”. \t"
_CLAUSE_END = (":", ".", "!", "?", ";", "—", "→", "=>")

_QUALIFIER = re.compile(
    r"(?:\b(?:not|never|cannot|unless|if|would|could|instead|rather|than)\b|n['’]t\b)"
    r"(?:[ \t]+(?!so\b|thus\b|hence\b|therefore\b)[\w'’]+){0,3}[ \t*_`\"'“(]*\Z",
    re.IGNORECASE,
)
"""The end of a text that negates the label after it or makes it a condition."""


def verdict_label(reply: str, labels: Sequence[str]) -> str | None:
    """Return the label with which a judge ends its reply, or the only label that it stated; None if undecided.

    A label in a negation or condition ("I cannot say [[A=B]]", "it would be [[A=B]] if …") is not stated.

    A reply with several labels, such as one that restates the task, is decided by its last line: the label must stand
    alone there or begin the last clause ("so they differ: [[A!=B]]").
    """
    text = strip_reasoning(reply)
    if isinstance(text, NoAnswer):
        return None
    ordered = sorted(labels, key=len, reverse=True)
    matches = re.findall("|".join(map(re.escape, ordered)), text.value)
    if len(set(matches)) == 1:
        label = str(matches[0])
        is_stated = any(not _QUALIFIER.search(piece) for piece in text.value.split(label)[:-1])
        return label if is_stated else None
    last_line = text.value.strip().rsplit("\n", 1)[-1].strip(_DECORATION)
    for label in ordered:
        if last_line.endswith(label):
            before = last_line.removesuffix(label).rstrip(_DECORATION.replace(".", ""))
            return label if not before or before.endswith(_CLAUSE_END) else None
    return None


def remove_labels(text: str, labels: Sequence[str]) -> str:
    """Replace every label in a text, also one in disguise: in another case, with spaces, entities or look-alikes.

    A judge that quotes a disguised label writes it in its normal form, which would then count as the verdict. A text
    without a label is returned unchanged.
    """
    decoded = text
    for _ in range(MAX_ENTITY_LEVELS):
        decoded = html.unescape(decoded)
    decoded = "".join(c for c in unicodedata.normalize("NFKC", decoded) if unicodedata.category(c) != "Cf")
    clean = decoded
    for label in sorted(labels, key=len, reverse=True):
        clean = _disguised_label(label).sub(_replace_if_mostly_ascii, clean)
    return text if clean == decoded else clean


def _disguised_label(label: str) -> re.Pattern[str]:
    """Return a pattern for a label with spaces inside and any character beyond ASCII in place of its characters."""
    return re.compile(r"\s*".join(f"(?:{re.escape(c)}|[^\x00-\x7f\\s])" for c in label if c != " "), re.IGNORECASE)


def _replace_if_mostly_ascii(match: re.Match[str]) -> str:
    """Replace a match of which at least half is ASCII, as labels are; a word of another script stays as it is."""
    characters = "".join(match.group().split())
    return REPLACEMENT if 2 * sum(map(str.isascii, characters)) >= len(characters) else match.group()
