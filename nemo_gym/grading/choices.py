r"""The option a reply chooses: `\boxed{B}`, "Answer: B", "the answer is (B)", "option B is correct", a line with `B`.

One option must be named. Two letters side by side, or all of them one after the other, choose nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from nemo_gym.grading.boxed import boxes
from nemo_gym.grading.normalise import Folded, fold, plain_text
from nemo_gym.grading.verdict import Extracted, Extraction, Outcome, Unparsed, Verdict, unparsed

_MOST_STATEMENTS = 64
"""How many statements, from the end, are looked at."""
_LONGEST = 300
"""Characters of a statement that are read."""

_TEXT_COMMAND = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textit|mathrm|mathbf|mathit|mathsf|operatorname|mbox|bf|rm)(?![a-zA-Z])"
)
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
_NO_OPTION = re.compile(
    r"(?:not|none|neither|unknown|[\[(]?[A-Z0-9][\])]?)(?:[.,!*_`$\"')\]]|\s*$|\s+of\b|\s+[\[(]?\w[\])]?(?!\w))"
)
"""Says something, but none of the options: a letter beyond them, "not B", "none of these"."""
_STOPS = ("", ".", ",", ":", ";", ")", "]", "!", "-", "(", "\\")
_SEVERAL = "several options are named"
NO_OPTION = "no option is named"
"""Reason of an `Unparsed` that is not about hedging: the text simply says something else."""
_REFUSED = re.compile(r"\s*(?:is|are|was|seems?|looks?)?\s*(?:not|n't|wrong|incorrect|false)\b", re.IGNORECASE)


@lru_cache(maxsize=256)
def _patterns(options: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    keys = "".join(re.escape(option) for option in options)
    one = rf"[\[(]?\s?(?P<key>[{keys}])(?![^\W_])(?!'[a-z])(?:\s?[\])])?"
    head = re.compile(one, re.IGNORECASE)
    another = rf"\s*(?:option\s|choice\s|also\s)?[*_`$]{{0,3}}[\[(]?\s?(?P<key%d>[{keys}])(?![^\W_])(?!'[a-z])"
    more = re.compile(
        r"[*_`$]{0,3}\s*(?:"
        rf"(?:,\s*(?:and|or)\b|/|&|\+|\||\band(?:/or)?\b|\bor(?: not| maybe| possibly)?\b){another % 1}"
        rf"|[,;]{another % 2}(?=\W*$|[*_`$)\]]*\s*(?:[,;/&.)]|(?:and|or|are|both)\b))"
        r")",
        re.IGNORECASE,
    )
    is_right = re.compile(
        rf"\b(?:option|choice|answer)\s+[*_`(\[]{{0,3}}(?P<key>[{keys}])[*_`)\]]{{0,3}}\s+"
        r"(?:is|seems|must be|would be)\s+(?:the\s+)?(?:(?:most|best)\s+)?(?:correct|right|best|answer|accurate)\b",
        re.IGNORECASE,
    )
    return head, more, is_right


def choice(text: str, options: Sequence[str], texts: Mapping[str, str] | None = None) -> Extraction[str]:
    r"""The option that `text` chooses, one of `options` as written there.

    `options` are one-character keys, usually letters. With `texts`, an option may also be named by its text, alone in a
    box or behind its letter. The last statement counts: a box before everything, then "the answer is", then a line that
    holds nothing but a letter. Reasoning should be stripped before (`without_reasoning`).
    """
    keys = tuple(options)
    if not keys or any(len(key) != 1 for key in keys) or len({key.upper() for key in keys}) != len(keys):
        raise ValueError(f"options must be different single characters, not {keys}")
    folded = fold(text)
    for rule in (_by_box, _by_statement, _by_line):
        found = rule(folded, keys, texts or {})
        if found is not None:
            return found
    return Unparsed(NO_OPTION)


def boxed_choice(text: str, options: Sequence[str], texts: Mapping[str, str] | None = None) -> Extraction[str]:
    r"""The option in the last `\boxed{…}`, and only there."""
    found = _by_box(fold(text), tuple(options), texts or {})
    return Unparsed("there is no box") if found is None else found


def compare_choice(text: str, gold: str, options: Sequence[str], texts: Mapping[str, str] | None = None) -> Verdict:
    """Whether `text` chooses the option `gold`."""
    found = choice(text, options, texts)
    if isinstance(found, Unparsed):
        return unparsed(found)
    if found.value.upper() == gold.strip().upper():
        return Verdict(Outcome.CORRECT, found.value, found.rule)
    return Verdict(Outcome.WRONG, found.value, found.rule, "another option")


def option_in(content: str, options: Sequence[str], texts: Mapping[str, str] | None = None) -> str | Unparsed:
    """The option a short text such as the content of a box stands for."""
    return _option(fold(content).text, tuple(options), texts or {})


def _option(content: str, keys: tuple[str, ...], texts: Mapping[str, str]) -> str | Unparsed:
    plain = _TEXT_COMMAND.sub("", content[: _LONGEST * 4]).strip(_DECORATION)
    if label := _LABEL.match(plain):
        plain = plain[label.end() :].strip(_DECORATION)
    by_text = _by_text(plain, texts)
    if by_text is not None:
        return by_text
    found = _patterns(keys)[0].match(plain)
    if found is None:
        return Unparsed(NO_OPTION)
    rest = plain[found.end() :]
    if _others(rest, found["key"], keys):
        return Unparsed(_SEVERAL)
    if rest.strip(_DECORATION + ".,!)]"):
        bare = found.group().strip() == found["key"]
        if (bare and not re.match(r"\s*[.:)\-,–]", rest)) or _REFUSED.match(rest):
            return Unparsed(NO_OPTION)
        said = rest.strip(_DECORATION + ".,:)]-–")
        expected = texts.get(_key(found["key"], keys))
        if expected is not None and _by_text(said, texts) not in (None, _key(found["key"], keys)):
            return Unparsed("letter and text name different options")
    return _key(found["key"], keys)


def _key(letter: str, keys: tuple[str, ...]) -> str:
    return next(key for key in keys if key.upper() == letter.upper())


def _others(rest: str, letter: str, keys: tuple[str, ...]) -> bool:
    """Whether what follows a letter names another one beside it."""
    more = _patterns(keys)[1]
    position = 0
    while found := more.match(rest, position):
        if (found["key1"] or found["key2"]).upper() != letter.upper():
            return True
        position = found.end()
    return False


def _by_text(said: str, texts: Mapping[str, str]) -> str | None:
    if not texts:
        return None
    plain = plain_text(said[:_LONGEST], ignore_punctuation=True)
    named = [key for key, text in texts.items() if plain and plain_text(text, ignore_punctuation=True) == plain]
    return named[0] if len(named) == 1 else None


def _by_box(folded: Folded, keys: tuple[str, ...], texts: Mapping[str, str]) -> Extraction[str] | None:
    if "box" not in folded.text:
        return None
    found, dangling = boxes(folded.text)
    if dangling:
        return Unparsed("the last box is not closed")
    if not found:
        return None
    last = found[-1]
    named = _option(last.value, keys, texts)
    if isinstance(named, Unparsed):
        return named
    earlier = [_option(box.value, keys, texts) for box in found[-_MOST_STATEMENTS:-1]]
    if _covers({*(e for e in earlier if isinstance(e, str)), named}, keys):
        return Unparsed("all options are named")
    if len(found) > 1 and earlier[-1] != named and isinstance(earlier[-1], str):
        between = folded.text[found[-2].span[1] : last.span[0]]
        if len(between) < 40 and not re.search(r"[a-zA-Z]{4,}", between.replace("boxed", "")):
            return Unparsed(_SEVERAL)
    return Extracted(named, folded.span(*last.span), "boxed")


def _covers(named: set[str], keys: tuple[str, ...]) -> bool:
    return len(keys) > 2 and len(named) == len(keys)


@dataclass(frozen=True)
class _Statement:
    """What one "the answer is …" says."""

    key: str | None
    span: tuple[int, int]
    problem: str = ""


def _by_statement(folded: Folded, keys: tuple[str, ...], texts: Mapping[str, str]) -> Extraction[str] | None:
    text = folded.text
    starts = [found.end() for pattern in (_STATEMENT, _CHOSEN) for found in pattern.finditer(text)]
    said = [_stated(text, start, keys, texts) for start in sorted(starts)[-_MOST_STATEMENTS:]]
    for found in list(_patterns(keys)[2].finditer(text))[-_MOST_STATEMENTS:]:
        several = _others(text[found.end("key") : found.end("key") + 40], found["key"], keys)
        said.append(_Statement(_key(found["key"], keys), found.span("key"), _SEVERAL if several else ""))
    made = sorted((one for one in said if one is not None), key=lambda one: one.span)
    if not made:
        return None
    last = made[-1]
    if last.problem:
        return Unparsed(last.problem)
    if _covers({one.key for one in made if one.key and not one.problem}, keys):
        return Unparsed("all options are named")
    if len(made) > 1 and made[-2].key not in (None, last.key):
        between = text[made[-2].span[1] : last.span[0]]
        if len(between) < 60 and between.count("\n") <= 1:
            return Unparsed(_SEVERAL)
    return Extracted(str(last.key), folded.span(*last.span), "answer_phrase")


def _stated(text: str, start: int, keys: tuple[str, ...], texts: Mapping[str, str]) -> _Statement | None:
    """What stands right behind a phrase; None when it is prose."""
    rest = _TEXT_COMMAND.sub(lambda command: " " * len(command.group()), text[start : start + _LONGEST])
    line = rest.lstrip(_DECORATION + ":=-")
    whole = line.split("\n", 1)[0].strip(_DECORATION + ".")
    if " " in whole and (by_text := _by_text(whole, texts)) is not None:  # before its article is taken for a lead
        begin = start + len(rest) - len(line)
        return _Statement(by_text, (begin, begin + len(whole)))
    while leading := _LEADING_WORDS.match(line):
        line = line[leading.end() :].lstrip(_DECORATION)
    line = line.lstrip(_DECORATION + "\\")
    begin = start + len(rest) - len(line)
    line = line.split("\n", 1)[0]
    found = _patterns(keys)[0].match(line)
    if found is None:
        by_text = _by_text(line.strip(_DECORATION + "."), texts)
        if by_text is not None:
            return _Statement(by_text, (begin, begin + len(line)))
        elsewhere = _NO_OPTION.match(line)
        return _Statement(None, (begin, begin + 1), "an option that is not offered") if elsewhere else None
    span = (begin + found.start("key"), begin + found.end("key"))
    after = line[found.end() :]
    if _others(after, found["key"], keys):
        return _Statement(None, span, _SEVERAL)
    behind = after.lstrip("*_`$\"'}")
    if _REFUSED.match(behind):
        return _Statement(None, span, "an option is refused, none is chosen")
    bare = found.group().strip() == found["key"]
    if not bare or behind[:1] in _STOPS or _REASON.match(behind):
        return _Statement(_key(found["key"], keys), span)
    is_word = found["key"] in "AIai" or found["key"].islower()
    return None if is_word else _Statement(_key(found["key"], keys), span)


def _by_line(folded: Folded, keys: tuple[str, ...], _texts: Mapping[str, str]) -> Extraction[str] | None:
    """The last line, when it is an option and no other line is one as well."""
    text = folded.text.rstrip()
    start = text.rfind("\n") + 1
    line = text[start:]
    if len(line) > _LONGEST:
        return None
    named = _line_option(line, keys)
    if named is None and (arrow := re.search(r"(?:->|=>|→|⇒|:)\s*([^\s{}]{1,8})$", line)) is not None:
        named = _line_option(arrow[1], keys)
    if named is None:
        return None
    key, with_text = named
    others = set()
    for earlier in text[:start].split("\n")[-_MOST_STATEMENTS:]:
        other = _line_option(earlier, keys) if len(earlier) <= _LONGEST else None
        if other is not None and (with_text or not other[1]):
            others.add(other[0])
    if others - {key}:
        return Unparsed(_SEVERAL)
    return Extracted(key, folded.span(start, len(text)), "last_line")


def _marked(text: str, keys: tuple[str, ...]) -> set[str]:
    """Options that stand in a text the way lists of options are written: `(B)`, `B.`, `B)`."""
    return {key for key in keys if re.search(rf"(?<![^\W_])[\[(]?{re.escape(key)}[\]).:]|[.)]{re.escape(key)}$", text)}


def _line_option(line: str, keys: tuple[str, ...]) -> tuple[str, bool] | None:
    """The option a line is, and whether its text stands there too."""
    plain = _TEXT_COMMAND.sub("", line).strip(_DECORATION + "-")
    plain = re.sub(r"^(?:option|choice|answer)\s+", "", plain, flags=re.IGNORECASE)
    found = _patterns(keys)[0].match(plain)
    if found is None:
        return None
    rest = plain[found.end() :].strip(_DECORATION)
    bare = found.group().strip() == found["key"]
    if not rest.strip(".,!"):
        return (_key(found["key"], keys), False) if bare is False or found["key"] in keys or rest else None
    separated = not bare or rest[0] in ".):"
    if not separated or _others(plain[found.end() :], found["key"], keys):
        return None
    if _REFUSED.search(rest) or _marked(rest, keys) - {_key(found["key"], keys)}:
        return None
    return _key(found["key"], keys), True
