"""The 25 instructions of IFEval: one function each, with the arguments of its dataset."""

import re
from collections.abc import Callable

from nemo_gym.grading.data_formats import MalformedData, parse_json
from nemo_gym.grading.extraction import fenced_blocks
from nemo_gym.grading.language import is_written_in
from resources_servers.instruction_following.text import (
    Relation,
    satisfies_relation,
    sentences,
    split_parts,
    whole_words,
    words,
)

CONSTRAINED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_PLACEHOLDER = re.compile(r"\[[^\[\]\n]*\w[^\[\]\n]*\]")
_BULLET = re.compile(r"^[ \t]*(?:[*-][ \t]+\S|-[^\W\d_])", re.MULTILINE)
_HIGHLIGHT = re.compile(r"(?<!\*)(\*{1,3})(?![\s*])[^*\n]*(?<!\s)\1(?!\*)")
_TITLE = re.compile(r"<<[^\n<>]*[^\s<>][^\n<>]*>>")
_FIRST_WORD = re.compile(r"[^\w]*([\w-]+)")


def occurrences(word: str, text: str) -> int:
    """Count `word` in `text`, in any case, also inside other words."""
    return text.casefold().count(word.strip().casefold()) if word.strip() else 0


# -- keywords


def keywords_existence(text: str, *, keywords: list[str]) -> bool:
    return all(occurrences(keyword, text) for keyword in keywords)


def keywords_frequency(text: str, *, keyword: str, frequency: int, relation: Relation) -> bool:
    return satisfies_relation(occurrences(keyword, text), relation, frequency)


def forbidden_words(text: str, *, forbidden_words: list[str]) -> bool:
    matches = (re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE) for word in forbidden_words)
    return not any(matches)


def letter_frequency(text: str, *, letter: str, let_frequency: int, let_relation: Relation) -> bool:
    if len(letter.strip()) != 1:
        raise ValueError(f"`letter` {letter!r} is not one character")
    return satisfies_relation(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


# -- language


def response_language(text: str, *, language: str) -> bool:
    return is_written_in(text, language)


# -- length


def number_sentences(text: str, *, num_sentences: int, relation: Relation) -> bool:
    return satisfies_relation(len(sentences(text)), relation, num_sentences)


def number_paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """Count paragraphs separated by `***`."""
    paragraphs = split_parts(text, "***")
    return paragraphs is not None and len(paragraphs) == num_paragraphs


def number_words(text: str, *, num_words: int, relation: Relation) -> bool:
    return satisfies_relation(len(words(text)), relation, num_words)


def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Check the first word of a paragraph; paragraphs are separated by an empty line."""
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    first = _FIRST_WORD.match(paragraphs[nth_paragraph - 1])
    return first is not None and first.group(1).casefold() == first_word.strip().casefold()


# -- content


def number_placeholders(text: str, *, num_placeholders: int) -> bool:
    return len(_PLACEHOLDER.findall(text)) >= num_placeholders


def postscript(text: str, *, postscript_marker: str) -> bool:
    """Find the marker at the beginning of a line or after a space; `P. S.` equals `P.S.`."""
    letters = [re.escape(letter) for letter in re.sub(r"[\s.]", "", postscript_marker)]
    if not letters:
        raise ValueError("`postscript_marker` is empty")
    dot = r"\.\s?" if "." in postscript_marker else ""
    marker = dot.join(letters) + (r"\." if postscript_marker.strip().endswith(".") else "" if dot else r"\b")
    return re.search(rf"(?:^|(?<=\s)){marker}", text, re.IGNORECASE | re.MULTILINE) is not None


# -- format


def number_bullet_lists(text: str, *, num_bullets: int) -> bool:
    return len(_BULLET.findall(text)) == num_bullets


def constrained_response(text: str) -> bool:
    """Require exactly one of the three answers; several of them count as none."""
    return sum(answer in text for answer in CONSTRAINED_ANSWERS) == 1


def number_highlighted_sections(text: str, *, num_highlights: int) -> bool:
    return len(_HIGHLIGHT.findall(text)) >= num_highlights


def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    """Count sections with different numbers, `Section 1`, `Section 2`; a repeated number does not count."""
    marker = re.compile(rf"(?<!\w){re.escape(section_spliter.strip())}\s?(\d+)(?!\w)")
    return len(set(marker.findall(text))) >= num_sections


def json_format(text: str) -> bool:
    """Require that the whole reply is one JSON object or array, fenced or not."""
    blocks = list(fenced_blocks(text))
    is_alone = len(blocks) == 1 and not text[: blocks[0].span[0]].strip().strip("`~").removeprefix("json").strip()
    inside = blocks[0].value if is_alone and not text[blocks[0].span[1] :].strip().strip("`~") else text
    try:
        return isinstance(parse_json(inside.strip()), (dict, list))
    except MalformedData:
        return False


def title(text: str) -> bool:
    return _TITLE.search(text) is not None


# -- combination


def two_responses(text: str) -> bool:
    """Require two different answers, separated by six asterisks."""
    answers = split_parts(text, "******")
    return answers is not None and len(answers) == 2 and answers[0] != answers[1]


def repeat_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    return text.strip().casefold().startswith(prompt_to_repeat.strip().casefold())


# -- start and end


def end_checker(text: str, *, end_phrase: str) -> bool:
    return text.strip().strip('"').casefold().endswith(end_phrase.strip().casefold())


def quotation(text: str) -> bool:
    inside = text.strip()
    return len(inside) > 2 and inside[0] in '"“' and inside[-1] in '"”'


# -- case and punctuation


def capital_word_frequency(text: str, *, capital_frequency: int, capital_relation: Relation) -> bool:
    count = sum(re.split(r"['’]", word)[0].isupper() for word in whole_words(text))
    return satisfies_relation(count, capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    return text.isupper() and is_written_in(text, "en")


def english_lowercase(text: str) -> bool:
    return text.islower() and is_written_in(text, "en")


def no_comma(text: str) -> bool:
    return "," not in text and "，" not in text


IFEVAL: dict[str, Callable[..., bool]] = {
    "keywords:existence": keywords_existence,
    "keywords:frequency": keywords_frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}
