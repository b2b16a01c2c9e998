r"""Extract the option that a reply chooses: `\boxed{B}`, "Answer: B", "option B is correct" or a line with `B`.

Exactly one option must be named: "A or B", or a statement for each option, is not an answer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from nemo_gym.grading.extraction import find_boxes
from nemo_gym.grading.result_types import ExtractedAnswer, Extraction, NoAnswer, Verdict, VerdictKind, no_answer_verdict
from nemo_gym.grading.text import FoldedText, fold, normalise_text

_MAX_STATEMENTS = 64
"""Number of statements that are examined, counted from the end."""
_MAX_LENGTH = 300
"""Number of characters of a statement that are examined."""
_LOOK_AHEAD = 40
"""Number of characters after "option B" in which another option makes the statement ambiguous."""
_ADJACENT_BOXES = 40
_ADJACENT_STATEMENTS = 60
"""Two different options with fewer characters between them are an ambiguous answer, not a correction."""

_TEXT_COMMAND = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textit|mathrm|mathbf|mathit|mathsf|operatorname|mbox|bf|rm)(?![a-zA-Z])"
)
_JSON_KEY = re.compile(r"[\s*_`$:=[-]*\{\s*[\"'].[\"']\s*:")
"""The start of a JSON object whose key is one character, which names a field and not an option."""
_DECORATION = " \t\r\n*_`$\"'{}<>~#|"
_LABEL = re.compile(
    r"(?:the )?(?:final |correct |best |right )?(?:answer|option|choice)(?: is)?\s*[:=]?\s*(?=\(?\S\)?)", re.IGNORECASE
)
_STATEMENT = re.compile(
    r"\b(?:(?:final |correct |right |best )?answer|(?:correct|right|best) (?:option|choice))[*_`\"']{0,3}\s{0,3}"
    r"(?:(?:to (?:the|this) question |here |therefore |thus |must be |would be |should be )?"
    r"(?:is|=|:|-|must be|would be|should be)[*_`]{0,3}\s{0,3}:?)",
    re.IGNORECASE,
)
_CHOSEN = re.compile(
    r"\bI(?:'d| would| will|'ll)? (?:choose|chose|select|pick|go with|answer)(?: with)?:?\s"
    r"|\bmy (?:choice|pick) is:?\s",
    re.IGNORECASE,
)
_LEADING_WORDS = re.compile(r"(?:(?:the|option|choice|answer|letter)\s+){1,3}:?", re.IGNORECASE)
_REASON = re.compile(
    r"\s+(?:because|since|as|due|given|based|for|which|with|where|so|therefore|is (?:correct|right|the)|follows)\b",
    re.IGNORECASE,
)
_NOT_AN_OPTION = re.compile(
    r"(?:not|none|neither|unknown|[\[(]?[A-Z0-9][\])]?)(?:[.,!*_`$\"')\]]|\s*$|\s+of\b|\s+[\[(]?\w[\])]?(?!\w))"
)
"""The start of a statement that chooses none of the options: another letter, "not B", "none of these"."""
_END_OF_CHOICE = ("", ".", ",", ":", ";", ")", "]", "!", "-", "(", "\\")
_SEVERAL = "several options are named"
NO_OPTION = "no option is named"
"""The `NoAnswer.reason` for a text that chooses none of the options."""
_NEGATION = re.compile(
    r"\s*(?:is|are|was|seems?|looks?)?\s*(?:not|n't|wrong|incorrect|false)\b"
    r"|\s*(?:is|was|seems?|looks?)\b[^.;\n]{0,40}\b(?:but|yet|although|though|however)\b[^.;\n]{0,40}"
    r"\b(?:not|n't|wrong|incorrect|false)\b"
    r"|\s*\?+\s*(?:no|nope|not|wait)\b",
    re.IGNORECASE,
)
_JOINING_WORDS = (
    r"\band(?:/or)?\b|\bor(?:,?\s(?:not|maybe|possibly|perhaps|even))?\b|\b(?:alternatively|maybe|perhaps|possibly)\b,?"
    r"|\b(?:versus|vs\b\.?)"
)
_TURNING_WORDS = r"\bbut(?:\s(?:also|maybe|possibly|perhaps))?\b|\bunless\b|\b(?:no|wait|sorry|actually)\b,?"
"""Words that mostly begin a comment ("but I am not certain"); before another option, they take the first one back."""
_END_OF_CLAUSE = r"(?=\W*$|[*_`$)\]]*\s*(?:[,;/&.)!?]|(?:and|or|are|both)\b))"
_BETTER = (
    r"(?=[*_`$)\]]*\s+(?:is|seems|would be)\s+(?:also\s+|actually\s+)?(?:the\s+)?"
    r"(?:correct|right|better|best|answer)\b)"
)


class _Patterns(NamedTuple):
    option: re.Pattern[str]
    """An option at the start of a text: `B`, `(B)`."""
    next_option: re.Pattern[str]
    """A further option after an option: "or B", ", B"."""
    correct_option: re.Pattern[str]
    """A statement such as "option B is correct"."""


@lru_cache(maxsize=256)
def _patterns(options: tuple[str, ...]) -> _Patterns:
    """Compile the patterns for a set of options."""
    keys = "".join(re.escape(option) for option in options)
    option = re.compile(rf"[\[(]?\s?(?P<key>[{keys}])(?![^\W_])(?!'[a-z])(?:\s?[\])])?", re.IGNORECASE)
    other_option = rf"\s*(?:option\s|choice\s|also\s)?[*_`$\"']{{0,3}}[\[(]?\s?(?P<key%d>[{keys}])(?![^\W_])(?!'[a-z])"
    next_option = re.compile(
        r"[*_`$\"']{0,3}\s*(?:"
        rf"(?:/|&|\+|\||\?|[-=]>|→|⇒|[,;([]?\s*(?:{_JOINING_WORDS})){other_option % 1}"
        rf"|(?:[,;~-]|\.{{2,3}}|[.!]\s*(?:{_JOINING_WORDS})){other_option % 2}{_END_OF_CLAUSE}"
        rf"|[.!,;([]?\s*(?:{_TURNING_WORDS})(?:\s*(?:{_TURNING_WORDS}|{_JOINING_WORDS})){{0,3}}"
        rf"{other_option % 3}(?:{_END_OF_CLAUSE}|{_BETTER})"
        r")",
        re.IGNORECASE,
    )
    correct_option = re.compile(
        rf"\b(?:option|choice|answer)\s+[*_`(\[]{{0,3}}(?P<key>[{keys}])[*_`)\]]{{0,3}}\s+"
        r"(?:is|seems|must be|would be)\s+(?:the\s+)?(?:(?:most|best)\s+)?(?:correct|right|best|answer|accurate)\b",
        re.IGNORECASE,
    )
    return _Patterns(option, next_option, correct_option)


def extract_choice(text: str, options: Sequence[str], texts: Mapping[str, str] | None = None) -> Extraction[str]:
    r"""Extract the option that `text` chooses, spelled as in `options`.

    `options` are one-character keys, usually letters. With `texts`, an option may also be named by its text, alone in a
    box or after its letter. The last box counts; without a box the last "the answer is", without that the last line if
    it is only a letter. Strip the reasoning first (`strip_reasoning`).
    """
    keys = tuple(options)
    if not keys or any(len(key) != 1 for key in keys) or len({key.upper() for key in keys}) != len(keys):
        raise ValueError(f"options must be different single characters, not {keys}")
    folded = fold(text)
    for rule in (_by_box, _by_statement, _by_line):
        extraction = rule(folded, keys, texts or {})
        if extraction is not None:
            return extraction
    return NoAnswer(NO_OPTION)


def extract_boxed_choice(text: str, options: Sequence[str], texts: Mapping[str, str] | None = None) -> Extraction[str]:
    r"""Extract the option from the last `\boxed{…}`; text outside boxes is ignored."""
    extraction = _by_box(fold(text), tuple(options), texts or {})
    return NoAnswer("no box") if extraction is None else extraction


def compare_choice(text: str, gold: str, options: Sequence[str], texts: Mapping[str, str] | None = None) -> Verdict:
    """Grade the option that `text` chooses against `gold`."""
    extraction = extract_choice(text, options, texts)
    if isinstance(extraction, NoAnswer):
        return no_answer_verdict(extraction)
    if extraction.value.upper() == gold.strip().upper():
        return Verdict(VerdictKind.CORRECT, extraction.value, extraction.rule)
    return Verdict(VerdictKind.WRONG, extraction.value, extraction.rule, "another option")


def parse_option(content: str, options: Sequence[str], texts: Mapping[str, str] | None = None) -> str | NoAnswer:
    """Return the option that a short text names, such as the content of a box."""
    return _parse_folded_option(fold(content).text, tuple(options), texts or {})


def _parse_folded_option(content: str, keys: tuple[str, ...], texts: Mapping[str, str]) -> str | NoAnswer:
    """Return the option that a folded text names; formatting and a label ("answer: ") before it are ignored."""
    content = _TEXT_COMMAND.sub("", content[: _MAX_LENGTH * 4])
    if _JSON_KEY.match(content):
        return NoAnswer(NO_OPTION)
    content = content.strip(_DECORATION)
    if label := _LABEL.match(content):
        content = content[label.end() :].strip(_DECORATION)
    by_text = _by_text(content, texts)
    if by_text is not None:
        return by_text
    match = _patterns(keys).option.match(content)
    if match is None:
        return NoAnswer(NO_OPTION)
    key, rest = _key(match["key"], keys), content[match.end() :]
    if _names_another(rest, key, keys):
        return NoAnswer(_SEVERAL)
    if rest.strip(_DECORATION + ".,!)]"):
        is_bare = match.group().strip() == match["key"]
        is_word = is_bare and not re.match(r"\s*[.:)\-,–]", rest)  # "A dog", unlike "A. dog" and "(A) dog"
        if is_word or _NEGATION.match(rest):
            return NoAnswer(NO_OPTION)
        option_text = rest.strip(_DECORATION + ".,:)]-–")
        if key in texts and _by_text(option_text, texts) not in (None, key):
            return NoAnswer("letter and text name different options")
    return key


def _key(letter: str, keys: tuple[str, ...]) -> str:
    """Return the option that a letter names, spelled as in `keys`."""
    return next(key for key in keys if key.upper() == letter.upper())


def _names_another(rest: str, letter: str, keys: tuple[str, ...]) -> bool:
    """Return whether the text after an option names a different one, as in "or B"."""
    next_option = _patterns(keys).next_option
    position = 0
    while match := next_option.match(rest, position):
        if (match["key1"] or match["key2"] or match["key3"]).upper() != letter.upper():
            return True
        position = match.end()
    return False


def _by_text(option_text: str, texts: Mapping[str, str]) -> str | None:
    """Return the only option with that text; None if no option or several have it."""
    if not texts:
        return None
    normal = normalise_text(option_text[:_MAX_LENGTH], ignore_punctuation=True)
    keys = [key for key, text in texts.items() if normal and normalise_text(text, ignore_punctuation=True) == normal]
    return keys[0] if len(keys) == 1 else None


def _by_box(folded: FoldedText, keys: tuple[str, ...], texts: Mapping[str, str]) -> Extraction[str] | None:
    """Extract the option in the last box; None if there is no box."""
    if "box" not in folded.text:
        return None
    boxes, has_open_box = find_boxes(folded.text)
    if has_open_box:
        return NoAnswer("the last box is not closed")
    if not boxes:
        return None
    last = boxes[-1]
    option = _parse_folded_option(last.value, keys, texts)
    if isinstance(option, NoAnswer):
        return option
    earlier = [_parse_folded_option(box.value, keys, texts) for box in boxes[-_MAX_STATEMENTS:-1]]
    if _is_every_option({*(choice for choice in earlier if isinstance(choice, str)), option}, keys):
        return NoAnswer("all options are named")
    if len(boxes) > 1 and earlier[-1] != option and isinstance(earlier[-1], str):
        between = folded.text[boxes[-2].span[1] : last.span[0]]
        if len(between) < _ADJACENT_BOXES and not re.search(r"[a-zA-Z]{4,}", between.replace("boxed", "")):
            return NoAnswer(_SEVERAL)
    return ExtractedAnswer(option, folded.span(*last.span), "boxed")


def _is_every_option(named: set[str], keys: tuple[str, ...]) -> bool:
    """Return whether all options are named; of only two options, the second may correct the first."""
    return len(keys) > 2 and len(named) == len(keys)


@dataclass(frozen=True)
class _Statement:
    """One "the answer is …": the option that it names, or the problem why it does not choose one."""

    key: str | None
    span: tuple[int, int]
    problem: str = ""


def _by_statement(folded: FoldedText, keys: tuple[str, ...], texts: Mapping[str, str]) -> Extraction[str] | None:
    """Extract the option of the last "the answer is …"; None if there is no such statement."""
    text = folded.text
    starts = [match.end() for pattern in (_STATEMENT, _CHOSEN) for match in pattern.finditer(text)]
    statements = [_parse_statement(text, start, keys, texts) for start in sorted(starts)[-_MAX_STATEMENTS:]]
    for match in list(_patterns(keys).correct_option.finditer(text))[-_MAX_STATEMENTS:]:
        is_ambiguous = _names_another(text[match.end("key") : match.end("key") + _LOOK_AHEAD], match["key"], keys)
        statements.append(_Statement(_key(match["key"], keys), match.span("key"), _SEVERAL if is_ambiguous else ""))
    ordered = sorted((item for item in statements if item is not None), key=lambda item: item.span)
    if not ordered:
        return None
    last = ordered[-1]
    if last.problem:
        return NoAnswer(last.problem)
    if _is_every_option({item.key for item in ordered if item.key and not item.problem}, keys):
        return NoAnswer("all options are named")
    if len(ordered) > 1 and ordered[-2].key not in (None, last.key):
        between = text[ordered[-2].span[1] : last.span[0]]
        if len(between) < _ADJACENT_STATEMENTS and between.count("\n") <= 1:
            return NoAnswer(_SEVERAL)
    return ExtractedAnswer(str(last.key), folded.span(*last.span), "answer_phrase")


def _parse_statement(text: str, start: int, keys: tuple[str, ...], texts: Mapping[str, str]) -> _Statement | None:
    """Parse the option after a phrase that ends at `start`; None if other prose follows the phrase."""
    rest = _TEXT_COMMAND.sub(lambda command: " " * len(command.group()), text[start : start + _MAX_LENGTH])
    if _JSON_KEY.match(rest):
        return None
    line = rest.lstrip(_DECORATION + ":=-")
    option_text = line.split("\n", 1)[0].strip(_DECORATION + ".")
    # Texts of several words are compared before leading words are removed: the text of an option may begin with "the".
    if " " in option_text and (by_text := _by_text(option_text, texts)) is not None:
        begin = start + len(rest) - len(line)
        return _Statement(by_text, (begin, begin + len(option_text)))
    while leading := _LEADING_WORDS.match(line):
        line = line[leading.end() :].lstrip(_DECORATION)
    line = line.lstrip(_DECORATION + "\\")
    begin = start + len(rest) - len(line)
    line, _, following = line.partition("\n")
    match = _patterns(keys).option.match(line)
    if match is None:
        by_text = _by_text(line.strip(_DECORATION + "."), texts)
        if by_text is not None:
            return _Statement(by_text, (begin, begin + len(line)))
        is_other = _NOT_AN_OPTION.match(line)
        return _Statement(None, (begin, begin + 1), "an option that is not offered") if is_other else None
    span = (begin + match.start("key"), begin + match.end("key"))
    after = line[match.end() :]
    next_line = _line_option(following.strip().partition("\n")[0], keys)
    is_list = not after.strip(_DECORATION + ".,)") and next_line not in (None, (_key(match["key"], keys), False))
    if _names_another(after, match["key"], keys) or (is_list and next_line and not next_line[1]):
        return _Statement(None, span, _SEVERAL)
    after = after.lstrip("*_`$\"'}")
    if _NEGATION.match(after):
        return _Statement(None, span, "an option is rejected, none is chosen")
    is_bare = match.group().strip() == match["key"]
    if not is_bare or after[:1] in _END_OF_CHOICE or _REASON.match(after):
        return _Statement(_key(match["key"], keys), span)
    is_word = match["key"] in "AIai" or match["key"].islower()  # "the answer is a number"
    return None if is_word else _Statement(_key(match["key"], keys), span)


def _by_line(folded: FoldedText, keys: tuple[str, ...], _texts: Mapping[str, str]) -> Extraction[str] | None:
    """Extract the option in the last line; None if the last line is no option.

    If an earlier line is another option, the answer is ambiguous. Earlier lines with an option and its text are ignored
    if the last line has only a letter, because they list the options.
    """
    text = folded.text.rstrip()
    start = text.rfind("\n") + 1
    line = text[start:]
    if len(line) > _MAX_LENGTH:
        return None
    option = _line_option(line, keys)
    if option is None and (arrow := re.search(r"(?:->|=>|→|⇒|:)\s*([^\s{}]{1,8})$", line)) is not None:
        option = _line_option(arrow[1], keys)
    if option is None:
        return None
    key, has_text = option
    earlier_lines = [earlier for earlier in text[:start].split("\n")[-_MAX_STATEMENTS:] if len(earlier) <= _MAX_LENGTH]
    earlier_options = filter(None, (_line_option(earlier, keys) for earlier in earlier_lines))
    if any(other != key for other, other_has_text in earlier_options if has_text or not other_has_text):
        return NoAnswer(_SEVERAL)
    return ExtractedAnswer(key, folded.span(start, len(text)), "last_line")


def _listed_options(text: str, keys: tuple[str, ...]) -> set[str]:
    """Return the options that appear in a text as in a list of options: `(B)`, `B.`, `B)`."""
    return {key for key in keys if re.search(rf"(?<![^\W_])[\[(]?{re.escape(key)}[\]).:]|[.)]{re.escape(key)}$", text)}


def _line_option(line: str, keys: tuple[str, ...]) -> tuple[str, bool] | None:
    """Parse a line as an option; return its key and whether a text follows the key."""
    content = _TEXT_COMMAND.sub("", line).strip(_DECORATION + "-")
    content = re.sub(r"^(?:option|choice|answer)\s+", "", content, flags=re.IGNORECASE)
    match = _patterns(keys).option.match(content)
    if match is None:
        return None
    rest = content[match.end() :].strip(_DECORATION)
    is_bare = match.group().strip() == match["key"]
    if not rest.strip(".,!"):
        is_exact = match["key"] in keys  # a lone letter in another case is a word or a variable
        return (_key(match["key"], keys), False) if is_exact or rest or not is_bare else None
    is_separated = not is_bare or rest[0] in ".):"
    if not is_separated or _names_another(content[match.end() :], match["key"], keys):
        return None
    if _NEGATION.search(rest) or _listed_options(rest, keys) - {_key(match["key"], keys)}:
        return None
    return _key(match["key"], keys), True
