"""Characters and words made comparable: width, look-alikes, invisible characters, case, articles, punctuation.

Folding keeps track of positions, so that a span found in the folded text can be given in the original one.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from nemo_gym.grading.verdict import Outcome, Verdict

_LOOK_ALIKES = dict(
    zip("АВЕЅІЈКМНОРСТУХаеорсухіјѕΑΒΕΖΗΙΚΜΝΟΡΤΥΧοԁԛԝɑ", "ABESIJKMHOPCTYXaeopcyxijsABEZHIKMNOPTYXodqwa", strict=True)
)
"""Cyrillic and Greek letters nobody can tell from Latin ones."""

_SIGNS = {
    **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
    **dict.fromkeys("‘’‚‛′`´", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    "⁄": "/",
    "∕": "/",
    "×": "*",
    "✕": "*",
    "⋅": "*",
    "·": "*",
    "÷": "/",
    "º": "°",
    "˚": "°",
    "ℓ": "l",
    "µ": "μ",
}

_CIRCLED = {chr(0x1F150 + i): chr(65 + i) for i in range(26)} | {chr(0x1F170 + i): chr(65 + i) for i in range(26)}

_ROUNDS = 3
"""Lower case brings new look-alikes; after this many rounds nothing changes any more."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class Folded:
    """A text with comparable characters, and where each of them came from."""

    text: str
    places: "array[int] | None"
    """Position in the original of every character, or None when nothing moved."""
    length: int

    def span(self, start: int, end: int) -> tuple[int, int]:
        """A span of the folded text as a span of the original."""
        if self.places is None:
            return start, end
        first = self.places[start] if start < len(self.places) else self.length
        last = self.places[end - 1] + 1 if 0 < end <= len(self.places) else first
        return first, max(first, last)


def fold(text: str) -> Folded:
    """Bring every character to the plain one it stands for; invisible ones vanish, raised digits become `^{2}`.

    Compatibility forms (NFKC), digits of any script, minus signs, quotes, and Cyrillic or Greek letters that look
    Latin. Case stays as it is.
    """
    if text.isascii():
        return Folded(text, None, len(text))
    table = {ord(character): _folded(character) for character in set(text) if character >= "\x80"}
    if all(len(piece) == 1 for piece in table.values()):
        return Folded(text.translate(table), None, len(text))
    pieces: list[str] = []
    places = array("L")
    for position, character in enumerate(text):
        piece = table.get(ord(character), character)
        pieces.append(piece)
        places.extend([position] * len(piece))
    return Folded("".join(pieces), places, len(text))


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    if character in _LOOK_ALIKES:
        return _LOOK_ALIKES[character]
    if character in _SIGNS:
        return _SIGNS[character]
    if character in _CIRCLED:
        return _CIRCLED[character]
    category = unicodedata.category(character)
    if category in ("Cf", "Mn", "Me", "Cc", "Cs", "Co"):
        return ""
    if category in ("Zs", "Zl", "Zp"):
        return "\n" if category in ("Zl", "Zp") else " "
    form = unicodedata.decomposition(character)
    plain = unicodedata.normalize("NFKC", character)
    if form.startswith("<super>"):
        return f"^{{{_ascii_signs(plain)}}}"
    if form.startswith("<sub>"):
        return f"_{{{_ascii_signs(plain)}}}"
    if form.startswith("<fraction>"):
        return " " + plain.replace("⁄", "/")
    if form.startswith("<circle>") and len(plain) == 1:
        return plain.upper()
    if len(plain) == 1 and category == "Nd":
        return str(unicodedata.decimal(plain))
    return "".join(_LOOK_ALIKES.get(c, _SIGNS.get(c, c)) for c in plain)


def _ascii_signs(text: str) -> str:
    return "".join(_SIGNS.get(c, c) for c in text)


def plain_text(
    text: str, *, ignore_case: bool = True, ignore_articles: bool = False, ignore_punctuation: bool = False
) -> str:
    """`text` folded, with single spaces, ready to be compared for equality."""
    plain = text
    for _ in range(_ROUNDS if not text.isascii() else 1):
        plain = unicodedata.normalize("NFKC", fold(plain).text)
        if ignore_case:
            plain = plain.casefold()
    if ignore_punctuation:
        plain = "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in plain)
    if ignore_articles:
        plain = _ARTICLES.sub(" ", plain)
    return " ".join(plain.split())


def compare_text(
    answer: str,
    golds: str | Iterable[str],
    *,
    ignore_case: bool = True,
    ignore_articles: bool = False,
    ignore_punctuation: bool = False,
) -> Verdict:
    """Whether `answer` says the same words as one of `golds`. An empty answer is unparsed even if a gold is empty."""

    def plain(text: str) -> str:
        return plain_text(
            text,
            ignore_case=ignore_case,
            ignore_articles=ignore_articles,
            ignore_punctuation=ignore_punctuation,
        )

    said = plain(answer)
    if not said:
        return Verdict(Outcome.UNPARSED, reason="the answer is empty")
    wanted = [golds] if isinstance(golds, str) else list(golds)
    if said in (plain(gold) for gold in wanted):
        return Verdict(Outcome.CORRECT, said, "text")
    return Verdict(Outcome.WRONG, said, "text", "another text than the expected one")
