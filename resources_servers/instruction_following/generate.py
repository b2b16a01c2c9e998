"""Write requests with checkable instructions: `python generate.py OUT --rows 40 --seed 0`."""

import random
from collections.abc import Callable
from typing import Any

from nemo_gym.data.generator_command import run_generator

TOPICS = [
    "a walk along the harbour",
    "the first bicycle somebody owned",
    "how bread is baked at night",
    "why the tide comes twice a day",
    "a small museum of clocks",
    "moving house in winter",
    "a garden on the roof",
    "the night train to the south",
    "how paper is made",
    "a lighthouse that is still kept by hand",
    "bees in the middle of a town",
    "a letter that arrived too late",
]
KEYWORDS = ["lantern", "compass", "orchard", "marble", "copper", "meadow", "thunder", "velvet", "harvest", "pepper"]
FORBIDDEN = ["really", "basically", "amazing", "stuff", "awesome", "literally"]
FIRST = ["morning", "silence", "tomorrow", "water", "snow"]
ENDINGS = ["That is all there is to say.", "Is there anything else I can help with?", "And so it ended."]
LANGUAGES = {"de": "German", "fr": "French", "es": "Spanish", "it": "Italian"}

DrawnInstruction = tuple[dict[str, Any], str]
Draw = Callable[[random.Random], DrawnInstruction]


def _fixed_sentence(sentence: str) -> Draw:
    return lambda draw: ({}, sentence)  # noqa: ARG005 - the signature of the others


def _keywords(draw: random.Random) -> DrawnInstruction:
    keywords = draw.sample(KEYWORDS, draw.choice([2, 3]))
    return {"keywords": keywords}, f"Include the words {', '.join(keywords)}."


def _frequency(draw: random.Random) -> DrawnInstruction:
    keyword, often = draw.choice(KEYWORDS), draw.randint(3, 5)
    sentence = f"The word {keyword} has to appear at least {often} times."
    return {"keyword": keyword, "frequency": often, "relation": "at least"}, sentence


def _forbidden(draw: random.Random) -> DrawnInstruction:
    words = draw.sample(FORBIDDEN, 3)
    return {"forbidden_words": words}, f"Do not use the words {', '.join(words)}."


def _letters(draw: random.Random) -> DrawnInstruction:
    often = draw.randint(4, 7)
    sentence = f"The letter q has to appear at least {often} times."
    return {"letter": "q", "let_frequency": often, "let_relation": "at least"}, sentence


def _number(name: str, low: int, high: int, sentence: str, **others: Any) -> Draw:
    def draw_number(draw: random.Random) -> DrawnInstruction:
        number = draw.randint(low, high)
        return {name: number, **others}, sentence.format(number)

    return draw_number


def _nth_paragraph(draw: random.Random) -> DrawnInstruction:
    number, word = draw.randint(3, 5), draw.choice(FIRST)
    nth = draw.randint(1, number)
    sentence = f"Write {number} paragraphs parted by an empty line; paragraph {nth} begins with the word {word}."
    return {"num_paragraphs": number, "nth_paragraph": nth, "first_word": word}, sentence


def _end(draw: random.Random) -> DrawnInstruction:
    phrase = draw.choice(ENDINGS)
    return {"end_phrase": phrase}, f"Finish with the exact phrase «{phrase}» and nothing behind it, without the marks."


def _language(draw: random.Random) -> DrawnInstruction:
    code = draw.choice(list(LANGUAGES))
    return {"language": code}, f"Write all of it in {LANGUAGES[code]}."


def _once(draw: random.Random) -> DrawnInstruction:
    keyword = draw.choice(KEYWORDS)
    return {"keyword": keyword}, f"Use the word {keyword} exactly once."


def _first(draw: random.Random) -> DrawnInstruction:
    word = draw.choice(FIRST)
    return {"first_word": word}, f"The first word of the answer is {word}."


def _last(draw: random.Random) -> DrawnInstruction:
    word = draw.choice(FIRST)
    return {"last_word": word}, f"The last word of the answer is {word}."


