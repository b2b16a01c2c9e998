"""Numbers as people write them: parsed exactly and compared."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.numbers import Number, last_number, last_value, number_difference, parse_number
from nemo_gym.grading.result_types import ExtractedAnswer, NoAnswer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", "1234"),
        ("1 234 567", "1234567"),
        ("−3", "-3"),
        ("1½", "3/2"),
        ("-1 1/2", "-3/2"),
        (r"\frac12", "1/2"),
        (r"-\frac{1}{2}", "-1/2"),
        ("0.5", "1/2"),
        (".5", "1/2"),
        ("1.5e3", "1500"),
        (r"1.5 \times 10^{-3}", "3/2000"),
        ("3 million", "3000000"),
        (r"0.1\overline{6}", "1/6"),
        ("1011_2", "11"),
        ("٣", "3"),
        ("１２", "12"),
        ("$1,000.50", "2001/2"),
    ],
)
def test_numbers_are_read_exactly(text: str, value: str) -> None:
    """A float would make 0.1 + 0.2 out of 0.3."""
    parsed = parse_number(text)

    assert parsed is not None
    assert parsed.value == Fraction(value)


NOT_NUMBERS = ["", "x", "2+3", "5²", "5x", "1/0", r"\frac{1}{0}", "5 squared", "3,14", "1,23", "1e99999", "9" * 500]
NOT_NUMBERS += [
    "nan",
    "inf",
    "5 or 6",
    "1/x",
    "0x10",
    "1__2",
    "--5",
    "5 not 6",
    r"\sqrt{4}",
    "2^3",
    "1 a/b",
    "12_13_14",
]


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_other_text_is_not_a_number(text: str) -> None:
    """Arithmetic is not evaluated and no number is guessed."""
    assert parse_number(text) is None


def difference(answer: str, gold: str) -> str | None:
    parsed, expected = parse_number(answer), parse_number(gold)
    assert parsed is not None
    assert expected is not None
    return number_difference(parsed, expected)


@pytest.mark.parametrize(
    ("answer", "gold"), [("5 cm", "0.05 m"), ("90 min", "1.5 hours"), ("$5", "500 cents"), ("5", "5 kg"), ("5 kg", "5")]
)
def test_units_agree_or_are_left_out(answer: str, gold: str) -> None:
    """The question usually names the unit."""
    assert difference(answer, gold) is None


@pytest.mark.parametrize(("answer", "gold"), [("5 cm", "5 m"), ("5 apples", "5 pears"), ("5%", "5 m"), ("$5", "5€")])
def test_two_units_must_be_the_same(answer: str, gold: str) -> None:
    """Five metres are not five centimetres."""
    assert difference(answer, gold) is not None


@pytest.mark.parametrize(
    ("answer", "gold", "is_right"),
    [("212", "212_3", True), ("212_3", "212_3", True), ("212_3", "212", False), ("23", "212_3", False),
     ("100_8", "100", False), ("77_{16}", "77", False), ("212_4", "212_3", False)],
)  # fmt: skip
def test_a_base_may_be_left_out_but_not_added(answer: str, gold: str, is_right: bool) -> None:
    """A question in base three is answered by the digits; a number in base three is no decimal number."""
    assert (difference(answer, gold) is None) == is_right


def test_a_division_still_to_be_done_is_no_answer_to_a_whole_number() -> None:
    """Copying `6/3` from the question is not working it out."""
    division, whole = parse_number("6/3"), parse_number("2")
    assert division is not None
    assert whole is not None

    assert number_difference(division, whole) is not None


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**12), 10**12))
def test_every_integer_is_read_back_with_and_without_separators(value: int) -> None:
    """Separators differ between languages and must not change the value."""
    for text in (str(value), f"{value:,}", f"{value:,}".replace(",", " "), f"{value:,}".replace(",", "{,}")):
        parsed = parse_number(text)
        assert parsed is not None
        assert (parsed.value, parsed.form) == (value, "integer")


@settings(max_examples=100, deadline=None)
@given(st.fractions(max_denominator=10**6))
def test_every_fraction_equals_itself_in_latex_and_plain(value: Fraction) -> None:
    """Notation must not cost a reward, and no other fraction may pass."""
    plain = f"{value.numerator}/{value.denominator}"
    latex = f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    for text in (plain, latex):
        parsed = parse_number(text)
        assert isinstance(parsed, Number)
        assert parsed.value == value
    other = parse_number(f"{value.numerator + 1}/{value.denominator}")
    assert other is not None
    assert number_difference(other, Number(value, "fraction")) is not None


@pytest.mark.parametrize(
    ("text", "value", "span"),
    [
        ("first 3, then 4,500.25.", "18001/4", "4,500.25"),
        ("from 3-5", "5", "5"),
        ("it is −7.", "-7", "−7"),
        ("about 3/4 of it", "3/4", "3/4"),
        ("5,6", "6", "6"),
        ("1,234,56", "56", "56"),
        ("rate 2.5e3 per s", "2500", "2.5e3"),
    ],
)
def test_the_last_number_of_a_text(text: str, value: str, span: str) -> None:
    """The span shows where the number is."""
    parsed = last_number(text)

    assert isinstance(parsed, ExtractedAnswer)
    assert parsed.value.value == Fraction(value)
    assert text[slice(*parsed.span)] == span


def test_a_text_without_a_number_is_unparsed() -> None:
    """`x2` is a name."""
    assert isinstance(last_number("x2 and y_3"), NoAnswer)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3 + 4 = 7", 7.0),
        ("it is 1,024.", 1024.0),
        ("\N{MINUS SIGN}40.5 degrees", -40.5),
        ("about 1e3", 1000.0),
        ("7%", 7.0),
        ("14/2", None),
        ("٣", None),
        ("9²", None),
        ("x2", None),
        ("", None),
    ],
)
def test_the_last_value_is_a_plain_number_or_nothing(text: str, value: float | None) -> None:
    """Servers that compare numbers must not evaluate fractions or guess digits."""
    assert last_value(text) == value
