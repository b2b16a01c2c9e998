"""Characters and words made comparable."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.normalise import compare_text, fold, plain_text
from nemo_gym.grading.verdict import Outcome


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Ｐａｒｉｓ", "Paris"),
        ("Рaris", "Paris"),
        ("Pa\u200bris", "Paris"),
        ("5²", "5^{2}"),
        ("H₂O", "H_{2}O"),
        ("1½", "1 1/2"),
        ("−5", "-5"),
        ("“a”", '"a"'),
        ("٣", "3"),
        ("Ⓑ", "B"),
        ("a\u00a0b", "a b"),
        ("ﬁn", "fin"),
    ],
)
def test_characters_become_what_they_stand_for(text: str, plain: str) -> None:
    """A raised 2 is not the digit 2: 5² must never read as 52."""
    assert fold(text).text == plain


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_folding_twice_changes_nothing_more(text: str) -> None:
    """Otherwise equality would depend on how often a text was cleaned."""
    once = plain_text(text)

    assert plain_text(once) == once


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40), st.data())
def test_every_span_of_the_folded_text_is_a_span_of_the_original(text: str, data: st.DataObject) -> None:
    """Positions survive characters that vanish or multiply."""
    folded = fold(text)
    start = data.draw(st.integers(0, len(folded.text)))
    end = data.draw(st.integers(start, len(folded.text)))

    first, last = folded.span(start, end)

    assert 0 <= first <= last <= len(text)


@pytest.mark.parametrize(
    ("answer", "gold", "outcome"),
    [
        ("paris", "Paris", Outcome.CORRECT),
        ("The Eiffel Tower!", "eiffel tower", Outcome.CORRECT),
        ("Lyon", "Paris", Outcome.WRONG),
        ("", "", Outcome.UNPARSED),
        ("\u200b", "", Outcome.UNPARSED),
        ("not Paris", "Paris", Outcome.WRONG),
    ],
)
def test_texts_are_compared_by_their_words(answer: str, gold: str, outcome: Outcome) -> None:
    """And an empty answer never equals an empty gold."""
    assert compare_text(answer, gold, ignore_articles=True, ignore_punctuation=True).outcome is outcome


def test_one_of_several_golds_is_enough() -> None:
    """Names have spellings."""
    assert compare_text("NYC", ["New York", "nyc"]).correct
    assert not compare_text("NYC", ["New York", "nyc"], ignore_case=False).correct
