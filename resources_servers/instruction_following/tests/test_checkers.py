"""Try each instruction with texts that follow it and texts that nearly do."""

import string
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.language import detect_language, is_written_in
from resources_servers.instruction_following.checking import CHECKERS, check_instruction
from resources_servers.instruction_following.tests.cases import CASES, GERMAN, Case
from resources_servers.instruction_following.text import sentences


@pytest.mark.parametrize(
    ("name", "kwargs", "text"), [(name, kwargs, text) for name, kwargs, right, _ in CASES for text in right]
)
def test_a_text_that_follows_the_instruction_is_accepted(name: str, kwargs: dict[str, Any], text: str) -> None:
    """A right answer judged wrong is a lesson lost."""
    result = check_instruction(name, kwargs, text)

    assert (result.followed, result.problem) == (True, None)


@pytest.mark.parametrize(
    ("name", "kwargs", "text"), [(name, kwargs, text) for name, kwargs, _, wrong in CASES for text in wrong]
)
def test_a_text_that_nearly_follows_the_instruction_is_refused(name: str, kwargs: dict[str, Any], text: str) -> None:
    """A policy learns to do only what is rewarded."""
    result = check_instruction(name, kwargs, text)

    assert (result.followed, result.problem) == (False, None)


def test_every_instruction_has_both_kinds_of_texts() -> None:
    """A checker without both kinds of texts may be a constant."""
    assert {name for name, _, right, wrong in CASES if right and wrong} == set(CHECKERS)


@pytest.mark.parametrize("name", CHECKERS)
def test_an_empty_reply_follows_no_instruction(name: str) -> None:
    """An empty reply has no comma, but is no answer."""
    kwargs = next(kwargs for case, kwargs, _, _ in CASES if case == name)

    assert not any(check_instruction(name, kwargs, text).followed for text in ("", " \n\t"))


def test_null_arguments_and_those_of_other_instructions_are_ignored() -> None:
    """Published tables have a column for every argument of every instruction."""
    kwargs = {"num_words": 2.0, "relation": "at least", "keywords": None, "first_word": None, "language": "de"}

    assert check_instruction("length_constraints:number_words", kwargs, "two words").followed
    assert check_instruction("punctuation:no_comma", None, "two words").followed


@pytest.mark.parametrize(
    ("name", "kwargs", "problem"),
    [
        ("keywords:telepathy", {}, "there is no instruction 'keywords:telepathy'"),
        ("length_constraints:number_words", {"relation": "at least"}, "num_words: Missing required"),
        ("length_constraints:number_words", {"num_words": 2, "relation": "about"}, "relation: Input should be"),
        ("length_constraints:number_words", {"num_words": "few", "relation": "at least"}, "num_words: Input should be"),
        (
            "keywords:letter_frequency",
            {"letter": "ab", "let_frequency": 1, "let_relation": "at least"},
            "one character",
        ),
        ("copy:repeat_phrase", {"phrase": "so short", "small_n": 1}, "no middle"),
    ],
)
def test_an_instruction_that_cannot_be_checked_is_not_followed_and_named(
    name: str, kwargs: dict[str, Any], problem: str
) -> None:
    """An instruction without its arguments must not give a random reward."""
    result = check_instruction(name, kwargs, "Some words.")

    assert not result.followed
    assert problem in str(result.problem)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(CASES),
    st.text(alphabet=string.ascii_letters + string.digits + " \n\t*_-.,!?<>[]{}\"'#`“…。P.S:", max_size=300),
)
def test_no_text_makes_a_checker_fail(case: Case, text: str) -> None:
    """Models write anything."""
    name, kwargs, _, _ = case

    assert check_instruction(name, kwargs, text).problem is None


@pytest.mark.parametrize("piece", ["*", "[", "<<", "- ", "P.", ". ", "Section 1 ", "\n\n", '"', "a", "***", "* a *"])
def test_a_very_long_text_is_checked_in_linear_time(piece: str) -> None:
    """A reply that rambles must not block the server: quadratic time would be minutes."""
    text = piece * 20_000
    start = time.process_time()
    for name, kwargs, _, _ in CASES:
        check_instruction(name, kwargs, text)

    assert time.process_time() - start < 15


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("Hello", 1),
        ("Hello. World", 2),
        ("Dr. Smith and Mrs. Jones live in St. Ives.", 1),
        ("It was 3.5 m. Then it grew.", 2),
        ("They sell nails, screws, etc. The shop is old.", 2),
        ("It opens at 9 a.m. every day.", 1),
        ('"Really?" he asked. "Yes!"', 2),
        ("Wait... what? No!", 2),
        ("J. R. R. Tolkien wrote it.", 1),
        ("So did I. Then we left.", 2),
        ("1. Bread\n2. Butter", 1),
        ("See www.example.com for more. Bye!", 2),
        ("What?! No way.", 2),
        ("A heading\n\nA sentence.", 1),
        ("यह पहला वाक्य है। यह दूसरा है।", 2),
        ("(He left.) She stayed.", 2),
    ],
)
def test_sentences_are_counted_as_people_count_them(text: str, count: int) -> None:
    """Abbreviations, initials, numbers and list markers do not end a sentence."""
    assert len(sentences(text)) == count


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab .!?\n\"'。…1", max_size=120))
def test_splitting_into_sentences_loses_nothing_but_space_and_marks(text: str) -> None:
    """Every letter belongs to one sentence."""
    together = "".join(sentences(text))

    assert [c for c in together if c.isalnum()] == [c for c in text if c.isalnum()]


def test_the_same_text_has_the_same_language_every_time() -> None:
    """langdetect is random, so its seed must be fixed."""
    text = "Hotel, taxi, radio, sauna"

    assert len({detect_language(text) for _ in range(30)}) == 1
    assert detect_language("12345 !!") is None
    assert [detect_language(text) for text in ("你好吗？", "こんにちは。", "안녕하세요", "日本語を話す")] == [
        "zh-cn",
        "ja",
        "ko",
        "ja",
    ]
    assert is_written_in(GERMAN, "DE")
