"""Labels with which a judge states its verdict: read them from its reply, and remove them from the texts it judges."""

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
    """Return the label that a judge's reply states as its verdict; None if there is no clear one.

    The only label in the reply is the verdict unless each time a negation or condition precedes it ("I cannot say
    [[A=B]]"). Of several labels, as in a reply that restates the task, the one at the end of the last line counts: it
    must stand alone there or follow the end of a clause ("so they differ: [[A!=B]]").
    """
    text = strip_reasoning(reply)
    if isinstance(text, NoAnswer):
        return None
    longest_first = sorted(labels, key=len, reverse=True)
    matches = re.findall("|".join(map(re.escape, longest_first)), text.value)
    if len(set(matches)) == 1:
        label = str(matches[0])
        texts_before_label = text.value.split(label)[:-1]
        return label if any(not _QUALIFIER.search(before) for before in texts_before_label) else None
    last_line = text.value.strip().rsplit("\n", 1)[-1].strip(_DECORATION)
    for label in longest_first:
        if last_line.endswith(label):
            before = last_line.removesuffix(label).rstrip(_DECORATION.replace(".", ""))
            return label if not before or before.endswith(_CLAUSE_END) else None
    return None


def remove_labels(text: str, labels: Sequence[str]) -> str:
    """Replace every label in a text, also one in another case, with spaces inside, as entities or with look-alikes.

    A judge that quotes such a label writes it in its normal form, which would then count as the verdict. A text without
    a label is returned unchanged.
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
    """Return a pattern for a label that may have spaces inside and characters beyond ASCII in place of its letters."""
    return re.compile(r"\s*".join(f"(?:{re.escape(c)}|[^\x00-\x7f\\s])" for c in label if c != " "), re.IGNORECASE)


def _replace_if_mostly_ascii(match: re.Match[str]) -> str:
    """Replace a match of which at least half is ASCII, as labels are; a word of another script stays as it is."""
    characters = "".join(match.group().split())
    return REPLACEMENT if 2 * sum(map(str.isascii, characters)) >= len(characters) else match.group()
