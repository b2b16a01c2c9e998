"""Units of measurement and words that follow a number."""

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction


@dataclass(frozen=True)
class MeasurementUnit:
    """A unit: its dimension and its factor, by which units of the same dimension are converted exactly."""

    dimension: str
    factor: Fraction = Fraction(1)
    may_be_variables: bool = field(default=False, compare=False)
    """True if the letters could be variables: `3 m`, `2mg`. Such a unit counts only if the other side has a unit."""

    @property
    def is_multiplier(self) -> bool:
        """Return whether the word is part of the number, as in `3 million`."""
        return self.dimension == "multiplier"


def _unit_table() -> dict[str, MeasurementUnit]:
    """Return the units by every spelling of their names in singular (`inche` is `inches` without its `s`)."""
    rows: dict[str, dict[str, str]] = {
        "length": {
            "mm millimeter millimetre": "1/1000", "cm centimeter centimetre": "1/100",
            "dm decimeter decimetre": "1/10", "m meter metre": "1", "km kilometer kilometre": "1000",
        },
        "imperial length": {"in inch inche": "1", "ft foot feet": "12", "yd yard": "36", "mi mile": "63360"},
        "mass": {"mg milligram": "1/1000", "g gram": "1", "kg kilogram": "1000", "tonne": "1000000"},
        "weight": {"oz ounce": "1", "lb lbs pound": "16"},
        "time": {
            "ms millisecond": "1/1000", "s sec second": "1", "min minute": "60", "h hr hour": "3600", "day": "86400",
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
            "dozen": "12", "hundred": "100", "thousand": "1000", "million": "1000000", "billion": "1000000000",
            "trillion": "1000000000000",
        },
    }  # fmt: skip
    return {
        word: MeasurementUnit(dimension, Fraction(factor))
        for dimension, factors in rows.items()
        for spellings, factor in factors.items()
        for word in spellings.split()
    }


_UNITS = _unit_table()
_DIMENSIONS = frozenset({*(unit.dimension for unit in _UNITS.values()), "am", "pm"})
_CURRENCY = re.compile(r"(?P<sign>-? ?)(?P<mark>[$€£¥₹]|USD ?|EUR ?|GBP ?)(?P<rest>.*)", re.DOTALL)
_NOT_UNITS = frozenset(
    """squared cubed factorial times plus minus over by half halves third thirds quarter quarters fifth root pi
    and or not to is than less more approximately about between mod modulo remainder percent base if for with from
    one two three four five six seven eight nine ten eleven twelve twenty true false""".split()  # noqa: SIM905
)
_WORD = re.compile(r"[a-zA-Z°¢$€£¥₹]+")
_MAX_WORDS = 4
_CASE_MATTERS = re.compile(r"M[WVAJNwvajngms]|[MGS]")
"""Units whose first letter, a capital, has a meaning: `MW` and `mW`, `Mg` and `mg`. Alone, it may be a variable."""


def contradict(unit: MeasurementUnit, other: MeasurementUnit) -> bool:
    """Return whether two units are known and different; unknown ones (`ways`, `arrangements`) may mean the same."""
    return unit != other and _is_known(unit) and _is_known(other)


def _is_known(unit: MeasurementUnit) -> bool:
    """Return whether a unit is in the table, also as a square or cube; `am` and `pm` are known, too."""
    return unit.dimension.partition("^")[0] in _DIMENSIONS


def split_unit(text: str) -> tuple[str, MeasurementUnit | None]:
    """Split text into the number or expression and its unit: a unit after it or a currency before it."""
    if money := _CURRENCY.fullmatch(text):
        mark = money["mark"].strip().lower()
        core, trailing_unit = split_unit(money["rest"].strip())
        if trailing_unit is not None and trailing_unit.is_multiplier:
            return text, None
        return f"{money['sign'].strip()}{core}", _UNITS[mark]
    core, unit_text = _split_unit_text(text)
    unit = _parse_unit(unit_text, spaced=text[len(core)] == " " or "«" in unit_text) if unit_text else None
    return (text, None) if unit is None else (core, unit)


def _split_unit_text(text: str) -> tuple[str, str]:
    """Split text into a core that ends with a digit or bracket, and the unit text after it (empty if none)."""
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
        return text, ""
    return core, unit


def _parse_unit(text: str, *, spaced: bool) -> MeasurementUnit | None:
    """Parse a unit; with `spaced`, a space separates it from the number."""
    power = ""
    if match := re.search(r"\^ ?\{? ?(-?[23]) ?\}?$", text):
        power, text = match[1], text[: match.start()].strip()
    words = [word if len(word) <= 2 else word.lower() for word in _WORD.findall(text)]
    if not words or len(words) > _MAX_WORDS or any(word.lower() in _NOT_UNITS for word in words):
        return None
    if words[0] in ("square", "sq", "cubic") and len(words) > 1:
        power, words = "3" if words[0] == "cubic" else "2", words[1:]
    singular = [_singular(word) for word in words]
    if len(singular) == 1 and singular[0] in _UNITS:
        word = singular[0]
        unit = _raise_unit(_UNITS[word], word, power) if spaced or _may_touch_digits(word) else None
        is_ambiguous = words[0].isalpha() and "«" not in text and (len(words[0]) == 1 or not spaced)
        return replace(unit, may_be_variables=is_ambiguous) if unit else None
    is_ratio = "/" in text
    if text[0] in "/*" or any(len(word) < 2 and not (is_ratio and word in _UNITS) for word in words):
        return None  # a single letter is a variable
    if not spaced and not is_ratio:
        return None
    name = f"{('/' if is_ratio else ' ').join(singular)}{'^' if power else ''}{power}"
    longest_product = 1 if is_ratio else 2  # `9 m/s` and `9 gh` may be products of variables, `60 km/h` is a speed
    is_ambiguous = "«" not in text and all(len(word) <= longest_product for word in words)
    return MeasurementUnit(name, may_be_variables=is_ambiguous)


def _may_touch_digits(word: str) -> bool:
    """Return whether a unit may follow digits without a space: `5cm`, `30°`. A single letter is a variable."""
    return len(word) > 1 or not word.isalpha()


def _singular(word: str) -> str:
    """Return the spelling of a word in the table of units; for an unknown word, lower case without a final `s`."""
    if word in _UNITS:
        return word
    if _CASE_MATTERS.fullmatch(word) and word != "MM":
        return word[0] + word[1:].lower()
    lower = word.lower()
    if lower in _UNITS:
        return lower
    return lower.removesuffix("s") if len(lower) > 3 else lower


def _raise_unit(unit: MeasurementUnit, word: str, power: str) -> MeasurementUnit | None:
    """Return a unit to the given power, or unchanged without one; None if it cannot have a power, like a currency."""
    if not power:
        return unit
    if unit.is_multiplier or not word[0].isalpha():
        return None
    return MeasurementUnit(f"{unit.dimension}^{power}", unit.factor ** int(power))
