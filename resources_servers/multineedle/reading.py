"""Read the value that a reply gives for each name: `Lisbon: 7193042`, a table, a list or an object."""

import re
from collections.abc import Sequence
from functools import lru_cache

from nemo_gym.grading.text import fold, normalise_text

LONGEST = 200_000
"""Characters at the end of a reply that are read: longer replies repeat the text instead of answering."""
LONGEST_VALUE = 80

_MARKS = r"[\s*_`\"'\[\]()]"
_MARKS_ON_LINE = r"[ \t*_`\"'\[\]()]"
_BEGINNING = (
    rf"(?:^|[;,|{{]|[.!?:](?=\s)){_MARKS}{{0,6}}(?:[-•+>#]{{1,6}}\s{{0,4}}|\d{{1,3}}[.)]\s{{0,4}})?{_MARKS}{{0,6}}"
)
_BETWEEN = rf"{_MARKS_ON_LINE}{{0,6}}(?:-+>|=>|→|:=|[:=|\-\t]|(?P<weak>,|(?<=\s)is(?=\s))){_MARKS_ON_LINE}{{0,6}}"
_TRIMMED = " \t*_`\"'|.;,:{}[]()\\"


def comparable(value: str) -> str:
    """Return a value without case, punctuation and spaces, so that `7,193,042` equals `7193042`."""
    return normalise_text(value, ignore_punctuation=True).replace(" ", "")


def values_by_name(text: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the different values that `text` gives for each of `names`, in order; names without a value are omitted.

    A name counts at the beginning of a line or entry, followed by a separator. Names in the middle of a sentence do
    not count, so a reply that repeats the text answers nothing. `Lisbon, 7` and `Lisbon is 7` count only for names that
    occur nowhere with an unambiguous separator, because prose looks the same.
    """
    folded = fold(text[-LONGEST:]).text
    entries = list(_entry_pattern(tuple(names)).finditer(folded))
    original_names = {normalise_text(name): name for name in names}
    strong: dict[str, list[str]] = {}
    weak: dict[str, list[str]] = {}
    for number, entry in enumerate(entries):
        following = entries[number + 1].start() if number + 1 < len(entries) else len(folded)
        value = folded[entry.end() : min(following, entry.end() + LONGEST_VALUE)].split("\n", 1)[0].strip(_TRIMMED)
        name = original_names[normalise_text(entry["name"])]
        values = (weak if entry["weak"] else strong).setdefault(name, [])
        if comparable(value) and comparable(value) not in map(comparable, values):
            values.append(value)
    return {name: values for name in names if (values := strong.get(name) or weak.get(name))}


@lru_cache(maxsize=256)
def _entry_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    # Longest first, because one name may begin with another.
    patterns = sorted((r"\s+".join(map(re.escape, fold(name).text.split())) for name in names), key=len, reverse=True)
    return re.compile(rf"{_BEGINNING}(?P<name>{'|'.join(patterns)}){_BETWEEN}", re.IGNORECASE | re.MULTILINE)
