"""Compose replies to generated rows: one that follows everything, its other styles, and ones that miss one thing."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LINES = [
    "The road goes down to the water and nobody is in a hurry.",
    "There is a bench by the wall where the old men sit and talk.",
    "When the wind turns they know that the weather will change.",
    "Most of what they tell is true and the rest is good to hear.",
    "Later the lamps are lit one after the other along the shore.",
    "People come home slowly and the shops begin to close.",
]
OTHER_LANGUAGES = {
    "de": ["Am Abend gehen die Leute langsam nach Hause.", "Niemand hat es eilig und das Wetter ist gut."],
    "fr": ["Le soir les gens rentrent lentement chez eux.", "Personne ne se presse et il fait beau."],
    "es": ["Por la tarde la gente vuelve despacio a casa.", "Nadie tiene prisa y hace buen tiempo."],
    "it": ["La sera la gente torna piano a casa.", "Nessuno ha fretta e il tempo è bello."],
}
STYLES = 5
LAST = frozenset({"detectable_format:json_format", "last_word:last_word_answer"})
"""Instructions that change the whole text, after all others."""


@dataclass
class Draft:
    """An unfinished reply."""

    style: int
    prompt: str
    opening: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=lambda: LINES[:2])
    blocks: list[str] = field(default_factory=list)
    finish: list[Callable[[str], str]] = field(default_factory=list)

    def text(self) -> str:
        composed = "\n\n".join([*self.opening, " ".join(self.body), *self.blocks])
        for step in self.finish:
            composed = step(composed)
        return composed

    def choose_form(self, *forms: str) -> str:
        """Return the form of this style; styles repeat if there are fewer forms."""
        return forms[self.style % len(forms)]


Arguments = dict[str, Any]


def _keywords(draft: Draft, arguments: Arguments, broken: bool) -> None:
    for keyword in arguments["keywords"][broken:]:
        draft.body.append(
            f"Nobody forgets the {draft.choose_form(keyword, keyword.upper(), f'“{keyword}”', keyword + 's')}."
        )


def _frequency(draft: Draft, arguments: Arguments, broken: bool) -> None:
    word = draft.choose_form(arguments["keyword"], arguments["keyword"].capitalize())
    draft.body += [f"There was a {word}."] * (arguments["frequency"] - broken)


def _forbidden(draft: Draft, arguments: Arguments, broken: bool) -> None:
    word = arguments["forbidden_words"][0]
    draft.body.append(f"It is {word.upper()} good." if broken else draft.choose_form("It is good.", f"It is {word}x."))


def _letters(draft: Draft, arguments: Arguments, broken: bool) -> None:
    draft.body.append(
        " ".join([draft.choose_form("queen", "quiet", "quick")] * (arguments["let_frequency"] - broken)) + "."
    )


def _language(draft: Draft, arguments: Arguments, broken: bool) -> None:
    if not broken:
        draft.body = [OTHER_LANGUAGES[arguments["language"]][(n + draft.style) % 2] for n in range(len(draft.body))]


def _sentences(draft: Draft, arguments: Arguments, broken: bool) -> None:
    draft.body = (LINES * 3)[: arguments["num_sentences"] - broken]


def _paragraphs(draft: Draft, arguments: Arguments, broken: bool) -> None:
    number = arguments["num_paragraphs"] + broken
    divider = draft.choose_form("\n***\n", "\n\n***\n\n", " *** ", "\r\n***\r\n")
    size = len(draft.body) // number
    parts = [" ".join(draft.body[n * size : (n + 1) * size if n < number - 1 else None]) for n in range(number)]
    draft.body = [divider.join(parts)]
    if draft.style == 4:
        draft.finish.append(lambda text: f"***\n{text}\n***")


def _words(draft: Draft, arguments: Arguments, broken: bool) -> None:
    if not broken:
        draft.body += LINES * (arguments["num_words"] // 60 + 1)


def _nth_paragraph(draft: Draft, arguments: Arguments, broken: bool) -> None:
    paragraphs = [LINES[n % len(LINES)] for n in range(arguments["num_paragraphs"])]
    word = arguments["first_word"]
    first = draft.choose_form(word, word.capitalize(), f'"{word}"', f"**{word}**", f"{word},".rstrip(","))
    paragraphs[arguments["nth_paragraph"] - 1] = f"{'The ' if broken else ''}{first} was what they waited for."
    draft.body, draft.blocks = [paragraphs[0]], paragraphs[1:]
    if draft.style == 1:
        draft.finish.append(lambda text: text.replace("\n\n", "\r\n\r\n"))


def _placeholders(draft: Draft, arguments: Arguments, broken: bool) -> None:
    names = ["[name]", "[street and number]", "[town]", "[date]", "[e-mail]"][: arguments["num_placeholders"] - broken]
    draft.body.append(draft.choose_form(", ", "\n", " ").join(names))


def _postscript(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    marker = "PS:" if broken else draft.choose_form("P.S.", "P. S.", "p.s.", "P.S.:")
    draft.blocks.append(f"{marker} Bring a coat.")


def _bullets(draft: Draft, arguments: Arguments, broken: bool) -> None:
    mark = draft.choose_form("*", "-", "  *", "\t-", "*  ")
    draft.blocks.append("\n".join(f"{mark} point {n}" for n in range(arguments["num_bullets"] + broken)))


def _constrained_answer(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    answers = (
        ["My answer is yes.", "My answer is no."]
        if broken
        else [draft.choose_form("My answer is yes.", "My answer is no.")]
    )
    draft.body = [*draft.choose_form("", "I thought about it.").splitlines(), *answers]


def _highlights(draft: Draft, arguments: Arguments, broken: bool) -> None:
    form = draft.choose_form("*{}*", "**{}**", "***{}***", "* *{}*")
    draft.body += [form.format(f"passage {n}") for n in range(arguments["num_highlights"] - broken)]


def _sections(draft: Draft, arguments: Arguments, broken: bool) -> None:
    head = draft.choose_form("Section {}", "## Section {}", "Section {}:", "**Section {}**")
    draft.blocks += [f"{head.format(n + 1)}\n{LINES[n]}" for n in range(arguments["num_sections"] - broken)]


def _json(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    def wrap_as_json(text: str) -> str:
        data = json.dumps({"answer": text}, indent=draft.style % 3 or None)
        if broken:
            return f"Here it is: {data}"
        return draft.choose_form(data, f"```json\n{data}\n```", f"```\n{data}\n```", f"\n{data}\n")

    draft.finish.append(wrap_as_json)


def _title(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    draft.opening.append("<An evening>" if broken else draft.choose_form("<<An evening>>", "# << An evening >>"))


def _two(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    second = "" if broken else " " + LINES[2]
    draft.finish.append(lambda text: text + draft.choose_form("\n******\n", "******", "\n\n******\n\n") + text + second)


def _repeat(draft: Draft, arguments: Arguments, broken: bool) -> None:
    before = "Sure: " if broken else draft.choose_form("", "\n ")
    draft.finish.append(lambda text: f"{before}{arguments['prompt_to_repeat']}\n\n{text}")


def _end(draft: Draft, arguments: Arguments, broken: bool) -> None:
    phrase = draft.choose_form(arguments["end_phrase"], arguments["end_phrase"].upper(), f'"{arguments["end_phrase"]}"')
    draft.finish.append(lambda text: f"{text}\n{phrase}" + (" Bye." if broken else draft.choose_form("", "\n")))


def _quotation(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    marks = draft.choose_form('""', "“”", '""')
    draft.finish.append(lambda text: f"{marks[0]}{text}" + ("" if broken else marks[1]))


def _capital_words(draft: Draft, arguments: Arguments, broken: bool) -> None:
    draft.body.append(
        " ".join(["NEVER", "AGAIN", "NATO's", "LONG-TERM", "ON", "MONDAY"][: arguments["capital_frequency"] - broken])
    )


def _capital(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    draft.finish.append(lambda text: text.upper() + (" ok" if broken else ""))


def _lowercase(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    draft.finish.append(lambda text: text.lower() + (" OK" if broken else ""))


def _no_comma(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    if broken:
        draft.finish.append(lambda text: text.replace(" ", ", ", 1))


def _once(draft: Draft, arguments: Arguments, broken: bool) -> None:
    draft.body.append(f"There was a {arguments['keyword']}." + (f" A red {arguments['keyword']}." if broken else ""))


def _first(draft: Draft, arguments: Arguments, broken: bool) -> None:
    word = draft.choose_form(
        arguments["first_word"], arguments["first_word"].capitalize(), f'"{arguments["first_word"]}"'
    )
    draft.finish.append(lambda text: f"{'The ' if broken else ''}{word} came. {text}")


def _last(draft: Draft, arguments: Arguments, broken: bool) -> None:
    end = draft.choose_form(".", "", "!", '"')
    draft.finish.append(lambda text: f"{text} And then {arguments['last_word']}{' again' if broken else ''}{end}")


def _exclamation(draft: Draft, arguments: Arguments, broken: bool) -> None:  # noqa: ARG001
    draft.body.append("So it is" + ("!" if broken else "."))


WRITERS: dict[str, Callable[[Draft, Arguments, bool], None]] = {
    "keywords:existence": _keywords,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden,
    "keywords:letter_frequency": _letters,
    "language:response_language": _language,
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_words": _words,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": _constrained_answer,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": _two,
    "combination:repeat_prompt": _repeat,
    "startend:end_checker": _end,
    "startend:quotation": _quotation,
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": _capital,
    "change_case:english_lowercase": _lowercase,
    "punctuation:no_comma": _no_comma,
    "keywords:word_once": _once,
    "first_word:first_word_answer": _first,
    "last_word:last_word_answer": _last,
    "punctuation:punctuation_exclamation": _exclamation,
}


def reply(row: dict[str, Any], *, style: int = 0, breaking: str | None = None) -> str:
    """Compose a reply to a generated row in one of `STYLES` that follows all of its instructions but `breaking`."""
    instructions = row["verifier_metadata"]
    draft = Draft(style, row["responses_create_params"]["input"][0]["content"])
    pairs = list(zip(instructions["instruction_id_list"], instructions["kwargs"], strict=True))
    for name, arguments in sorted(pairs, key=lambda pair: pair[0] in LAST):
        WRITERS[name](draft, arguments, name == breaking)
    return draft.text()
