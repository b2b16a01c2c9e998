"""Inline reasoning: `<think>…</think>`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.convert.chat_conversation import outside_think_tags, parse_think_tags, wrap_in_think_tags

words = st.text(alphabet="ab \n<>/é", max_size=8).filter(lambda text: "think" not in text)


@pytest.mark.parametrize(
    ("content", "thoughts", "rest"),
    [
        ("<think>I'm thinking</think>Hi there!", ["I'm thinking"], "Hi there!"),
        ("<think>a\nb</think>\n\nHi", ["a\nb"], "\n\nHi"),
        ("<think>one</think>mid<think>two</think>end", ["one", "two"], "midend"),
        ("<think></think>Hi", [""], "Hi"),
        ("no thoughts", [], "no thoughts"),
        ("<think>never closed", [], "<think>never closed"),
        ("", [], ""),
    ],
)
def test_thoughts_are_cut_out_of_the_text(content: str, thoughts: list[str], rest: str) -> None:
    """Verifiers read the answer; the thoughts must not be graded with it, nor lost."""
    assert parse_think_tags(content) == (thoughts, rest)


@given(st.lists(words, max_size=3), words)
@settings(max_examples=100, deadline=None)
def test_wrapped_thoughts_are_found_again(thoughts: list[str], text: str) -> None:
    """What one conversion writes the other one reads."""
    assert parse_think_tags(wrap_in_think_tags(thoughts) + text) == (thoughts, text)


def test_tokens_of_thoughts_are_reported_from_tokens_of_the_text() -> None:
    """Log-probabilities belong to the text they spell, not to the thoughts cut out of it."""
    tokens = ["<think>", "a", "</think>", "Hi", " there", "<think>b</think>", "!"]

    kept = outside_think_tags("".join(tokens), tokens)

    assert [tokens[index] for index in kept] == ["Hi", " there", "!"]


def test_tokens_that_spell_something_else_are_all_kept() -> None:
    """Some servers report token ids instead of text: better too many than wrong ones."""
    assert outside_think_tags("<think>a</think>b", ["token_id:1", "token_id:2"]) == [0, 1]
