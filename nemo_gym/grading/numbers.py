"""Parse and compare numbers as people and models write them, exactly and without evaluating arithmetic.

Thousands separators, fractions, mixed numbers, percentages, units, currencies, scientific notation, repeating decimals.
"""

import re
from collections import deque
from dataclasses import dataclass, replace
from fractions import Fraction

from nemo_gym.grading.latex import clean
from nemo_gym.grading.result_types import ExtractedAnswer, Extraction, NoAnswer
from nemo_gym.grading.text import fold
from nemo_gym.grading.units import MeasurementUnit, split_unit

MAX_LENGTH = 400
MAX_DIGITS = 300
MAX_EXPONENT = 400
MIN_ROUNDED_DIGITS = 6
"""A decimal with at least this many digits may be a rounding of a fraction (0.333333 for 1/3)."""


@dataclass(frozen=True)
class Number:
    """A number and the notation it was written in."""

    value: Fraction
    form: str
    """`integer`, `decimal`, `fraction`, `mixed`, `scientific` or `repeating`."""
    percent: bool = False
    unit: MeasurementUnit | None = None
    digits: int = 0
    """Significant digits of a decimal."""
    places: int = 0
    """Digits after the decimal point."""
    base: int = 10

    def as_float(self) -> float | None:
        """Return the value as a float; None if it is beyond the range of floats."""
        try:
            return float(self.value)
        except OverflowError:
            return None


_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_EXPONENT = r"\^ ?(?:\{ ?(?P<exp1>[+-]? ?\d{1,4}) ?\}|(?P<exp2>[+-]?\d{1,4}))"
_DECIMAL = re.compile(
    rf"(?P<whole>{_WHOLE})?(?:\.(?P<part>\d*))?"
    rf"(?: ?(?:\*|\\times|\\cdot|x) ?10 ?{_EXPONENT}|[eE](?P<exp3>[+-]?\d{{1,4}}))?"
)
_POWER_OF_TEN = re.compile(rf"10 ?{_EXPONENT}")
_REPEATING = re.compile(r"(?P<whole>\d*)\.(?P<part>\d*)\\(?:overline|bar|dot) ?\{?(?P<period>\d+)\}?")
_FRACTION = re.compile(
    r"(?:(?P<mixed>\d+) ?(?=\\frac)|(?P<mixed2>\d+) +(?:and +)?(?=\d+ ?/))?"
    rf"(?:\\frac ?\{{ ?(?P<sign>[+-]?) ?(?P<above>{_WHOLE}) ?\}} ?\{{ ?(?P<below>{_WHOLE}) ?\}}"
    rf"|\(?(?P<above2>{_WHOLE})\)? ?/ ?\(?(?P<below2>{_WHOLE})\)?)"
)
_BASE = re.compile(r"(?P<digits>[0-9A-Fa-f]+)_ ?\{?(?P<base>\d{1,2})\}?")
_SIGN = re.compile(r"([+-]) ?")
_PERCENT = re.compile(r"(?:%|«? ?per ?cent(?:age points?)? ?»?|«? ?pct ?»?)$", re.IGNORECASE)


def parse_number(text: str) -> Number | None:
    """Parse `text` as one number; None for anything else, including unevaluated arithmetic."""
    return parse_cleaned_number(clean(text)) if len(text) <= MAX_LENGTH else None


def parse_cleaned_number(text: str) -> Number | None:
    """Parse a number from the result of `latex.clean`; None for anything else."""
    if len(text) > MAX_LENGTH or not any(character.isdigit() for character in text):
        return None
    without_percent = _PERCENT.sub("", text).strip()
    is_percent = without_percent != text.strip()
    core, unit = split_unit(without_percent)
    if is_percent and unit is not None:
        return None
    parsed = _parse_signed(core)
    if parsed is None:
        return None
    if unit is not None and unit.is_multiplier:
        return replace(parsed, value=parsed.value * unit.factor, form="scientific")
    return replace(parsed, percent=is_percent, unit=unit)


