"""The instructions that IFEval-style training data adds, checked literally."""

import re
from collections.abc import Callable
from itertools import pairwise

from resources_servers.instruction_following.ifeval import keywords_frequency, letter_frequency, occurrences
from resources_servers.instruction_following.text import (
    Relation,
    satisfies_relation,
    sentences,
    split_parts,
    whole_words,
    words,
)

SHORTEST_PALINDROME = 3

_BIGRAM = re.compile(r"<<\s*([^\s<>]+)\s+([^\s<>]+)\s*>>[.,;:!?]*")
_LAST_BIGRAM = re.compile(r"<<\s*[^\s<>]+\s*>>[.,;:!?]*")
_LOWER = re.compile(r"(?<![\w])[a-z]+(?![\w])")


def is_same_text(text: str, expected: str) -> bool:
    return text.strip().casefold() == expected.strip().casefold()


def strip_marks(word: str) -> str:
    """Return a word without the marks around it, for comparison."""
    return re.sub(r"^\W+|\W+$", "", word).casefold()


# -- copying


def repeat_phrase(text: str, *, phrase: str, small_n: int) -> bool:
    """Require `small_n` repetitions of the phrase, each with one word in its middle replaced."""
    expected = [strip_marks(word) for word in phrase.split()]
    if len(expected) < 3:
        raise ValueError("`phrase` has no middle")
    text_words = [strip_marks(word) for word in text.split()]
    matches, position = 0, 0
    while position + len(expected) <= len(text_words):
        here = text_words[position : position + len(expected)]
        differences = sum(one != other for one, other in zip(here, expected, strict=True))
        if differences == 0:
            return False
        if differences == 1 and here[0] == expected[0] and here[-1] == expected[-1]:
            matches, position = matches + 1, position + len(expected)
        else:
            position += 1
    return matches == small_n


def copy(text: str, *, prompt_to_repeat: str) -> bool:
    return is_same_text(text, prompt_to_repeat)


def copying_multiple(text: str, *, prompt_to_repeat: str, N: int) -> bool:  # noqa: N803
    parts = text.split("******")
    return len(parts) == N and all(is_same_text(part, prompt_to_repeat) for part in parts)


