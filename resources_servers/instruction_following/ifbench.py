"""Those instructions of IFBench that need no list of names, syllables or emoji, graded by what each one says."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from resources_servers.instruction_following.text import sentences, whole_words, words

CONJUNCTIONS = frozenset({"for", "and", "nor", "but", "or", "yet", "so"})
PUNCTUATION = (".", ",", "!", "?", ";", ":")
DEEPEST_WANTED = 5
PALINDROMES, SHORTEST_PALINDROME = 10, 5

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?![\w])")
_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}", re.IGNORECASE)
_BRACKET = re.compile(r"[()\[\]{}]")
_CLOSES = {")": "(", "]": "[", "}": "{"}


def plain(text: str) -> list[str]:
    return [word.casefold() for word in whole_words(text)]


# -- counting


def word_count_range(text: str, *, min_words: int, max_words: int) -> bool:
    return min_words <= len(whole_words(text)) <= max_words


def unique_word_count(text: str, *, N: int) -> bool:  # noqa: N803
    return len(set(plain(text))) >= N


def conjunctions(text: str, *, small_n: int) -> bool:
    """Different coordinating conjunctions."""
    return len(CONJUNCTIONS & set(plain(text))) >= small_n


def numbers(text: str, *, N: int) -> bool:  # noqa: N803
    return len(_NUMBER.findall(text)) == N


def punctuation(text: str) -> bool:
    """Every standard mark, and `?!` or `‽`, beside a plain question and exclamation mark."""
    rest = re.sub(r"\?!|!\?|‽", " ", text)
    return rest != text and all(mark in rest for mark in PUNCTUATION)


# -- words


def alphabet(text: str) -> bool:
    """Each word begins with the next letter; Z is followed by A."""
    first = [word[0] for word in plain(text)]
    return all(letter.isascii() and letter.isalpha() for letter in first) and all(
        (ord(two) - ord(one)) % 26 == 1 for one, two in pairwise(first)
    )


def palindromes(text: str) -> bool:
    found = {word for word in map(str.casefold, words(text)) if len(word) >= SHORTEST_PALINDROME and word == word[::-1]}
    return len(found) >= PALINDROMES


def prime_lengths(text: str) -> bool:
    lengths = {sum(character.isalnum() for character in word) for word in whole_words(text)}
    return bool(lengths) and all(length > 1 and all(length % n for n in range(2, length)) for length in lengths)


def repeats(text: str, *, small_n: int) -> bool:
    return max(Counter(plain(text)).values(), default=0) <= small_n


def no_consecutive(text: str) -> bool:
    """No two neighbouring words begin with the same letter."""
    return all(one != two for one, two in pairwise(word[0] for word in plain(text)))


def last_first(text: str) -> bool:
    """Each sentence begins with the last word of the one before."""
    found = [said for sentence in sentences(text) if (said := plain(sentence))]
    return len(found) > 1 and all(one[-1] == two[0] for one, two in pairwise(found))


def paragraph_last_first(text: str) -> bool:
    """Each paragraph ends with the word it began with."""
    found = [said for line in text.splitlines() if (said := plain(line))]
    return bool(found) and all(len(said) > 1 and said[0] == said[-1] for said in found)


def consonants(text: str) -> bool:
    """Two consonants together in every word."""
    found = whole_words(text)
    return bool(found) and all(_CLUSTER.search(word) for word in found)


# -- sentences


def sentence_keyword(text: str, *, word: str, N: int) -> bool:  # noqa: N803
    found = sentences(text)
    return 1 <= N <= len(found) and word.strip().casefold() in plain(found[N - 1])


def sentence_increment(text: str, *, small_n: int) -> bool:
    """Each sentence has exactly so many words more than the one before."""
    lengths = [len(whole_words(sentence)) for sentence in sentences(text)]
    return len(lengths) > 1 and all(two - one == small_n for one, two in pairwise(lengths))


# -- format


def no_whitespace(text: str) -> bool:
    return not re.search(r"\s", text.strip())


def newline(text: str) -> bool:
    """One word on each line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) > 1 and all(len(line.split()) == 1 for line in lines)


def parentheses(text: str) -> bool:
    """Brackets of any kind, properly closed, five deep."""
    open_ones: list[str] = []
    deepest = 0
    for mark in _BRACKET.findall(text):
        if mark in _CLOSES:
            if not open_ones or open_ones.pop() != _CLOSES[mark]:
                return False
            continue
        open_ones.append(mark)
        deepest = max(deepest, len(open_ones))
    return not open_ones and deepest >= DEEPEST_WANTED


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