def _parse_signed(core: str) -> Number | None:
    """Parse a number without unit, with an optional sign and parentheses."""
    sign = 1
    if leading := _SIGN.match(core):
        sign, core = (-1 if leading[1] == "-" else 1), core[leading.end() :]
    if core.startswith("(") and core.endswith(")") and core.count("(") == 1:
        core = core[1:-1].strip()
        if "," in core:
            return None  # a pair or an interval, not a thousands separator
        if sign == 1 and (inner := _SIGN.match(core)):
            sign, core = (-1 if inner[1] == "-" else 1), core[inner.end() :]
    if sum(character.isdigit() for character in core) > MAX_DIGITS:
        return None
    parsed = _parse_decimal(core) or _parse_fraction(core) or _parse_repeating(core) or _parse_with_base(core)
    return replace(parsed, value=sign * parsed.value) if parsed else None


def _parse_whole(text: str | None) -> int:
    """Parse a whole number with thousands separators; None is 0."""
    return int((text or "0").replace(",", "").replace(" ", ""))


def _parse_decimal(core: str) -> Number | None:
    """Parse an integer, a decimal or scientific notation."""
    if power := _POWER_OF_TEN.fullmatch(core):
        return _scale(Fraction(1), _exponent(power), digits=1, places=0)
    match = _DECIMAL.fullmatch(core)
    if match is None or not (match["whole"] or match["part"]):
        return None
    whole, decimals = _parse_whole(match["whole"]), match["part"] or ""
    value = Fraction(whole) + (Fraction(int(decimals), 10 ** len(decimals)) if decimals else 0)
    digits, places = len(f"{whole}{decimals}".lstrip("0")), len(decimals)
    exponent = _exponent(match)
    if exponent is None:
        return Number(value, "decimal" if decimals.strip("0") else "integer", digits=digits, places=places)
    return _scale(value, exponent, digits=digits, places=places)


def _exponent(match: re.Match[str]) -> int | None:
    text = next((value for name, value in match.groupdict().items() if name.startswith("exp") and value), None)
    return int(text.replace(" ", "")) if text else None


def _scale(value: Fraction, exponent: int | None, *, digits: int, places: int) -> Number | None:
    """Multiply by a power of ten; None if the exponent is missing or too large. `places` are those of `value`."""
    if exponent is None or abs(exponent) > MAX_EXPONENT:
        return None
    return Number(value * Fraction(10) ** exponent, "scientific", digits=digits, places=places - exponent)


def _parse_fraction(core: str) -> Number | None:
    """Parse `3/4`, `\\frac{3}{4}` or a mixed number."""
    match = _FRACTION.fullmatch(core)
    if match is None:
        return None
    numerator = _parse_whole(match["above"] or match["above2"])
    denominator = _parse_whole(match["below"] or match["below2"])
    if denominator == 0:
        return None
    fraction = Fraction(numerator, denominator)
    if whole := match["mixed"] or match["mixed2"]:
        return Number(int(whole) + fraction, "mixed") if fraction < 1 and not match["sign"] else None
    return Number(-fraction if match["sign"] == "-" else fraction, "fraction")


def _parse_repeating(core: str) -> Number | None:
    """Parse a repeating decimal such as `0.\\overline{3}`."""
    match = _REPEATING.fullmatch(core)
    if match is None:
        return None
    decimals, period = match["part"], match["period"]
    value = Fraction(int((match["whole"] or "0") + decimals), 10 ** len(decimals))
    return Number(value + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(decimals)), "repeating")


def _parse_with_base(core: str) -> Number | None:
    """Parse a number with its base as subscript, such as `101_2`."""
    match = _BASE.fullmatch(core)
    if match is None or not 2 <= int(match["base"]) <= 16:
        return None
    base = int(match["base"])
    if any(int(digit, 16) >= base for digit in match["digits"]):
        return None
    return Number(Fraction(int(match["digits"], base)), "integer", base=base)


