"""Normalisation and comparison of text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.result_types import VerdictKind
from nemo_gym.grading.text import compare_text, fold, normalise_text


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
def test_characters_are_folded_to_common_ones(text: str, plain: str) -> None:
    """A raised 2 is not the digit 2: 5² must never read as 52."""
    assert fold(text).text == plain


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_folding_twice_changes_nothing_more(text: str) -> None:
    """Otherwise equality would depend on how often a text was cleaned."""
    once = normalise_text(text)

    assert normalise_text(once) == once


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
        ("paris", "Paris", VerdictKind.CORRECT),
        ("The Eiffel Tower!", "eiffel tower", VerdictKind.CORRECT),
        ("Lyon", "Paris", VerdictKind.WRONG),
        ("", "", VerdictKind.UNPARSED),
        ("\u200b", "", VerdictKind.UNPARSED),
        ("not Paris", "Paris", VerdictKind.WRONG),
    ],
)
def test_texts_are_compared_by_their_words(answer: str, gold: str, outcome: VerdictKind) -> None:
    """An empty answer must not equal an empty gold."""
    assert compare_text(answer, gold, ignore_articles=True, ignore_punctuation=True).outcome is outcome


def test_one_of_several_golds_is_enough() -> None:
    """Names have several spellings."""
    assert compare_text("NYC", ["New York", "nyc"]).correct
    assert not compare_text("NYC", ["New York", "nyc"], ignore_case=False).correct
