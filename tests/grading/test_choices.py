"""Extraction of the chosen option."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.choices import compare_choice, extract_choice, parse_option
from nemo_gym.grading.result_types import ExtractedAnswer, NoAnswer, VerdictKind


@pytest.mark.parametrize(
    ("text", "span"),
    [("So \\boxed{B}.", "\\boxed{B}"), ("The answer is **C**.", "C"), ("Because.\n(D)", "(D)"), ("Answer: Ｂ", "Ｂ")],
)
def test_the_span_covers_the_chosen_option(text: str, span: str) -> None:
    """A viewer highlights it and authors debug with it."""
    extraction = extract_choice(text, "ABCD")

    assert isinstance(extraction, ExtractedAnswer)
    assert text[slice(*extraction.span)] == span


def test_the_span_counts_the_characters_of_the_original() -> None:
    """Invisible characters before the answer shift its position."""
    text = "\u200b\u200bГород: Лондон.\u200b Answer: \u200bB"
    extraction = extract_choice(text, "ABCD")

    assert isinstance(extraction, ExtractedAnswer)
    assert text[slice(*extraction.span)] == "B"


def test_unparsed_is_not_wrong() -> None:
    """An environment must be able to count replies without an answer."""
    assert compare_choice("I do not know", "A", "ABCD").outcome is VerdictKind.UNPARSED
    assert compare_choice("Answer: B", "A", "ABCD").outcome is VerdictKind.WRONG
    assert compare_choice("Answer: a", "A", "ABCD").outcome is VerdictKind.CORRECT


def test_a_letter_that_contradicts_its_text_chooses_nothing() -> None:
    """Otherwise a hedge between two options scores on both."""
    extraction = parse_option("B. Paris", "AB", {"A": "Paris", "B": "London"})

    assert isinstance(extraction, NoAnswer)
    assert parse_option("B. London", "AB", {"A": "Paris", "B": "London"}) == "B"


@pytest.mark.parametrize(
    "text",
    [
        "Answer: B (or maybe C)",
        "Answer: B; alternatively C",
        "Answer: B~C",
        "Answer: B–C",
        "answer: B..D",
        "Answer: 'B' & 'C'",
        "Answer: B, perhaps C",
        "Answer: B is tempting but wrong",
        "Answer: B? no, wait",
        "Answer:\nB\nC\nD",
    ],
)
def test_a_hedge_in_an_odd_form_chooses_nothing(text: str) -> None:
    """The first option of each was paid."""
    assert isinstance(extract_choice(text, "ABCD"), NoAnswer)


@pytest.mark.parametrize("text", ["Answer: B - a city", "Answer: B\n\nA. is wrong because", "Answer: B, A being old"])
def test_a_word_after_an_option_is_no_second_option(text: str) -> None:
    """The rules against hedges must not cost right answers."""
    assert compare_choice(text, "B", "ABCD").correct


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Answer: the Danube", "B"),
        ("The answer is the Danube.", "B"),
        ("Answer: Danube river", None),
        ("**Answer:** a bat", "C"),
        ("Answer: A", "A"),
        ("Answer: the Rhine or the Danube", None),
    ],
)
def test_an_option_may_be_named_by_a_text_that_begins_with_an_article(text: str, key: str | None) -> None:
    """`the` and `a` belong to the option's text there."""
    extraction = extract_choice(text, "ABC", {"A": "the Rhine", "B": "the Danube", "C": "a bat"})

    assert (extraction.value if isinstance(extraction, ExtractedAnswer) else None) == key
    if isinstance(extraction, ExtractedAnswer) and extraction.value == "B":
        assert text[slice(*extraction.span)] == "the Danube"


