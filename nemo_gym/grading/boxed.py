r"""The last `\boxed{…}` of a text, braces balanced."""

import re

from nemo_gym.grading.verdict import Extracted, Extraction, Unparsed

_TOKEN = re.compile(
    r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s{0,8}(?:\{|(?P<bare>[0-9A-Za-z.,]{1,32}(?=\s|\$|$)))|\\.|[{}]", re.DOTALL
)


def boxes(text: str) -> tuple[list[Extracted[str]], bool]:
    r"""Every outermost complete box in order, and whether a later one was opened and never closed.

    `\{` and `\}` are text, as in TeX. A box inside a box belongs to the outer one. One pass, whatever the text.
    """
    found: list[Extracted[str]] = []
    open_braces: list[tuple[int, int] | None] = []  # of a box: where the command and where the content starts
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word == "}":
            opened = open_braces.pop() if open_braces else None
            if opened is not None:
                _keep(found, Extracted(text[opened[1] : token.start()], (opened[0], token.end()), "boxed"))
        elif word == "{":
            open_braces.append(None)
        elif token["bare"] is not None:
            _keep(found, Extracted(token["bare"], token.span(), "boxed_token"))
        elif word.endswith("{") and len(word) > 2:
            open_braces.append((token.start(), token.end()))
    last_end = found[-1].span[1] if found else 0
    return found, any(opened is not None and opened[0] >= last_end for opened in open_braces)


def _keep(found: list[Extracted[str]], box: Extracted[str]) -> None:
    while found and found[-1].span[0] >= box.span[0]:
        found.pop()
    found.append(box)


def last_boxed(text: str) -> Extraction[str]:
    r"""The content of the last `\boxed{…}` or `\fbox{…}`.

    When the last box is empty or never closed there is no answer: falling back to an earlier one would grade
    something the model went on from.
    """
    found, dangling = boxes(text)
    if dangling:
        return Unparsed("the last box is not closed")
    if not found:
        return Unparsed("there is no box")
    last = found[-1]
    if not last.value.strip(" \t\r\n$~"):
        return Unparsed("the last box is empty")
    return Extracted(last.value.strip(), last.span, last.rule)