def copy_span_idx(text: str, *, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Require the span of characters; its last one may be missing, as in the data."""
    return is_same_text(text, prompt_to_repeat[n_start:n_end]) or is_same_text(
        text, prompt_to_repeat[n_start : n_end + 1]
    )


# -- words


def word_once(text: str, *, keyword: str) -> bool:
    return occurrences(keyword, text) == 1


def exclude_word(text: str, *, keyword: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(keyword.strip())}(?!\w)", text) is None


def no_adjacent_consecutive(text: str) -> bool:
    first = [word[0].casefold() for word in whole_words(text)]
    return not any(one.isalpha() and two.isalpha() and ord(two[0]) - ord(one[0]) == 1 for one, two in pairwise(first))


def palindrome(text: str) -> bool:
    """Find a word of three or more letters that reads the same backwards."""
    return any(len(word) >= SHORTEST_PALINDROME and word == word[::-1] for word in map(str.casefold, words(text)))


def keyword_specific_position(text: str, *, keyword: str, n: int, m: int) -> bool:
    """Require the keyword as the m-th word of the n-th sentence."""
    parts = sentences(text)
    if not 1 <= n <= len(parts):
        return False
    sentence_words = whole_words(parts[n - 1])
    return 1 <= m <= len(sentence_words) and sentence_words[m - 1].casefold() == keyword.strip().casefold()


def start_end(text: str) -> bool:
    """Require the same word first and last, with nothing after it."""
    tokens = text.split()
    return len(tokens) >= 2 and tokens[-1][-1].isalnum() and strip_marks(tokens[0]) == strip_marks(tokens[-1])


def first_word_sent(text: str, *, first_word: str) -> bool:
    parts = sentences(text)
    return bool(parts) and all(strip_marks(sentence.split()[0]) == first_word.strip().casefold() for sentence in parts)


def first_word_answer(text: str, *, first_word: str) -> bool:
    return strip_marks(text.split()[0]) == first_word.strip().casefold()


def last_word_sent(text: str, *, last_word: str) -> bool:
    parts = sentences(text)
    return bool(parts) and all(strip_marks(sentence.split()[-1]) == last_word.strip().casefold() for sentence in parts)


def last_word_answer(text: str, *, last_word: str) -> bool:
    return strip_marks(text.split()[-1]) == last_word.strip().casefold()


# -- counting


def lowercase_counting(text: str, *, N: int) -> bool:  # noqa: N803
    return len(_LOWER.findall(text)) <= N


def letter_counting(text: str, *, N: int, relation: Relation) -> bool:  # noqa: N803
    return satisfies_relation(sum(character.isalpha() for character in text), relation, N)


def counting_composition(text: str, *, n_sent: int, n_words: int) -> bool:
    """Require three paragraphs separated by `* * *` or `***`, with `n_sent` sentences of `n_words` words each."""
    paragraphs = split_parts(re.sub(r"\* ?\* ?\*", "***", text), "***")
    if paragraphs is None or len(paragraphs) != 3:
        return False
    sentences_by_paragraph = [sentences(paragraph) for paragraph in paragraphs]
    return all(
        len(parts) == n_sent and all(len(whole_words(one)) == n_words for one in parts)
        for parts in sentences_by_paragraph
    )


def count_unique(text: str) -> bool:
    folded_words = [word.casefold() for word in whole_words(text)]
    return len(folded_words) == len(set(folded_words))


def count_increment_word(text: str, *, keyword1: str, keyword2: str) -> bool:
    return occurrences(keyword1, text) == 1 and occurrences(keyword2, text) == 2


# -- paragraphs, brackets and marks


def two_divided_paragraphs(text: str) -> bool:
    paragraphs = split_parts(text, "***")
    return paragraphs is not None and len(paragraphs) == 2


def two_paragraphs(text: str) -> bool:
    paragraphs = split_parts(text, "\n\n")
    return paragraphs is not None and len(paragraphs) == 2


def sentence_hyphens(text: str) -> bool:
    """Require that sentences are joined only by a hyphen: `One.-Two.`."""
    inside = text.strip()
    return len(sentences(inside)) == 1 and re.search(r"[.!?]-(?=\w)", inside) is not None and "\n" not in inside


def square_brackets(text: str) -> bool:
    return all(re.fullmatch(r"\[[^\[\]]+\][.,;:!?]?", word) for word in text.split())


def bigram_wrapping(text: str) -> bool:
    """Require two words in each pair of brackets; an odd last word may be alone in its brackets."""
    rest = _BIGRAM.sub("", text).strip()
    return _BIGRAM.search(text) is not None and (not rest or _LAST_BIGRAM.fullmatch(rest) is not None)


def no_dot(text: str) -> bool:
    return "." not in text


def no_exclamation(text: str) -> bool:
    return "!" not in text and "！" not in text


IFEVAL_TRAINING: dict[str, Callable[..., bool]] = {
    "copy:repeat_phrase": repeat_phrase,
    "copy:copy": copy,
    "copy:copying_simple": copy,
    "copy:copying_multiple": copying_multiple,
    "new:copy_span_idx": copy_span_idx,
    "keywords:word_once": word_once,
    "keywords:word_count_different_numbers": keywords_frequency,
    "keywords:exclude_word_harder": exclude_word,
    "keywords:no_adjacent_consecutive": no_adjacent_consecutive,
    "keywords:palindrome": palindrome,
    "keywords:keyword_specific_position": keyword_specific_position,
    "keywords:start_end": start_end,
    "first_word:first_word_sent": first_word_sent,
    "first_word:first_word_answer": first_word_answer,
    "last_word:last_word_sent": last_word_sent,
    "last_word:last_word_answer": last_word_answer,
    "count:lowercase_counting": lowercase_counting,
    "count:counting_composition": counting_composition,
    "count:count_unique": count_unique,
    "count:count_increment_word": count_increment_word,
    "letters:letter_counting": letter_counting,
    "letters:letter_counting2": letter_frequency,
    "paragraphs:paragraphs": two_divided_paragraphs,
    "paragraphs:paragraphs2": two_paragraphs,
    "detectable_format:sentence_hyphens": sentence_hyphens,
    "detectable_format:square_brackets": square_brackets,
    "detectable_format:bigram_wrapping": bigram_wrapping,
    "punctuation:punctuation_dot": no_dot,
    "punctuation:punctuation_exclamation": no_exclamation,
}
