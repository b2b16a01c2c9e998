"""Numbers as people and models write them, read exactly and never evaluated.

Thousands separators, fractions, mixed numbers, percentages, units, currencies, scientific notation, repeating decimals.
"""

import re
from collections import deque
from dataclasses import dataclass, replace
from fractions import Fraction

from nemo_gym.grading.latex import clean
from nemo_gym.grading.normalise import fold
from nemo_gym.grading.units import Unit, split_unit
from nemo_gym.grading.verdict import Extracted, Extraction, Unparsed

LONGEST = 400
MOST_DIGITS = 300
LARGEST_EXPONENT = 400
ROUNDED_FROM = 6
"""A decimal stands for a number it does not equal exactly (1/3, a root) from this many digits on."""


@dataclass(frozen=True)
class Number:
    """A number that was written down, and how."""

    value: Fraction
    form: str
    """`integer`, `decimal`, `fraction`, `mixed`, `scientific` or `repeating`."""
    percent: bool = False
    unit: Unit | None = None
    digits: int = 0
    """Significant digits of a decimal."""
    places: int = 0
    """Digits after the decimal point."""
    base: int = 10


_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_EXPONENT = r"\^ ?(?:\{ ?(?P<exp1>[+-]? ?\d{1,4}) ?\}|(?P<exp2>[+-]?\d{1,4}))"
_DECIMAL = re.compile(
    rf"(?P<whole>{_WHOLE})?(?:\.(?P<part>\d*))?"
    rf"(?: ?(?:\*|\\times|\\cdot|x) ?10 ?{_EXPONENT}|[eE](?P<exp3>[+-]?\d{{1,4}}))?"
)
_POWER_OF_TEN = re.compile(rf"10 ?{_EXPONENT}")
_REPEATING = re.compile(r"(?P<whole>\d*)\.(?P<part>\d*)\\(?:overline|bar|dot) ?\{?(?P<again>\d+)\}?")
_FRACTION = re.compile(
    r"(?:(?P<mixed>\d+) ?(?=\\frac)|(?P<mixed2>\d+) +(?:and +)?(?=\d+ ?/))?"
    rf"(?:\\frac ?\{{ ?(?P<sign>[+-]?) ?(?P<above>{_WHOLE}) ?\}} ?\{{ ?(?P<below>{_WHOLE}) ?\}}"
    rf"|\(?(?P<above2>{_WHOLE})\)? ?/ ?\(?(?P<below2>{_WHOLE})\)?)"
)
_BASE = re.compile(r"(?P<digits>[0-9A-Fa-f]+)_ ?\{?(?P<base>\d{1,2})\}?")
_SIGN = re.compile(r"([+-]) ?")
_PERCENT = re.compile(r"(?:%|«? ?per ?cent(?:age points?)? ?»?|«? ?pct ?»?)$", re.IGNORECASE)


def number(text: str) -> Number | None:
    """The number `text` is, or None when it is anything else, also when it is arithmetic still to be done."""
    return cleaned_number(clean(text)) if len(text) <= LONGEST else None


def cleaned_number(text: str) -> Number | None:
    """`number` of a text that went through `clean` already."""
    if len(text) > LONGEST or not any(character.isdigit() for character in text):
        return None
    bare = _PERCENT.sub("", text).strip()
    is_percent = bare != text.strip()
    core, unit = split_unit(bare)
    if is_percent and unit is not None:
        return None
    found = _signed(core)
    if found is None:
        return None
    if unit is not None and unit.is_multiplier:
        return replace(found, value=found.value * unit.factor, form="scientific")
    return replace(found, percent=is_percent, unit=unit)


def _signed(core: str) -> Number | None:
    sign = 1
    if leading := _SIGN.match(core):
        sign, core = (-1 if leading[1] == "-" else 1), core[leading.end() :]
    if core.startswith("(") and core.endswith(")") and core.count("(") == 1:
        core = core[1:-1].strip()
        if sign == 1 and (inner := _SIGN.match(core)):
            sign, core = (-1 if inner[1] == "-" else 1), core[inner.end() :]
    if sum(character.isdigit() for character in core) > MOST_DIGITS:
        return None
    found = _decimal(core) or _fraction(core) or _repeating(core) or _in_base(core)
    return replace(found, value=sign * found.value) if found else None


def _whole(text: str | None) -> int:
    return int((text or "0").replace(",", "").replace(" ", ""))


def _decimal(core: str) -> Number | None:
    if power := _POWER_OF_TEN.fullmatch(core):
        return _scaled(Fraction(1), _exponent(power), "scientific", 1, 0)
    found = _DECIMAL.fullmatch(core)
    if found is None or not (found["whole"] or found["part"]):
        return None
    part = found["part"] or ""
    value = Fraction(_whole(found["whole"])) + (Fraction(int(part), 10 ** len(part)) if part else 0)
    digits = len((f"{_whole(found['whole'])}{part}").lstrip("0"))
    exponent = _exponent(found)
    if exponent is None:
        return Number(value, "decimal" if part.strip("0") else "integer", digits=digits, places=len(part))
    return _scaled(value, exponent, "scientific", digits, len(part))


def _exponent(found: re.Match[str]) -> int | None:
    text = next((value for name, value in found.groupdict().items() if name.startswith("exp") and value), None)
    return int(text.replace(" ", "")) if text else None


def _scaled(value: Fraction, exponent: int | None, form: str, digits: int, places: int) -> Number | None:
    if exponent is None or abs(exponent) > LARGEST_EXPONENT:
        return None
    return Number(value * Fraction(10) ** exponent, form, digits=digits, places=places - exponent)