@pytest.mark.parametrize("options", [[], ["A", "AB"], ["A", "a"], ["A", "A"]])
def test_ambiguous_options_are_refused(options: list[str]) -> None:
    """The data is at fault, not the answer."""
    with pytest.raises(ValueError, match="single characters"):
        extract_choice("A", options)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ABCDabcd ()[].,:/*\\{}$answeroptinixd\n\u200bВ", max_size=80))
def test_any_text_chooses_at_most_one_of_the_options(text: str) -> None:
    """No reply may crash the extraction or choose an option that does not exist."""
    extraction = extract_choice(text, "ABCD", {"A": "one", "B": "two"})

    assert isinstance(extraction, NoAnswer) or (
        extraction.value in "ABCD" and 0 <= extraction.span[0] <= extraction.span[1] <= len(text)
    )


@settings(max_examples=50, deadline=None)
@given(st.sampled_from("ABCD"), st.sampled_from(["\\boxed{%s}", "Answer: %s", "The answer is (%s).", "**%s**"]))
def test_the_usual_forms_are_read(letter: str, form: str) -> None:
    """Each letter must be extracted from each common form."""
    extraction = extract_choice("Some words first.\n" + form % letter, "ABCD")

    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value == letter


@pytest.mark.parametrize(
    "text", ['Answer: {"a": 1}', 'Answer: {"a":{"a":{"a":""}}}', '\\boxed{{"a": 1}}', 'The answer is [{"a": "x"}]']
)
def test_the_key_of_a_json_object_chooses_nothing(text: str) -> None:
    """Data that a model prints instead of an answer would otherwise be right in a quarter of the questions."""
    assert isinstance(extract_choice(text, "ABCD"), NoAnswer)


def test_a_json_object_may_state_the_answer() -> None:
    """Models that are asked for JSON answer in this form."""
    extraction = extract_choice('{"answer": "B"}', "ABCD")

    assert isinstance(extraction, ExtractedAnswer)
    assert extraction.value == "B"


@pytest.mark.parametrize(
    "text",
    [
        "Answer: A, but maybe D",
        "Answer: D but also A",
        "Answer: A? D?",
        "Answer: A → D",
        "Answer: D => A",
        "answer: 'A' vs. 'D'",
        "Answer: D, unless A",
        "The answer is A. No, D.",
        "The answer is D. Wait, A!",
    ],
)
def test_a_second_option_after_other_joining_words_is_a_hedge(text: str) -> None:
    """The first option was credited, whichever the reply ends with."""
    assert not compare_choice(text, "A", "ABCD").correct
    assert not compare_choice(text, "D", "ABCD").correct


@pytest.mark.parametrize(
    "text", ["Answer: A, but I am not sure", "Answer: A. No other option fits.", "Answer: A, no doubt"]
)
def test_other_words_after_an_option_are_no_hedge(text: str) -> None:
    """Comments on the choice are common."""
    assert compare_choice(text, "A", "ABCD").correct


@pytest.mark.parametrize(
    "text",
    [
        "The answer is C, but I did not verify every step.",
        "Answer: C. But a reader might prefer D.",
        "**C**. Actually I checked this twice.",
        "Answer: (C), unless a lower bound was meant",
        "My choice is C. Sorry, I wrote too much.",
        "Answer: C. And I checked it.",
        "Answer: C, no I in the text is meant.",
    ],
)
def test_a_comment_after_an_option_keeps_it(text: str) -> None:
    """With options up to J, the words "a" and "I" of a comment were read as a second option, and C scored 0."""
    assert compare_choice(text, "C", "ABCDEFGHIJ").correct


@pytest.mark.parametrize(
    "text",
    [
        "The answer is C, but also D.",
        "Answer: C, unless D",
        "Answer: C. No, wait, D!",
        "Answer: C. Actually D is correct.",
        "Answer: C, but D seems better",
        "Answer: C. Or maybe D.",
    ],
)
def test_another_option_after_a_turning_word_is_a_hedge(text: str) -> None:
    """The first of two options must not be paid."""
    assert isinstance(extract_choice(text, "ABCDEFGHIJ"), NoAnswer)
