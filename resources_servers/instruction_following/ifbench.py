"""The instructions of IFBench that need no list of names, syllables or emoji, checked literally."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from resources_servers.instruction_following.text import sentences, whole_words, words

CONJUNCTIONS = frozenset({"for", "and", "nor", "but", "or", "yet", "so"})
PUNCTUATION = (".", ",", "!", "?", ";", ":")
REQUIRED_DEPTH = 5
PALINDROMES, SHORTEST_PALINDROME = 10, 5

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?![\w])")
_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}", re.IGNORECASE)
_BRACKET = re.compile(r"[()\[\]{}]")
_CLOSES = {")": "(", "]": "[", "}": "{"}


def folded_words(text: str) -> list[str]:
    return [word.casefold() for word in whole_words(text)]


# -- counting


def word_count_range(text: str, *, min_words: int, max_words: int) -> bool:
    return min_words <= len(whole_words(text)) <= max_words


def unique_word_count(text: str, *, N: int) -> bool:  # noqa: N803
    return len(set(folded_words(text))) >= N


def conjunctions(text: str, *, small_n: int) -> bool:
    """Count different coordinating conjunctions."""
    return len(CONJUNCTIONS & set(folded_words(text))) >= small_n


def numbers(text: str, *, N: int) -> bool:  # noqa: N803
    return len(_NUMBER.findall(text)) == N


def punctuation(text: str) -> bool:
    """Require every standard mark, and `?!` or `‽` besides a separate question mark and exclamation mark."""
    rest = re.sub(r"\?!|!\?|‽", " ", text)
    return rest != text and all(mark in rest for mark in PUNCTUATION)


# -- words


def alphabet(text: str) -> bool:
    """Require that each word begins with the next letter; A follows Z."""
    first = [word[0] for word in folded_words(text)]
    return all(letter.isascii() and letter.isalpha() for letter in first) and all(
        (ord(two) - ord(one)) % 26 == 1 for one, two in pairwise(first)
    )


def palindromes(text: str) -> bool:
    unique_palindromes = {
        word for word in map(str.casefold, words(text)) if len(word) >= SHORTEST_PALINDROME and word == word[::-1]
    }
    return len(unique_palindromes) >= PALINDROMES


def prime_lengths(text: str) -> bool:
    lengths = {sum(character.isalnum() for character in word) for word in whole_words(text)}
    return bool(lengths) and all(length > 1 and all(length % n for n in range(2, length)) for length in lengths)


def repeats(text: str, *, small_n: int) -> bool:
    return max(Counter(folded_words(text)).values(), default=0) <= small_n


def no_consecutive(text: str) -> bool:
    """Require that no two neighbouring words begin with the same letter."""
    return all(one != two for one, two in pairwise(word[0] for word in folded_words(text)))


def last_first(text: str) -> bool:
    """Require that each sentence begins with the last word of the previous one."""
    word_lists = [sentence_words for sentence in sentences(text) if (sentence_words := folded_words(sentence))]
    return len(word_lists) > 1 and all(one[-1] == two[0] for one, two in pairwise(word_lists))


def paragraph_last_first(text: str) -> bool:
    """Require that each paragraph ends with its first word."""
    word_lists = [line_words for line in text.splitlines() if (line_words := folded_words(line))]
    return bool(word_lists) and all(
        len(line_words) > 1 and line_words[0] == line_words[-1] for line_words in word_lists
    )


def consonants(text: str) -> bool:
    """Require two adjacent consonants in every word."""
    all_words = whole_words(text)
    return bool(all_words) and all(_CLUSTER.search(word) for word in all_words)


# -- sentences


def sentence_keyword(text: str, *, word: str, N: int) -> bool:  # noqa: N803
    parts = sentences(text)
    return 1 <= N <= len(parts) and word.strip().casefold() in folded_words(parts[N - 1])


def sentence_increment(text: str, *, small_n: int) -> bool:
    """Require that each sentence has exactly `small_n` words more than the previous one."""
    lengths = [len(whole_words(sentence)) for sentence in sentences(text)]
    return len(lengths) > 1 and all(two - one == small_n for one, two in pairwise(lengths))


# -- format


def no_whitespace(text: str) -> bool:
    return not re.search(r"\s", text.strip())


def newline(text: str) -> bool:
    """Require one word on each line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) > 1 and all(len(line.split()) == 1 for line in lines)


def parentheses(text: str) -> bool:
    """Require properly closed brackets of any kind, nested five deep."""
    open_brackets: list[str] = []
    deepest = 0
    for mark in _BRACKET.findall(text):
        if mark in _CLOSES:
            if not open_brackets or open_brackets.pop() != _CLOSES[mark]:
                return False
            continue
        open_brackets.append(mark)
        deepest = max(deepest, len(open_brackets))
    return not open_brackets and deepest >= REQUIRED_DEPTH


IFBENCH: dict[str, Callable[..., bool]] = {
    "count:word_count_range": word_count_range,
    "count:unique_word_count": unique_word_count,
    "count:conjunctions": conjunctions,
    "count:numbers": numbers,
    "count:punctuation": punctuation,
    "words:alphabet": alphabet,
    "words:palindrome": palindromes,
    "words:prime_lengths": prime_lengths,
    "words:repeats": repeats,
    "words:no_consecutive": no_consecutive,
    "words:last_first": last_first,
    "words:paragraph_last_first": paragraph_last_first,
    "words:consonants": consonants,
    "sentence:keyword": sentence_keyword,
    "sentence:increment": sentence_increment,
    "format:no_whitespace": no_whitespace,
    "format:newline": newline,
    "format:parentheses": parentheses,
}