def _fraction(core: str) -> Number | None:
    found = _FRACTION.fullmatch(core)
    if found is None:
        return None
    above, below = _whole(found["above"] or found["above2"]), _whole(found["below"] or found["below2"])
    if below == 0:
        return None
    mixed = found["mixed"] or found["mixed2"]
    part = Fraction(above, below)
    if mixed:
        return Number(int(mixed) + part, "mixed") if part < 1 and not found["sign"] else None
    return Number(-part if found["sign"] == "-" else part, "fraction")


def _repeating(core: str) -> Number | None:
    found = _REPEATING.fullmatch(core)
    if found is None:
        return None
    part, again = found["part"], found["again"]
    value = Fraction(int((found["whole"] or "0") + part), 10 ** len(part))
    return Number(value + Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(part)), "repeating")


def _in_base(core: str) -> Number | None:
    found = _BASE.fullmatch(core)
    if found is None or not 2 <= int(found["base"]) <= 16:
        return None
    base = int(found["base"])
    if any(int(digit, 16) >= base for digit in found["digits"]):
        return None
    return Number(Fraction(int(found["digits"], base)), "integer", base=base)


def numbers_differ(answer: Number, gold: Number, *, worked_out: bool = True) -> str | None:
    """Why `answer` is not `gold`, or None when it is.

    Values are compared exactly. A decimal with six or more digits may stand for a fraction it cannot write. A unit may
    be left out or added, but two units must agree. With `worked_out`, `6/3` is not 2: the division is still to be done.
    """
    if (answer.base == 10) != (gold.base == 10):
        return _bases_differ(answer, gold)
    value, wanted = answer.value, gold.value
    if answer.unit and gold.unit:
        if answer.unit.dimension != gold.unit.dimension:
            return "another unit"
        value, wanted = value * answer.unit.factor, wanted * gold.unit.factor
    if answer.percent or gold.percent:
        if answer.unit or gold.unit:
            return "another unit"
        value, wanted = _percentages(answer, gold)
    if value != wanted:
        plain = answer.unit is None or gold.unit is None or answer.unit == gold.unit
        rounded = plain and answer.percent == gold.percent and stands_for(answer, gold.value)
        return None if rounded and gold.form in ("fraction", "mixed", "repeating") else "another value"
    whole = gold.value.denominator == 1 and gold.form != "fraction" and not gold.percent
    if worked_out and whole and answer.form == "fraction" and not (answer.unit and gold.unit):
        return "a division that is still to be done"
    return None


def _bases_differ(answer: Number, gold: Number) -> str | None:
    """One names a base and the other does not: the same digits are the same answer."""
    return None if _digits(answer) == _digits(gold) else "another base"


def _digits(found: Number) -> str:
    if found.value.denominator != 1:
        return str(found.value)
    left, digits = abs(found.value.numerator), ""
    while left:
        left, digit = divmod(left, found.base)
        digits = "0123456789ABCDEF"[digit] + digits
    return ("-" if found.value < 0 else "") + digits


def _percentages(answer: Number, gold: Number) -> tuple[Fraction, Fraction]:
    """The two values on one scale. A sign only one of them carries is a unit when the number is above 1."""
    if answer.percent == gold.percent:
        return answer.value, gold.value
    sole, other = (answer, gold) if answer.percent else (gold, answer)
    if sole.value == other.value and abs(other.value) > 1 and other.form != "fraction":
        return answer.value, gold.value
    return (answer.value / 100, gold.value) if answer.percent else (answer.value, gold.value / 100)


def stands_for(answer: Number, value: Fraction) -> bool:
    """Whether `answer` is a decimal of at least six digits within one unit of its last place of `value`."""
    if answer.form not in ("decimal", "scientific") or answer.digits < ROUNDED_FROM:
        return False
    return abs(answer.value - value) < Fraction(1, 10) ** answer.places


_IN_PROSE = re.compile(
    r"(?<![\w.^/])(?P<sign>[-+]?)(?P<core>\d{1,3}(?:,\d{3}(?!\d))++|\d++)(?P<part>\.\d+)?"
    r"(?P<rest>(?:[eE][+-]?\d{1,3}(?!\w))|(?: ?/ ?\d{1,9}(?![\w.]))|(?: ?%))?"
)


def last_number(text: str) -> Extraction[Number]:
    """The last number written in a text, thousands separators, fractions, exponents and percentages understood."""
    folded = fold(text)
    last = deque(_IN_PROSE.finditer(folded.text), maxlen=1)
    if not last:
        return Unparsed("there is no number")
    start, end = last[0].span()
    if end - start > LONGEST:
        return Unparsed(f"the last number has more than {LONGEST} characters")
    found = cleaned_number(last[0].group().replace(" ", ""))
    if found is None:
        return Unparsed("the last number cannot be read")
    return Extracted(found, folded.span(start, end), "last_number")


def last_value(text: str) -> float | None:
    """The last number written in a text, as a float; None without one.

    Only a number in digits counts: a fraction is arithmetic still to be done, and digits of other scripts or above the
    line (a power) might mean something else.
    """
    found = last_number(text)
    if isinstance(found, Unparsed) or found.value.form not in ("integer", "decimal", "scientific"):
        return None
    written = text[slice(*found.span)]
    if any(character.isdigit() and not character.isascii() for character in written):
        return None
    return float(found.value.value)
