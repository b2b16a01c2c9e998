"""The instructions that IFEval-style training data adds, graded by what each one says."""

import re
from collections.abc import Callable
from itertools import pairwise

from resources_servers.instruction_following.ifeval import keywords_frequency, letter_frequency, occurrences
from resources_servers.instruction_following.text import (
    Relation,
    compares,
    divided,
    sentences,
    whole_words,
    words,
)

SHORTEST_PALINDROME = 3

_BIGRAM = re.compile(r"<<\s*([^\s<>]+)\s+([^\s<>]+)\s*>>[.,;:!?]*")
_LAST_BIGRAM = re.compile(r"<<\s*[^\s<>]+\s*>>[.,;:!?]*")
_LOWER = re.compile(r"(?<![\w])[a-z]+(?![\w])")


def same(text: str, wanted: str) -> bool:
    return text.strip().casefold() == wanted.strip().casefold()


def bare(word: str) -> str:
    """A word without the marks around it, for comparing."""
    return re.sub(r"^\W+|\W+$", "", word).casefold()


# -- copying


def repeat_phrase(text: str, *, phrase: str, small_n: int) -> bool:
    """The phrase so many times, each time with one word in its middle replaced."""
    wanted = [bare(word) for word in phrase.split()]
    if len(wanted) < 3:
        raise ValueError("`phrase` has no middle")
    said = [bare(word) for word in text.split()]
    changed, position = 0, 0
    while position + len(wanted) <= len(said):
        here = said[position : position + len(wanted)]
        differences = sum(one != other for one, other in zip(here, wanted, strict=True))
        if differences == 0:
            return False
        if differences == 1 and here[0] == wanted[0] and here[-1] == wanted[-1]:
            changed, position = changed + 1, position + len(wanted)
        else:
            position += 1
    return changed == small_n


def copy(text: str, *, prompt_to_repeat: str) -> bool:
    return same(text, prompt_to_repeat)


def copying_multiple(text: str, *, prompt_to_repeat: str, N: int) -> bool:  # noqa: N803
    parts = text.split("******")
    return len(parts) == N and all(same(part, prompt_to_repeat) for part in parts)


def copy_span_idx(text: str, *, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """From one character to the other; the last one may be left out, as the data itself does."""
    return same(text, prompt_to_repeat[n_start:n_end]) or same(text, prompt_to_repeat[n_start : n_end + 1])


# -- words


def word_once(text: str, *, keyword: str) -> bool:
    return occurrences(keyword, text) == 1


def exclude_word(text: str, *, keyword: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(keyword.strip())}(?!\w)", text) is None


def no_adjacent_consecutive(text: str) -> bool:
    first = [word[0].casefold() for word in whole_words(text)]
    return not any(one.isalpha() and two.isalpha() and ord(two[0]) - ord(one[0]) == 1 for one, two in pairwise(first))


def palindrome(text: str) -> bool:
    """A word of three letters or more that is the same from behind."""
    return any(len(word) >= SHORTEST_PALINDROME and word == word[::-1] for word in map(str.casefold, words(text)))


def keyword_specific_position(text: str, *, keyword: str, n: int, m: int) -> bool:
    """The keyword is the m-th word of the n-th sentence."""
    found = sentences(text)
    if not 1 <= n <= len(found):
        return False
    said = whole_words(found[n - 1])
    return 1 <= m <= len(said) and said[m - 1].casefold() == keyword.strip().casefold()


def start_end(text: str) -> bool:
    """The same word first and last, with nothing behind it."""
    said = text.split()
    return len(said) >= 2 and said[-1][-1].isalnum() and bare(said[0]) == bare(said[-1])


def first_word_sent(text: str, *, first_word: str) -> bool:
    found = sentences(text)
    return bool(found) and all(bare(sentence.split()[0]) == first_word.strip().casefold() for sentence in found)


def first_word_answer(text: str, *, first_word: str) -> bool:
    return bare(text.split()[0]) == first_word.strip().casefold()


def last_word_sent(text: str, *, last_word: str) -> bool:
    found = sentences(text)
    return bool(found) and all(bare(sentence.split()[-1]) == last_word.strip().casefold() for sentence in found)


def last_word_answer(text: str, *, last_word: str) -> bool:
    return bare(text.split()[-1]) == last_word.strip().casefold()


# -- counting


def lowercase_counting(text: str, *, N: int) -> bool:  # noqa: N803
    return len(_LOWER.findall(text)) <= N


def letter_counting(text: str, *, N: int, relation: Relation) -> bool:  # noqa: N803
    return compares(sum(character.isalpha() for character in text), relation, N)


def counting_composition(text: str, *, n_sent: int, n_words: int) -> bool:
    """Three paragraphs parted by `* * *` or `***`, each of so many sentences of so many words."""
    paragraphs = divided(re.sub(r"\* ?\* ?\*", "***", text), "***")
    if paragraphs is None or len(paragraphs) != 3:
        return False
    each = [sentences(paragraph) for paragraph in paragraphs]
    return all(len(found) == n_sent and all(len(whole_words(one)) == n_words for one in found) for found in each)


def count_unique(text: str) -> bool:
    said = [word.casefold() for word in whole_words(text)]
    return len(said) == len(set(said))


def count_increment_word(text: str, *, keyword1: str, keyword2: str) -> bool:
    return occurrences(keyword1, text) == 1 and occurrences(keyword2, text) == 2


# -- paragraphs, brackets and marks


def two_divided_paragraphs(text: str) -> bool:
    found = divided(text, "***")
    return found is not None and len(found) == 2


def two_paragraphs(text: str) -> bool:
    found = divided(text, "\n\n")
    return found is not None and len(found) == 2


def sentence_hyphens(text: str) -> bool:
    """Sentences are joined by a hyphen, `One.-Two.`, and by nothing else."""
    inside = text.strip()
    return len(sentences(inside)) == 1 and re.search(r"[.!?]-(?=\w)", inside) is not None and "\n" not in inside


def square_brackets(text: str) -> bool:
    return all(re.fullmatch(r"\[[^\[\]]+\][.,;:!?]?", word) for word in text.split())


def bigram_wrapping(text: str) -> bool:
    """Two words in each pair of brackets; an odd last word may stand alone in its own."""
    rest = _BIGRAM.sub("", text).strip()
    return _BIGRAM.search(text) is not None and (not rest or _LAST_BIGRAM.fullmatch(rest) is not None)


def no_dot(text: str) -> bool:
    return "." not in text


def no_exclamation(text: str) -> bool:
    return "!" not in text and "！" not in text


EXTENDED: dict[str, Callable[..., bool]] = {
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