INSTRUCTIONS: dict[str, Draw] = {
    "keywords:existence": _keywords,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden,
    "keywords:letter_frequency": _letters,
    "language:response_language": _language,
    "length_constraints:number_sentences": _number(
        "num_sentences", 9, 12, "Write at least {} sentences.", relation="at least"
    ),
    "length_constraints:number_paragraphs": _number(
        "num_paragraphs", 3, 5, "Write exactly {} paragraphs parted by the markdown divider: ***"
    ),
    "length_constraints:number_words": _number("num_words", 80, 120, "Write at least {} words.", relation="at least"),
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "detectable_content:number_placeholders": _number(
        "num_placeholders", 3, 5, "Leave at least {} placeholders in square brackets, as in an address to fill in."
    ),
    "detectable_content:postscript": lambda draw: (  # noqa: ARG005
        {"postscript_marker": "P.S."},
        "At the end add a postscript that begins with the usual three characters and dots.",
    ),
    "detectable_format:number_bullet_lists": _number(
        "num_bullets", 3, 6, "Have exactly {} bullet points in markdown, each on a line of its own."
    ),
    "detectable_format:constrained_response": _fixed_sentence(
        "Answer with one of these: 'My answer is yes.', 'My answer is no.', 'My answer is maybe.'"
    ),
    "detectable_format:number_highlighted_sections": _number(
        "num_highlights", 2, 4, "Highlight at least {} passages with markdown, between asterisks."
    ),
    "detectable_format:multiple_sections": _number(
        "num_sections",
        3,
        4,
        "Have {} sections, each headed by the word Section and its number.",
        section_spliter="Section",
    ),
    "detectable_format:json_format": _fixed_sentence("All of the answer is one JSON object."),
    "detectable_format:title": _fixed_sentence("Give it a title in double angular brackets."),
    "combination:two_responses": _fixed_sentence("Give two different answers, parted by six asterisks: ******"),
    "combination:repeat_prompt": _fixed_sentence("First repeat this request word for word, then answer it."),
    "startend:end_checker": _end,
    "startend:quotation": _fixed_sentence("Put all of the answer in double quotation marks."),
    "change_case:capital_word_frequency": _number(
        "capital_frequency", 3, 6, "Write at least {} words in capital letters only.", capital_relation="at least"
    ),
    "change_case:english_capital": _fixed_sentence("Write in English and in capital letters only."),
    "change_case:english_lowercase": _fixed_sentence("Write in English and in lowercase letters only."),
    "punctuation:no_comma": _fixed_sentence("Use no commas."),
    "keywords:word_once": _once,
    "first_word:first_word_answer": _first,
    "last_word:last_word_answer": _last,
    "punctuation:punctuation_exclamation": _fixed_sentence("Use no exclamation marks."),
}

RECIPES = [
    ("detectable_format:title", "detectable_content:postscript", "punctuation:no_comma"),
    ("detectable_format:number_bullet_lists", "keywords:existence", "startend:end_checker"),
    ("detectable_format:number_highlighted_sections", "keywords:forbidden_words", "length_constraints:number_words"),
    ("detectable_format:json_format", "keywords:existence"),
    ("combination:two_responses", "detectable_format:title", "punctuation:no_comma"),
    ("detectable_format:multiple_sections", "change_case:capital_word_frequency"),
    ("change_case:capital_word_frequency", "combination:repeat_prompt"),
    ("length_constraints:number_sentences", "length_constraints:number_paragraphs"),
    ("keywords:letter_frequency", "change_case:english_lowercase"),
    ("change_case:english_capital", "keywords:frequency"),
    ("detectable_content:number_placeholders", "startend:quotation"),
    ("length_constraints:nth_paragraph_first_word", "punctuation:no_comma"),
    ("detectable_format:constrained_response", "keywords:forbidden_words"),
    ("length_constraints:number_sentences", "language:response_language"),
    ("first_word:first_word_answer", "keywords:word_once", "punctuation:punctuation_exclamation"),
    ("last_word:last_word_answer", "keywords:existence"),
]
"""Sets of instructions that can be followed together."""


def row(ids: tuple[str, ...], topic: str, draw: random.Random) -> dict[str, Any]:
    """Build a request about `topic` with the instructions `ids`."""
    drawn = [INSTRUCTIONS[name](draw) for name in ids]
    opening = "Is it worth reading about" if "constrained_response" in ids[0] else "Write a few lines about"
    mark = "?" if opening.startswith("Is") else "."
    prompt = f"{opening} {topic}{mark} " + " ".join(sentence for _, sentence in drawn)
    kwargs = [
        {"prompt_to_repeat": prompt} if name == "combination:repeat_prompt" else arguments
        for name, (arguments, _) in zip(ids, drawn, strict=True)
    ]
    return {
        "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
        "verifier_metadata": {"instruction_id_list": list(ids), "kwargs": kwargs},
        "grading_mode": "binary",
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` requests, the recipes in turn."""
    draw = random.Random(f"instructions {seed}")
    return [row(RECIPES[number % len(RECIPES)], draw.choice(TOPICS), draw) for number in range(count)]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
