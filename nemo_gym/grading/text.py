"""Normalise text for comparison: width, look-alikes, invisible characters, case, articles, punctuation.

Folding a text replaces characters by common equivalents. It records positions, so that a span of the folded text can be
converted to a span of the original.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial

from nemo_gym.grading.result_types import Verdict, VerdictKind

_LOOK_ALIKES = dict(
    zip("АВЕЅІЈКМНОРСТУХаеорсухіјѕΑΒΕΖΗΙΚΜΝΟΡΤΥΧοԁԛԝɑ", "ABESIJKMHOPCTYXaeopcyxijsABEZHIKMNOPTYXodqwa", strict=True)
)
"""Cyrillic and Greek letters that look like Latin ones."""

_SIGNS = {
    **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
    **dict.fromkeys("‘’‚‛′`´", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("⁄∕÷", "/"),
    **dict.fromkeys("×✕⋅·", "*"),
    **dict.fromkeys("º˚", "°"),
    "ℓ": "l",
    "µ": "μ",
}

_CIRCLED = {chr(0x1F150 + i): chr(65 + i) for i in range(26)} | {chr(0x1F170 + i): chr(65 + i) for i in range(26)}

_PASSES = 3
"""How often a text is folded: changing the case can create new look-alikes, which the next pass replaces."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class FoldedText:
    """A folded text and the original position of each character."""

    text: str
    positions: "array[int] | None"
    """Original position of every folded character; None if every character keeps its position."""
    length: int
    """Length of the original text."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Convert a span of the folded text to a span of the original."""
        if self.positions is None:
            return start, end
        first = self.positions[start] if start < len(self.positions) else self.length
        last = self.positions[end - 1] + 1 if 0 < end <= len(self.positions) else first
        return first, max(first, last)


def fold(text: str) -> FoldedText:
    """Replace characters by common equivalents, drop invisible ones and write superscripts as `^{2}`.

    Includes compatibility forms (NFKC), digits of any script, minus signs, quotes, and Cyrillic or Greek letters that
    look Latin. Case is kept.
    """
    if text.isascii():
        return FoldedText(text, None, len(text))
    table = {ord(character): _fold_character(character) for character in set(text) if character >= "\x80"}
    if all(len(piece) == 1 for piece in table.values()):
        return FoldedText(text.translate(table), None, len(text))
    pieces: list[str] = []
    positions = array("L")
    for position, character in enumerate(text):
        piece = table.get(ord(character), character)
        pieces.append(piece)
        positions.extend([position] * len(piece))
    return FoldedText("".join(pieces), positions, len(text))


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    """Return the replacement of one character; empty for an invisible one."""
    for table in (_LOOK_ALIKES, _SIGNS, _CIRCLED):
        if character in table:
            return table[character]
    category = unicodedata.category(character)
    if category in ("Cf", "Mn", "Me", "Cc", "Cs", "Co"):  # format, combining, control, surrogate, private use
        return ""
    if category in ("Zs", "Zl", "Zp"):  # space, line and paragraph separators
        return " " if category == "Zs" else "\n"
    decomposition = unicodedata.decomposition(character)
    compatible = unicodedata.normalize("NFKC", character)
    if decomposition.startswith("<super>"):
        return f"^{{{_ascii_signs(compatible)}}}"
    if decomposition.startswith("<sub>"):
        return f"_{{{_ascii_signs(compatible)}}}"
    if decomposition.startswith("<fraction>"):
        return " " + compatible.replace("⁄", "/")
    if decomposition.startswith("<circle>") and len(compatible) == 1:
        return compatible.upper()
    if len(compatible) == 1 and category == "Nd":
        return str(unicodedata.decimal(compatible))
    return "".join(_LOOK_ALIKES.get(c, _SIGNS.get(c, c)) for c in compatible)


def _ascii_signs(text: str) -> str:
    return "".join(_SIGNS.get(c, c) for c in text)


def normalise_text(
    text: str, *, ignore_case: bool = True, ignore_articles: bool = False, ignore_punctuation: bool = False
) -> str:
    """Fold `text` and collapse spaces, so that equal answers become equal strings."""
    normalised = text
    for _ in range(_PASSES if not text.isascii() else 1):
        normalised = unicodedata.normalize("NFKC", fold(normalised).text)
        if ignore_case:
            normalised = normalised.casefold()
    if ignore_punctuation:
        is_punctuation = {c: unicodedata.category(c)[0] in "PS" for c in set(normalised)}  # punctuation and symbols
        normalised = "".join(" " if is_punctuation[c] else c for c in normalised)
    if ignore_articles:
        normalised = _ARTICLES.sub(" ", normalised)
    return " ".join(normalised.split())


def compare_text(
    answer: str,
    golds: str | Iterable[str],
    *,
    ignore_case: bool = True,
    ignore_articles: bool = False,
    ignore_punctuation: bool = False,
) -> Verdict:
    """Compare the normalised `answer` with each of `golds`. An empty answer is unparsed even if a gold is empty."""
    normalise = partial(
        normalise_text,
        ignore_case=ignore_case,
        ignore_articles=ignore_articles,
        ignore_punctuation=ignore_punctuation,
    )
    normal = normalise(answer)
    if not normal:
        return Verdict(VerdictKind.UNPARSED, reason="the answer is empty")
    if normal in map(normalise, [golds] if isinstance(golds, str) else golds):
        return Verdict(VerdictKind.CORRECT, normal, "text")
    return Verdict(VerdictKind.WRONG, normal, "text", "differs from the expected text")
