"""A filter means what it says, and nothing that is typed is ever executed."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.view.database import RunDatabase
from nemo_gym.view.filters import FilterError, full_text_query, parse_filter


@pytest.mark.parametrize(
    ("typed", "places"),
    [
        ("", [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
        ("reward < 1", [(1, 0), (1, 1)]),
        ("reward >= 1 and task > 0", [(2, 0)]),
        ('outcome == "failed"', [(2, 1)]),
        ('not outcome == "failed" and repeat == 0', [(0, 0), (1, 0), (2, 0)]),
        ("0 < task <= 1", [(1, 0), (1, 1)]),
        ('"NOTH" in extracted', [(1, 0), (1, 1)]),
        ('"noth" not in extracted and reward == 1', [(0, 0), (0, 1), (2, 0)]),
        ("reward == None", [(2, 1)]),
        ("extracted == expected and reward != None", [(0, 0), (0, 1), (2, 0)]),
        ("tokens > 14 and reward > -1 and (task == 0 or task == 2)", [(0, 0), (0, 1), (2, 0)]),
        ('kind == "timeout" or message == "too slow"', [(2, 1)]),
    ],
)
def test_a_filter_chooses_the_rows_it_describes(index: RunDatabase, typed: str, places: list[tuple[int, int]]) -> None:
    """The filter is how rollouts are found."""
    assert [(row["task"], row["rollout"]) for row in index.page(filter_text=typed).rows] == places


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("reward <", "cannot read"),
        ("rewards < 1", "reward"),
        ("__import__('os').system('x') == 0", "neither a column nor a value"),
        ("reward", "not a comparison"),
        ("(lambda: 1)() == 1", "neither a column nor a value"),
        ("reward is None", "only <"),
        ("task == 99999999999999999999", "too large"),
        ("x" * 3000, "characters"),
        ("task == 1 or " * 100 + "task == 1", "too long"),
        ("(" * 500 + "1" + ")" * 500 + " == 1", "cannot read"),
    ],
)
def test_a_filter_that_cannot_be_parsed_is_explained(typed: str, message: str) -> None:
    """The user must see what to write instead."""
    with pytest.raises(FilterError, match=message):
        parse_filter(typed)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_the_filter_or_the_search(text: str) -> None:
    """Whatever is typed gives rows or a message."""
    full_text_query(text)
    with contextlib.suppress(FilterError):
        parse_filter(text)


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1, max_size=30))
def test_values_reach_the_database_bound_and_never_as_sql(text: str) -> None:
    """A quotation mark in an answer must not become part of a statement."""
    assert parse_filter(f"answer == {text!r}").values == (text,)


@pytest.mark.parametrize(("words", "count"), [("it is", 5), ("too sl", 1), ("nothing", 2), ('"; DROP', 0), ("", 6)])
def test_words_are_found_by_their_beginnings(index: RunDatabase, words: str, count: int) -> None:
    """Users type part of a word."""
    assert index.page(words=words).total == count
