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
_WRAPPING = r"(?:[*_`\"'“”()\[\]{}$ \t]|\\boxed|\\text|</?\w+>)*+"
_AT_END = re.compile(rf"{_WRAPPING}[.!]*{_WRAPPING}(?:\Z|\n|[.,:;!—–]|-|(?:because|since|as)\b)")
"""What follows a label that ends a line, a sentence or a clause."""
_INTRODUCTION_END = (":", "：", "—", "–", "-", "→", "⇒", "=>")
_LONGEST_LINE = 500
"""Characters before a label that are searched for the sentence that states it."""

_STATEMENT = re.compile(
    r"(?:(?:and|so|thus|hence|therefore|consequently|finally|which|this|that|it|means|makes|making|giving|gives)\s*)*"
    r"(?:(?:(?:my|the|our)\s)?(?:final\s|correct\s|overall\s)?(?:verdict|label|decision|judge?ment|conclusion|result|answer)"
    r"\s(?:is|must be|has to be|=)(?:\sthat|\sthus|\stherefore)?"
    r"|(?:final\s)?(?:verdict|label|decision|judge?ment|conclusion|answer)"
    r"|i(?:['’]d|['’]ll|\swill|\smust|\stherefore|\sthus)?\s"
    r"(?:say|choose|chose|pick|conclude|answer|decide|give|reply|select|write|output|go)(?:\s(?:that|with|for|on))?"
    r"|i\.?e)?",
    re.IGNORECASE,
)
"""The words after the last comma or "so" that state the label after them."""
_CLAUSE_START = re.compile(r",|(?<!not )\b(?=(?:so|thus|hence|therefore|consequently|making|giving)\b)", re.IGNORECASE)
_CONDITION = re.compile(r"\b(?:if|unless|would|could|should|might|had|were)\b", re.IGNORECASE)

_REPORT = re.compile(
    r"(?:\b(?<!\bi )(?:says?|said|writes?|wrote|reads?|ends|ending|begins|starts|contains?|includes?|tells?|told|asks?"
    r"|wants?|claims?|states?|quotes?|demands?|requests?|instructs?|repeats?|mentions?|inserts?|cites?|replies|outputs"
    r"|(?:to|must|please|and)\s(?:reply|respond|output|print|answer)|text|(?<!bottom )line|injection"
    r"|instructions?|prompt|label|quotation)"
    r"(?:\s(?:with|to|me|us|the|an?|its|own|that|this|as|follows|following|label|text|line|words|verdict|judge|grader"
    r"|back|only|exactly|is|be|it|say|write|reply|respond|output|print|answer)"
    r"|\s(?:in|of|from)\s(?:the\s)?(?:\w+\s)?(?:answer|candidate|response|[ab12])(?:\s[ab12])?)*"
    r"|\b(?:not|never|cannot)|n['’]t"
    r"|\b(?:if|unless|would|could|might|instead|rather|than)\b(?:\s[\w'’]+){0,3}"
    r"|\A\W*(?:the\s)?(?:(?:first|second|candidate|reference|expected|given|student|model)(?:['’]s)?\s?)?"
    r"(?:(?:answer|candidate|response|text|solution)[ -]?)?(?:[ab12]|first|second|candidate)(?:['’]s\s\w+)?)\W*\Z",
    re.IGNORECASE,
)
"""The end of a text that reports the words after it, negates them or makes them a condition: "B ends with:", "B:"."""
_OWN_LABEL = re.compile(r"\A\W*(?:(?:my|the|our|final|correct|overall)\s)*label(?:\sis)?\W*\Z", re.IGNORECASE)

_DOUBT = re.compile(
    r"\b(?:not|never|cannot|differ\w*|distinct|unequal|wrong|false|incorrect|unlike|wait|actually|but|however|although"
    r"|instead|labels?|verdict|would|could|mention\w*|quot\w+|tells?|asks?|wants?|demands?|instruct\w*|said|says"
    r"|claim\w*|nope|no(?!\s(?:difference|discrepanc|change|error|issue|doubt)))\b|n['’]t\b",
    re.IGNORECASE,
)
"""Words after a label that may take it back."""


def verdict_label(reply: str, labels: Sequence[str]) -> str | None:
    """Return the label that a judge's reply states as its verdict; None if there is no clear one.

    The last label counts if it stands where a verdict stands: alone on its line, after a complete sentence ("They
    agree. [[A=B]]"), or at the end of a sentence that states it ("so they differ: [[A!=B]]", "My verdict is [[A=B]]").
    A label that is mentioned, quoted, denied or made a condition is no verdict. Text may follow only if the reply has
    no other label. `labels[0]` is the label that is paid: no word of doubt may follow it.
    """
    text = strip_reasoning(reply)
    if isinstance(text, NoAnswer):
        return None
    matches = list(_label_pattern(labels).finditer(text.value))
    if not matches:
        return None
    last, label = matches[-1], matches[-1].group()
    end = _AT_END.match(text.value, last.end())
    if end is None:
        return None
    rest = text.value[end.end() :]
    if any(map(str.isalnum, rest)):
        is_only_label = all(match.group() == label for match in matches)
        if not is_only_label or (label == labels[0] and _DOUBT.search(rest)):
            return None
    return label if _is_stated(text.value[: last.start()], labels, label) else None


def _label_pattern(labels: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for the labels, of which one in letters must be a whole word."""
    words = (
        ("", r"(?<!\w)")[label[0].isalnum()] + re.escape(label) + ("", r"(?!\w)")[label[-1].isalnum()]
        for label in sorted(labels, key=len, reverse=True)
    )
    return re.compile("|".join(words))


def _is_stated(before: str, labels: Sequence[str], label: str) -> bool:
    """Return whether a text states the label that follows it."""
    lines = [line for line in before.split("\n")[:-1] if line.strip()]
    line = _strip_wrapping(before.rsplit("\n", 1)[-1]).lstrip("#> ")
    if not line:  # the label is alone on its line
        previous = lines[-1] if lines else ""
        if previous.strip(" \t*_`") in set(labels) - {label}:
            return False
        line = _strip_wrapping(previous)
        return not line.endswith(_INTRODUCTION_END) or _introduces(line)
    if line.endswith((".", "!", "?", ";", "。")):
        return True
    sentence = re.split(r"[.!?;。]\s", line)[-1]
    if line.endswith(_INTRODUCTION_END):
        return _introduces(sentence)
    clause = _CLAUSE_START.split(sentence.rstrip(" ,"))[-1].strip()
    return bool(clause and _STATEMENT.fullmatch(clause)) and not _CONDITION.search(sentence)


def _introduces(text: str) -> bool:
    """Return whether a text that ends with a colon, dash or arrow introduces a verdict."""
    sentence = re.split(r"[.!?;。]\s", text)[-1]
    clause = re.sub(r"[\s*_`:：—–→⇒=>-]+\Z", "", sentence)
    return bool(any(map(str.isalnum, clause)) and (_OWN_LABEL.match(clause) or not _REPORT.search(clause)))


def _strip_wrapping(line: str) -> str:
    """Return the end of a line without quotation marks, brackets, emphasis and tags after its last word."""
    end = line[-_LONGEST_LINE:]
    while end != (end := re.sub(r"(?:[*_`\"'“”()\[\]{}$ \t]|\\boxed|\\text|</?\w+>)\Z", "", end)):
        pass
    return end


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
