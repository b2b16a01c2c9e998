"""What a reply says about each name: `Lisbon: 7193042`, a table, a list, an object; one value for each or none."""

import re
from collections.abc import Sequence
from functools import lru_cache

from nemo_gym.grading.normalise import fold, plain_text

LONGEST = 200_000
"""Characters, from the end, that are read: longer replies repeat the text instead of answering."""
LONGEST_VALUE = 80

_MARKS = r"[\s*_`\"'\[\]()]"
_MARKS_ON_LINE = r"[ \t*_`\"'\[\]()]"
_BEGINNING = (
    rf"(?:^|[;,|{{]|[.!?:](?=\s)){_MARKS}{{0,6}}(?:[-•+>#]{{1,6}}\s{{0,4}}|\d{{1,3}}[.)]\s{{0,4}})?{_MARKS}{{0,6}}"
)
_BETWEEN = rf"{_MARKS_ON_LINE}{{0,6}}(?:-+>|=>|→|:=|[:=|\-\t]|(?P<weak>,|(?<=\s)is(?=\s))){_MARKS_ON_LINE}{{0,6}}"
_TRIMMED = " \t*_`\"'|.;,:{}[]()\\"


def comparable(value: str) -> str:
    """A value without case, punctuation and spaces, so that `7,193,042` is `7193042`."""
    return plain_text(value, ignore_punctuation=True).replace(" ", "")


def values_by_name(text: str, names: Sequence[str]) -> dict[str, list[str]]:
    """The different values that `text` gives to each of `names`, in order; names it gives none are left out.

    A name counts at the beginning of a line or of an entry, with a separator behind it. In the middle of a sentence it
    does not, so text that is merely repeated answers nothing. `Lisbon, 7` and `Lisbon is 7` count only for names that
    stand nowhere with a plain separator, because prose looks the same.
    """
    folded = fold(text[-LONGEST:]).text
    found = list(_entries(tuple(names)).finditer(folded))
    own = {plain_text(name): name for name in names}
    plain: dict[str, list[str]] = {}
    weak: dict[str, list[str]] = {}
    for number, entry in enumerate(found):
        following = found[number + 1].start() if number + 1 < len(found) else len(folded)
        value = folded[entry.end() : min(following, entry.end() + LONGEST_VALUE)].split("\n", 1)[0].strip(_TRIMMED)
        given = (weak if entry["weak"] else plain).setdefault(own[plain_text(entry["name"])], [])
        if comparable(value) and comparable(value) not in map(comparable, given):
            given.append(value)
    return {name: values for name in names if (values := plain.get(name) or weak.get(name))}


@lru_cache(maxsize=256)
def _entries(names: tuple[str, ...]) -> re.Pattern[str]:
    # Longest first, so that one name may begin like another.
    wanted = sorted((r"\s+".join(map(re.escape, fold(name).text.split())) for name in names), key=len, reverse=True)
    return re.compile(rf"{_BEGINNING}(?P<name>{'|'.join(wanted)}){_BETWEEN}", re.IGNORECASE | re.MULTILINE)
