"""Reading the chosen option."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.choices import choice, compare_choice, option_in
from nemo_gym.grading.verdict import Extracted, Outcome, Unparsed


@pytest.mark.parametrize(
    ("text", "said"),
    [("So \\boxed{B}.", "\\boxed{B}"), ("The answer is **C**.", "C"), ("Because.\n(D)", "(D)"), ("Answer: Ｂ", "Ｂ")],
)
def test_the_span_is_where_the_reader_would_point(text: str, said: str) -> None:
    """A viewer highlights it; an author debugs with it."""
    found = choice(text, "ABCD")

    assert isinstance(found, Extracted)
    assert text[slice(*found.span)] == said


def test_the_span_counts_the_characters_of_the_original() -> None:
    """Invisible characters before the answer move it."""
    text = "\u200b\u200bГород: Лондон.\u200b Answer: \u200bB"
    found = choice(text, "ABCD")

    assert isinstance(found, Extracted)
    assert text[slice(*found.span)] == "B"


def test_unparsed_is_not_wrong() -> None:
    """An environment must be able to count replies without an answer."""
    assert compare_choice("I do not know", "A", "ABCD").outcome is Outcome.UNPARSED
    assert compare_choice("Answer: B", "A", "ABCD").outcome is Outcome.WRONG
    assert compare_choice("Answer: a", "A", "ABCD").outcome is Outcome.CORRECT


def test_a_letter_that_contradicts_its_text_chooses_nothing() -> None:
    """Otherwise a hedge between two options scores on both."""
    found = option_in("B. Paris", "AB", {"A": "Paris", "B": "London"})

    assert isinstance(found, Unparsed)
    assert option_in("B. London", "AB", {"A": "Paris", "B": "London"}) == "B"


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
    """`the` and `a` belong to the option there, and are no lead and no letter."""
    found = choice(text, "ABC", {"A": "the Rhine", "B": "the Danube", "C": "a bat"})

    assert (found.value if isinstance(found, Extracted) else None) == key
    if isinstance(found, Extracted) and found.value == "B":
        assert text[slice(*found.span)] == "the Danube"


@pytest.mark.parametrize("options", [[], ["A", "AB"], ["A", "a"], ["A", "A"]])
def test_options_that_cannot_be_told_apart_are_refused(options: list[str]) -> None:
    """A mistake in the data, not in the answer."""
    with pytest.raises(ValueError, match="single characters"):
        choice("A", options)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ABCDabcd ()[].,:/*\\{}$answeroptinixd\n\u200bВ", max_size=80))
def test_any_text_chooses_at_most_one_of_the_options(text: str) -> None:
    """No reply crashes the reader, and what is read is an option."""
    found = choice(text, "ABCD", {"A": "one", "B": "two"})

    assert isinstance(found, Unparsed) or (found.value in "ABCD" and 0 <= found.span[0] <= found.span[1] <= len(text))


@settings(max_examples=50, deadline=None)
@given(st.sampled_from("ABCD"), st.sampled_from(["\\boxed{%s}", "Answer: %s", "The answer is (%s).", "**%s**"]))
def test_the_usual_forms_are_read(letter: str, form: str) -> None:
    """Whatever the letter."""
    found = choice("Some words first.\n" + form % letter, "ABCD")

    assert isinstance(found, Extracted)
    assert found.value == letter
