"""Units of measurement and words behind a number."""

import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Unit:
    """What a number counts: how many of which dimension. Units of one dimension can be converted exactly."""

    dimension: str
    factor: Fraction = Fraction(1)

    @property
    def is_multiplier(self) -> bool:
        """Whether the word is part of the number, as in `3 million`."""
        return self.dimension == "multiplier"


def _table() -> dict[str, Unit]:
    rows: dict[str, dict[str, str]] = {
        "length": {
            "mm millimeter millimetre": "1/1000",
            "cm centimeter centimetre": "1/100",
            "dm decimeter decimetre": "1/10",
            "m meter metre": "1",
            "km kilometer kilometre": "1000",
        },
        "imperial length": {"in inch inche": "1", "ft foot feet": "12", "yd yard": "36", "mi mile": "63360"},
        "mass": {"mg milligram": "1/1000", "g gram": "1", "kg kilogram": "1000", "tonne": "1000000"},
        "weight": {"oz ounce": "1", "lb lbs pound": "16"},
        "time": {
            "ms millisecond": "1/1000",
            "s sec second": "1",
            "min minute": "60",
            "h hr hour": "3600",
            "day": "86400",
            "week": "604800",
        },
        "volume": {"ml milliliter millilitre": "1/1000", "l liter litre": "1"},
        "angle": {"° deg degree": "1"},
        "angle in radians": {"rad radian": "1"},
        "dollar": {"$ dollar usd": "1", "cent ¢": "1/100"},
        "euro": {"€ euro eur": "1"},
        "pound sterling": {"£ gbp": "1"},
        "yen": {"¥ yen jpy": "1"},
        "rupee": {"₹ rupee inr": "1"},
        "multiplier": {
            "dozen": "12",
            "hundred": "100",
            "thousand": "1000",
            "million": "1000000",
            "billion": "1000000000",
            "trillion": "1000000000000",
        },
    }
    return {
        word: Unit(dimension, Fraction(factor))
        for dimension, words in rows.items()
        for spelled, factor in words.items()
        for word in spelled.split()
    }


_KNOWN = _table()
_CURRENCY = re.compile(r"(?P<sign>-? ?)(?P<mark>[$€£¥₹]|USD ?|EUR ?|GBP ?)(?P<rest>.*)", re.DOTALL)
_NOT_UNITS = frozenset(
    """squared cubed factorial times plus minus over by half halves third thirds quarter quarters fifth root pi
    and or not to is than less more approximately about between mod modulo remainder percent base if for with from
    one two three four five six seven eight nine ten eleven twelve twenty true false""".split()  # noqa: SIM905
)
_WORD = re.compile(r"[a-zA-Z°¢$€£¥₹]+")
_MOST_WORDS = 4


def split_unit(text: str) -> tuple[str, Unit | None]:
    """A number or expression and the unit behind (or the currency sign before) it; `text` itself when there is none."""
    if money := _CURRENCY.fullmatch(text):
        word = money["mark"].strip().lower()
        core, behind = split_unit(money["rest"].strip())
        if behind is not None and behind.is_multiplier:
            return text, None
        return f"{money['sign'].strip()}{core}", _KNOWN[word]
    for found in _trailing(text):
        unit = _unit(found[1], spaced=found[2])
        if unit is not None:
            return found[0], unit
    return text, None


def _trailing(text: str) -> list[tuple[str, str, bool]]:
    """Where a unit may begin: after the last digit or bracket that only unit-like characters follow."""
    end = len(text)
    start = end
    while start and (text[start - 1].isalpha() or text[start - 1] in "°¢$€£¥₹«»/ .*"):
        start -= 1
    power = re.search(r"\^ ?\{? ?-?[23] ?\}?$", text[:start]) if start == end else None
    if power:  # cm^2
        start = power.start()
        while start and (text[start - 1].isalpha() or text[start - 1] in "°«»/ .*"):
            start -= 1
    core, unit = text[:start].rstrip(), text[start:].strip()
    if not unit or not core or core[-1] not in "0123456789})!.]":
        return []
    return [(core, unit, text[start] == " " or "«" in unit)]


def _unit(text: str, *, spaced: bool) -> Unit | None:
    power = ""
    if found := re.search(r"\^ ?\{? ?(-?[23]) ?\}?$", text):
        power, text = found[1], text[: found.start()].strip()
    words = [word if len(word) <= 2 else word.lower() for word in _WORD.findall(text)]
    if not words or len(words) > _MOST_WORDS or any(word.lower() in _NOT_UNITS for word in words):
        return None
    if words[0] in ("square", "sq", "cubic") and len(words) > 1:
        power, words = "3" if words[0] == "cubic" else "2", words[1:]
    singular = [_singular(word) for word in words]
    if len(singular) == 1 and singular[0] in _KNOWN:
        return _powered(_KNOWN[singular[0]], singular[0], power) if spaced or _glued(singular[0]) else None
    compound = "/" in text
    if text[0] in "/*" or any(len(word) < 2 and not (compound and word in _KNOWN) for word in words):
        return None  # a letter is a variable
    if not spaced and not compound:
        return None
    return Unit(f"{('/' if compound else ' ').join(singular)}{'^' if power else ''}{power}")


def _glued(word: str) -> bool:
    """Units people write right behind the digits: `5cm`, `30°`. A single letter there is a variable."""
    return len(word) > 1 or not word.isalpha()


def _singular(word: str) -> str:
    if word in _KNOWN:
        return word
    lower = word.lower()
    if lower in _KNOWN:
        return lower
    return lower.removesuffix("s") if len(lower) > 3 else lower


def _powered(unit: Unit, word: str, power: str) -> Unit | None:
    if not power:
        return unit
    if unit.is_multiplier or not word[0].isalpha():
        return None
    return Unit(f"{unit.dimension}^{power}", unit.factor ** int(power))
