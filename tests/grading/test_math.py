"""Extraction and comparison of mathematical answers, without symbolic comparison."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.latex import clean
from nemo_gym.grading.math import (
    NeedsSymbols,
    UnreadableExpression,
    compare_math,
    extract_math_answer,
    raise_needs_symbols,
    to_latex,
)
from nemo_gym.grading.math_parsing import parse_math
from nemo_gym.grading.result_types import ExtractedAnswer, NoAnswer, Verdict, VerdictKind


def compare(answer: str, gold: str, question: str | None = None) -> Verdict:
    return compare_math(answer, gold, symbolic=raise_needs_symbols, question=question)


@pytest.mark.parametrize(
    ("text", "value", "rule"),
    [
        (r"so $x=\boxed{5}$.", "5", "boxed"),
        (r"\boxed{1} then, after checking every case again and again, \boxed{2}", "2", "boxed"),
        (r"\boxed{1} or \boxed{2}", "1, 2", "boxes"),
        (r"$\boxed{1}$, $\boxed{2}$ and $\boxed{3}$", "1, 2, 3", "boxes"),
        (r"\boxed{2}, \boxed{2}", "2", "boxed"),
        (r"Either $\boxed{8}$ or else $\boxed{9}$.", "8, 9", "boxes"),
        (r"\boxed{8} / \boxed{9}", "8, 9", "boxes"),
        (r"\boxed{8} | \boxed{9}", "8, 9", "boxes"),
        (r"\boxed{8}\quad\text{or}\quad\boxed{9}", "8, 9", "boxes"),
        (r"\boxed{8} \text{ or maybe } \boxed{9}", "8, 9", "boxes"),
        (r"\boxed{8} (odd n) or \boxed{9} (even n)", "8, 9", "boxes"),
        (r"$\boxed{8}$, alternatively $\boxed{9}$", "8, 9", "boxes"),
        (r"\boxed{8}, possibly \boxed{9}", "8, 9", "boxes"),
        (r"\boxed{8} and/or \boxed{9}", "8, 9", "boxes"),
        (r"$\boxed{8} \vee \boxed{9}$", "8, 9", "boxes"),
        (r"\boxed{8} unless n is odd, \boxed{9}", "8, 9", "boxes"),
        (r"For even n \boxed{8}, if it is odd \boxed{9}", "8, 9", "boxes"),
        (r"\boxed{8}. If not, \boxed{9}", "8, 9", "boxes"),
        (r"It is not \boxed{8} but \boxed{9}", "9", "boxed"),
        (r"\boxed{1/2} or equivalently \boxed{0.5}", "0.5", "boxed"),
        (r"\boxed{1/2}, or in decimal form \boxed{0.5}", "0.5", "boxed"),
        (r"\boxed{8}, or rather \boxed{9}", "9", "boxed"),
        (r"\boxed{8}. No, wait: \boxed{9}", "9", "boxed"),
        (r"$a = \boxed{8}$ and the total is \boxed{9}", "9", "boxed"),
        (r"Step 1: \boxed{8}. Step 2: \boxed{9}", "9", "boxed"),
        ("The answer is $8$ or else $9$.", "8, 9", "answer_phrase"),
        ("The answer is $1/2$, or equivalently $0.5$.", "1/2", "answer_phrase"),
        ("The answer is 42.", "42", "answer_phrase"),
        ("Answer: 42", "42", "answer_phrase"),
        ("**Answer:** $42$", "42", "answer_phrase"),
        ("**Final answer:**\n\n$\\frac{1}{2}$", r"\frac{1}{2}", "answer_phrase"),
        ("The answer is 3. Wait, the answer is 4.", "4", "answer_phrase"),
        ("The answer is $3$ because $x=2$.", "3", "answer_phrase"),
        ("The answer is $3$ or $4$.", "3, 4", "answer_phrase"),
        ("The answer is 5 cm.", "5 cm", "answer_phrase"),
        ("The answer is $5$ cm.", "5 cm", "answer_phrase"),
        ("Answer: 12 since the rest cancels", "12", "answer_phrase"),
    ],
)
def test_the_final_answer_is_found(text: str, value: str, rule: str) -> None:
    """A box counts before a phrase, the last before the first, and adjacent boxes are one answer."""
    extraction = extract_math_answer(text)

    assert isinstance(extraction, ExtractedAnswer)
    assert (extraction.value, extraction.rule) == (value, rule)
    assert 0 <= extraction.span[0] < extraction.span[1] <= len(text)


@pytest.mark.parametrize(
    "text", ["", "42", "so x = 42", r"\boxed{", r"\boxed{1} \boxed{}", "Answer:", "the answer is "]
)
def test_no_box_and_no_phrase_is_no_answer(text: str) -> None:
    """A number somewhere in the text is not an answer."""
    assert isinstance(extract_math_answer(text), NoAnswer)


@pytest.mark.parametrize(
    ("answer", "gold", "reason"),
    [
        ("3, 4", "3", "several values where one is expected"),
        ("3", "3, 4", "one value where several are expected"),
        ("(2,1)", "(1,2)", "another value"),
        ("[1,2]", "(1,2)", "another kind of brackets"),
        ("y=3", "x=3", "another variable"),
        ("5 m", "5 cm", "another value"),
        ("5 kg", "5 cm", "another unit"),
        ("3 + 4", "7", "not an evaluated number"),
        ("14/2", "7", "a division that is not evaluated"),
        ("(1,2,3)", "(1,2)", "3 values where 2 are expected"),
        (r"\sin x", "x", r"not evaluated: \sin"),
        ("odd", "even", "other words"),
    ],
)
def test_a_wrong_answer_has_a_reason(answer: str, gold: str, reason: str) -> None:
    """Authors read it when they doubt a verdict."""
    verdict = compare(answer, gold)

    assert (verdict.outcome, verdict.reason) == (VerdictKind.WRONG, reason)


@pytest.mark.parametrize(
    "answer", ["", "x = ", "3 = 4", "1 + 2 = 3", "x = 3 = 4", "{" * 50, "((((((((1,2),3),4),5),6),7),8),9)"]
)
def test_an_answer_that_contradicts_itself_is_unparsed(answer: str) -> None:
    """It cannot be right for any gold."""
    assert compare(answer, "3").outcome is VerdictKind.UNPARSED


def test_a_gold_that_cannot_be_read_is_undecided() -> None:
    """The data is at fault, not the answer."""
    assert compare("5", "3 = 4").outcome is VerdictKind.UNDECIDED


def test_an_unreadable_expression_is_unparsed() -> None:
    """It was not compared, so it is not wrong."""

    def refuse_symbolic(_answer: str, _gold: str) -> bool:
        raise UnreadableExpression("cannot be read")

    assert compare_math("x+?", "x+1", symbolic=refuse_symbolic).outcome is VerdictKind.UNPARSED


def test_expressions_are_left_to_the_symbolic_side() -> None:
    """This process never evaluates an expression."""
    with pytest.raises(NeedsSymbols):
        compare("(x-1)(x+1)", "x^2-1")


def test_an_expression_copied_from_the_question_is_no_answer() -> None:
    """Repeating the question must not score, unless it is the expected answer."""
    question = r"Simplify $\frac{2}{4}$ and $x+1$."

    assert compare(r"\frac{2}{4}", r"\frac{1}{2}").correct
    assert compare(r"\frac{2}{4}", r"\frac{1}{2}", question).reason == "copied from the question"
    assert compare("x+1", "x+1", question).correct


FORMATS = {
    "plain": lambda value: str(value),
    "spaced": lambda value: f" {value} ",
    "dollars": lambda value: f"${value}$",
    "separators": lambda value: f"{value:,}",
    "latex separators": lambda value: f"{value:,}".replace(",", "{,}"),
    "decimal": lambda value: f"{value}.0",
    "named": lambda value: f"x = {value}",
    "unit": lambda value: f"{value} cm",
    "scientific": lambda value: f"{value} \\times 10^{{0}}",
    "bold": lambda value: f"**{value}**",
    "text": lambda value: f"\\text{{{value}}}",
}
FORMAT = st.sampled_from(sorted(FORMATS))


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**7), 10**7), FORMAT, FORMAT)
def test_a_number_equals_itself_in_every_format(value: int, one: str, other: str) -> None:
    """Notation must not cost a reward."""
    assert compare(FORMATS[one](value), FORMATS[other](value)).correct


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**4), 10**4), st.integers(-(10**4), 10**4), FORMAT, FORMAT)
def test_different_numbers_never_compare_equal(one: int, other: int, first: str, second: str) -> None:
    """A false positive in any format is a reward for nothing."""
    if one != other:
        assert not compare(FORMATS[first](one), FORMATS[second](other)).correct


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=5, unique=True), st.randoms(use_true_random=False))
def test_sets_have_no_order_and_tuples_have(values: list[int], chance: object) -> None:
    """The type of the expected answer decides."""
    shuffled = sorted(values)
    if shuffled == values:
        shuffled.reverse()
    answer, gold = ", ".join(map(str, shuffled)), ", ".join(map(str, values))

    assert compare(f"\\{{{answer}\\}}", f"\\{{{gold}\\}}").correct
    assert compare(answer, gold).correct
    assert not compare(f"({answer})", f"({gold})").correct
    assert not compare(f"({answer})", f"\\{{{gold}\\}}").correct
    assert not compare(f"\\{{{answer}, 100\\}}", f"\\{{{gold}\\}}").correct


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="0123456789.,+-/*^(){}[]\\ xypi=<>%$frac±∞", max_size=40))
def test_any_text_has_a_verdict_and_equals_itself_or_is_unreadable(text: str) -> None:
    """No answer crashes the comparison."""
    try:
        verdict = compare(text, text)
    except NeedsSymbols:
        return
    assert verdict.outcome in (VerdictKind.CORRECT, VerdictKind.UNDECIDED)


@settings(max_examples=60, deadline=None)
@given(st.fractions(max_denominator=99), st.integers(1, 5))
def test_a_decimal_of_few_digits_is_not_the_fraction_it_is_near(value: Fraction, places: int) -> None:
    """0.333 is not 1/3."""
    rounded = f"{float(value):.{places}f}"
    if Fraction(rounded) != value and len(rounded.strip("-").replace(".", "").lstrip("0")) < 6:
        assert not compare(rounded, f"{value.numerator}/{value.denominator}").correct


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (r"\left(\dfrac12, \tfrac{3}{4}\right)", r"(\frac{1}{2}, \frac{3}{4})"),
        (r"x \leqslant 3", r"x \le 3"),
        ("√2", r"\sqrt{2}"),
        ("x²", "x^{2}"),
        ("sqrt(3)/2", r"\sqrt{3}/2"),
        (r"\text{ cm}", "« cm»"),
        ("$$5$$.", "5"),
        ("30^{\\circ}", "30°"),
    ],
)
def test_notation_that_prints_the_same_is_cleaned_the_same(text: str, cleaned: str) -> None:
    """Every comparison starts from the cleaned text."""
    assert clean(text) == cleaned


@pytest.mark.parametrize(("text", "latex"), [(r"12.5\%", "0.125"), (r"0.5\%", "0.005"), ("2.50", "2.50")])
def test_a_decimal_keeps_its_digits_as_latex(text: str, latex: str) -> None:
    """A percentage cut to its own number of places would equal other answers in the symbolic comparison."""
    assert to_latex(parse_math(text)) == latex


def difference_of(text: str) -> int | None:
    """Return the value of a difference of whole numbers, as a symbolic comparison computes it."""
    numbers = text.split("-")
    return int(numbers[0]) - sum(map(int, numbers[1:])) if all(map(str.isdecimal, numbers)) else None


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"3\sqrt{5}\text{ m}^3", r"3\sqrt{5}\text{ m}^2"),
        (r"\frac{\pi}{3}\text{ km}", r"\frac{\pi}{3}\text{ mm}"),
        ("7:45 PM", "7:45 AM"),
        ("1999-07-03", "1999-03-07"),
        ("20-25", "30-35"),
        ("1992", "1999-03-04"),
        ("4 MW", "4 mW"),
        ("9 Mg", "9 mg"),
        ("8 M", "8 m"),
    ],
)
def test_equal_letters_and_digits_do_not_hide_another_unit_time_or_date(answer: str, gold: str) -> None:
    """A wrong answer that differs only in its unit, or has the same difference of numbers, would be paid."""
    verdict = compare_math(answer, gold, symbolic=lambda one, other: difference_of(one) == difference_of(other))

    assert not verdict.correct


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("2024-1-2", "2024-01-02"), ("10–12", "10-12"), ("10 - 12", "10-12"), ("7 KG", "7 kg"), ("3 l", "3 L")],
)
def test_another_way_to_write_a_range_a_date_or_a_unit_is_equal(answer: str, gold: str) -> None:
    """The rules against look-alikes must not refuse the same value."""
    assert compare(answer, gold).correct


@pytest.mark.parametrize(
    "text",
    [
        r"The result is not $\boxed{8}$.",
        r"It isn't \boxed{8}",
        r"That can’t be \boxed{8}",
        r"It cannot be **\boxed{8}**",
    ],
)
def test_a_negated_box_is_no_answer(text: str) -> None:
    """It says what the answer is not."""
    assert extract_math_answer(text) == NoAnswer("the last box is negated")


def never_equal(_answer: str, _gold: str) -> bool:
    """Find no two expressions equal, so that only the comparison of texts and units can accept an answer."""
    return False


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"2\sqrt{5}\text{ units}", r"2\sqrt{5}\text{ cm}"),
        (r"\sqrt{7}\text{ km/hr}", r"\sqrt{7}\text{ km/h}"),
        (r"\binom{9}{4}\text{ arrangements}", r"\binom{9}{4}\text{ ways}"),
    ],
)
def test_an_unknown_unit_contradicts_no_other(answer: str, gold: str) -> None:
    """The expressions are the same, and a word that names what is counted does not make the answer wrong."""
    assert compare_math(answer, gold, symbolic=never_equal).correct


@pytest.mark.parametrize(("answer", "gold"), [(r"\sqrt{7}\text{ m}", r"\sqrt{7}\text{ kg}"), ("10:30 am", "10:30 pm")])
def test_two_known_units_contradict_each_other(answer: str, gold: str) -> None:
    """The text before them is the same, so only the units show that the answer is wrong."""
    assert not compare_math(answer, gold, symbolic=lambda _answer, _gold: True).correct


def test_a_disjunction_is_not_a_conjunction() -> None:
    r"""Both became a list of two letters, so that `a \land b` was paid for `a \vee b`."""
    assert not compare_math(r"a \land b", r"a \vee b", symbolic=never_equal).correct
    assert compare_math(
        r"\beta^{\vee}", r"\beta^\vee", symbolic=lambda one, other: "vee" in one and "vee" in other
    ).correct


@pytest.mark.parametrize("text", [r"The result is not \(\boxed{12}\)", r"It isn't \[\boxed{12}\]"])
def test_a_negated_box_in_latex_delimiters_is_no_answer(text: str) -> None:
    """It says what the answer is not, in whatever delimiters."""
    assert extract_math_answer(text) == NoAnswer("the last box is negated")


def test_or_not_negates_nothing() -> None:
    """The words end the question that the box answers."""
    extraction = extract_math_answer(r"We decide whether the series converges or not: \boxed{No}")

    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value == "No"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"First \boxed{6}. If we add both: \boxed{14}", "14"),
        (r"$\boxed{6}$. If one adds 8, $\boxed{14}$", "14"),
        (r"\boxed{6}. If you prefer, \boxed{14}", "6, 14"),
        (r"\boxed{6} if we exclude 0, \boxed{14}", "6, 14"),
    ],
)
def test_a_condition_in_the_next_sentence_is_no_alternative(text: str, value: str) -> None:
    """It begins the next step of a derivation, whose last box counts."""
    extraction = extract_math_answer(text)

    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value == value


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("7 mv", "7 mV"), ("4 H", "4 hours"), ("6 MV", "6 Mv"), ("30--35", "30-35"), ("30-35", "30–35")],
)
def test_other_spellings_of_a_unit_or_range_are_equal(answer: str, gold: str) -> None:
    """Only the first letter of a unit changes its meaning, and LaTeX writes the dash of a range as two hyphens."""
    assert compare_math(answer, gold, symbolic=never_equal).correct