def number_difference(answer: Number, gold: Number) -> str | None:
    """Return why `answer` differs from `gold`, or None if they are equal.

    Values are compared exactly, but a decimal with six or more digits may be a rounding of a fraction. A unit may be
    missing on one side if it cannot be a variable; two units must agree. `6/3` differs from 2, because it is not
    evaluated. The base may be missing in the answer, because the question names it: `101` equals `101_2`.
    """
    if (answer.base == 10) != (gold.base == 10):
        is_same = answer.base == 10 and _digits(answer) == _digits(gold)
        return None if is_same else "another base"
    value, expected = answer.value, gold.value
    if has_one_ambiguous_unit(answer.unit, gold.unit):
        return "a variable, or a unit that the other side lacks"
    if answer.unit and gold.unit:
        if answer.unit.dimension != gold.unit.dimension:
            return "another unit"
        value, expected = value * answer.unit.factor, expected * gold.unit.factor
    if answer.percent or gold.percent:
        if answer.unit or gold.unit:
            return "another unit"
        value, expected = _on_one_scale(answer, gold)
    if value != expected:
        has_same_scale = answer.unit is None or gold.unit is None or answer.unit == gold.unit
        is_rounded = has_same_scale and answer.percent == gold.percent and is_rounding_of(answer, gold.value)
        return None if is_rounded and gold.form in ("fraction", "mixed", "repeating") else "another value"
    is_whole = gold.value.denominator == 1 and gold.form != "fraction" and not gold.percent
    if is_whole and answer.form == "fraction" and not (answer.unit and gold.unit):
        return "a division that is not evaluated"
    return None


def has_one_ambiguous_unit(one: MeasurementUnit | None, other: MeasurementUnit | None) -> bool:
    """Return whether only one side has a unit, and its letters could be variables, as in `6` and `6 m`."""
    unit = one or other
    return (one is None) != (other is None) and unit is not None and unit.may_be_variables


def _digits(number: Number) -> str:
    """Return a whole number as text in its base; any other number as a fraction."""
    if number.value.denominator != 1:
        return str(number.value)
    remaining, digits = abs(number.value.numerator), ""
    while remaining:
        remaining, digit = divmod(remaining, number.base)
        digits = "0123456789ABCDEF"[digit] + digits
    return ("-" if number.value < 0 else "") + digits


def _on_one_scale(answer: Number, gold: Number) -> tuple[Fraction, Fraction]:
    """Return both values as fractions of 1 or both as percentages, so that they can be compared.

    A percent sign may be missing on one side if the number is above 1: `50%` equals `50`, and also `0.5`.
    """
    if answer.percent == gold.percent:
        return answer.value, gold.value
    without_sign = gold if answer.percent else answer
    if answer.value == gold.value and abs(without_sign.value) > 1 and without_sign.form != "fraction":
        return answer.value, gold.value
    return (answer.value / 100, gold.value) if answer.percent else (answer.value, gold.value / 100)


def is_rounding_of(answer: Number, value: Fraction) -> bool:
    """Return whether `answer` has six or more digits and differs from `value` by less than one in its last digit."""
    if answer.form not in ("decimal", "scientific") or answer.digits < MIN_ROUNDED_DIGITS:
        return False
    return abs(answer.value - value) < Fraction(1, 10) ** answer.places


_IN_PROSE = re.compile(
    r"(?<![\w.^/])(?P<sign>[-+]?)(?P<core>\d{1,3}(?:,\d{3}(?!\d))++|\d++)(?P<part>\.\d+)?"
    r"(?P<rest>(?:[eE][+-]?\d{1,3}(?!\w))|(?: ?/ ?\d{1,9}(?![\w.]))|(?: ?%))?"
)


def last_number(text: str) -> Extraction[Number]:
    """Extract the last number in a text; it may have thousands separators, a denominator, exponent or percent sign."""
    folded = fold(text)
    last_matches = deque(_IN_PROSE.finditer(folded.text), maxlen=1)
    if not last_matches:
        return NoAnswer("no number")
    match = last_matches[0]
    start, end = match.span()
    if end - start > MAX_LENGTH:
        return NoAnswer(f"the last number has more than {MAX_LENGTH} characters")
    parsed = parse_cleaned_number(match.group().replace(" ", ""))
    if parsed is None:
        return NoAnswer("the last number cannot be read")
    return ExtractedAnswer(parsed, folded.span(start, end), "last_number")


def last_value(text: str) -> float | None:
    """Return the last number in a text as a float; None if it is missing or too large.

    None also for a fraction, which is unevaluated arithmetic, and for digits beyond ASCII, such as superscripts.
    """
    extraction = last_number(text)
    if isinstance(extraction, NoAnswer) or extraction.value.form not in ("integer", "decimal", "scientific"):
        return None
    source = text[slice(*extraction.span)]
    if any(character.isdigit() and not character.isascii() for character in source):
        return None
    return extraction.value.as_float()
