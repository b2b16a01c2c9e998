r"""Normalise the LaTeX of an answer, and split it at its brackets and separators.

Nothing is evaluated. `\dfrac` and `\tfrac` become `\frac`, spacing commands become a space, `\left(` becomes `(`, `≤`
becomes `\le`. `\text{…}` becomes its content between guillemets (`«…»`), which marks it as words.
"""

import re
from collections.abc import Iterator

from nemo_gym.grading.text import fold

MAX_LENGTH = 4000
"""Maximum length of an answer."""

_REPLACED = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("leq", "leqslant"), "\\le"),
    **dict.fromkeys(("geq", "geqslant"), "\\ge"),
    **dict.fromkeys(("dots", "cdots"), "\\ldots"),
    **dict.fromkeys(("to", "rightarrow"), "\\to"),
    **dict.fromkeys(("empty", "varnothing"), "\\emptyset"),
    "neq": "\\ne", "lt": "<", "gt": ">", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]",
    "degree": "°", "percent": "%", "land": " and ", "lor": " or ", "colon": ":",
}  # fmt: skip
_DROPPED = {
    *("left", "right", "displaystyle", "textstyle", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr"),
    *("limits", "boldsymbol", "bf", "rm", "bm", "mathbf", "mathit", "mathsf", "boxed", "fbox", "ensuremath"),
}
_SPACES = {"quad", "qquad", "thinspace", "medspace", "thickspace", "space", "hspace", "enspace", "phantom"}
_TEXTS = {"text", "textbf", "textit", "textrm", "textsf", "textnormal", "mathrm", "mbox", "mathcal", "operatorname"}
_FUNCTION_NAMES = {
    *("sin", "cos", "tan", "log", "ln", "exp", "det", "gcd", "lcm", "arcsin", "arccos", "arctan", "min", "max"),
}
_SYMBOLS = {
    "∞": "\\infty ", "π": "\\pi ", "√": "\\sqrt ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ",
    "∩": "\\cap ", "∈": "\\in ", "±": "\\pm ", "∓": "\\mp ", "∅": "\\emptyset ", "θ": "\\theta ", "α": "\\alpha ",
    "β": "\\beta ", "γ": "\\gamma ", "λ": "\\lambda ", "φ": "\\phi ", "ω": "\\omega ", "≈": "\\approx ", "→": "\\to ",
    "…": "\\ldots ",
}  # fmt: skip
_COMMAND = re.compile(r"\\([a-zA-Z]+|.)", re.DOTALL)
_TEXT_CONTENT = re.compile(r"\s*\{([^{}]*)\}")
_DEGREES = re.compile(r"\^\s*(?:\{\s*(?:\\circ|°|o)\s*\}|\\circ|°)")
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"))
_PLAIN_ROOT = re.compile(r"(?<![a-zA-Z\\])sqrt ?\(([^()]*)\)")
_PLAIN_NAME = re.compile(r"(?<![a-zA-Z\\«])(pi|theta|sin|cos|tan|ln|log|infinity|inf|oo)(?![a-zA-Z])(?![^«]*»)")
_RAISED = re.compile(r"\^ ?(?:(-?\d+)|\((-?[^()]{1,40})\))")
_ROOT = re.compile(r"\\sqrt\s*(\d+|[a-zA-Z](?![a-zA-Z]))")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:(\d)|\{([^{}]*)\})\s*(?:(\d)|\{([^{}]*)\})")


def clean(text: str) -> str:
    """Normalise `text`, so that notations that look the same become equal strings."""
    if not text.isascii():  # `fold` writes x¹² as x^{1}^{2}, which becomes x^{12}
        text = fold(text).text.replace("}^{", "").replace("}_{", "")
    text = strip_wrappers(text)
    for symbol, command in _SYMBOLS.items():
        if symbol in text:
            text = text.replace(symbol, command)
    text = _DEGREES.sub("°", _clean_commands(text).replace("{,}", ","))
    text = _SHORT_FRACTION.sub(_braced_fraction, _ROOT.sub(r"\\sqrt{\1}", text))
    text = _clean_ascii_math(text)
    return " ".join(strip_wrappers(text.replace("\\circ", "°")).split())


def _clean_ascii_math(text: str) -> str:
    """Convert plain-text notation to LaTeX: `sqrt(3)`, `pi`, `x**2`, `x^10`."""
    text = _PLAIN_ROOT.sub(r"\\sqrt{\1}", text.replace("**", "^"))
    text = _PLAIN_NAME.sub(lambda match: "\\infty " if match[1][0] in "io" else f"\\{match[1]} ", text)
    return _RAISED.sub(lambda match: f"^{{{match[1] or match[2]}}}", text)


def _braced_fraction(match: re.Match[str]) -> str:
    """Return a match of `_SHORT_FRACTION`, such as `\\frac12`, with braces."""
    above, below = match[1] or match[2] or "", match[3] or match[4] or ""
    return f"\\frac{{{above.strip()}}}{{{below.strip()}}}"


def strip_wrappers(text: str) -> str:
    """Remove dollar signs, math delimiters and emphasis around `text`, and punctuation after it."""
    previous = None
    while previous != text:
        previous = text
        text = text.strip().strip("~").strip()
        if text.endswith((".", ",", ";")) and not text.endswith(("..", "\\,", "\\;")):
            text = text[:-1]
        for opening, closing in _WRAPPERS:
            inside = text[len(opening) : -len(closing)]
            is_wrapped = text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing)
            if is_wrapped and opening not in inside and closing not in inside:
                text = inside
    return text


def _clean_commands(text: str) -> str:
    """Normalise every LaTeX command in `text`."""
    pieces: list[str] = []
    position = 0
    while (match := _COMMAND.search(text, position)) is not None:
        pieces.append(text[position : match.start()])
        position = match.end()
        name = match[1]
        if name in _TEXTS and (content := _TEXT_CONTENT.match(text, position)):
            position = content.end()
            pieces.append(_clean_text_command(content[1]))
        else:
            pieces.append(_clean_command(name))
    pieces.append(text[position:])
    return "".join(pieces)


def _clean_text_command(content: str) -> str:
    """Return the normal form of `\\text{content}`."""
    content = content.replace("\\", "").replace("$", "")
    if content.strip().lower() in ("and", "or"):
        return f" {content.strip().lower()} "
    if content.strip() and not any(character.isalpha() for character in content):
        return content  # only words are marked, not numbers
    if content.strip() in _FUNCTION_NAMES:
        return f"\\{content.strip()} "
    return f"«{content}»"


def _clean_command(name: str) -> str:
    """Return the normal form of the command `\\name`."""
    if replacement := _REPLACED.get(name):
        is_command = replacement.startswith("\\") and replacement[-1].isalpha()
        return f"{replacement} " if is_command else replacement
    if name in _DROPPED:
        return ""
    if name in _SPACES or name in ",;:! \t\n":
        return "" if name == "!" else " "
    if name in "%$#&_":
        return name
    if name in "()[]":  # math delimiters \( \) \[ \]
        return ""
    return f"\\{name}" + (" " if name[0].isalpha() else "")


_OPENING = {"\\begin", "\\{", "«", "(", "[", "{"}
_CLOSING = {"\\end", "\\}", "»", ")", "]", "}"}
_BRACKET_OR_COMMAND = re.compile(r"\\begin|\\end|\\[{}]|\\[a-zA-Z]+|[()\[\]{}«»]")


def bracket_levels(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield `(position, depth, token)` of every bracket; the depth is the number of brackets around it."""
    depth = 0
    for match in _BRACKET_OR_COMMAND.finditer(text):
        token = match.group()
        if token in _OPENING:
            yield match.start(), depth, token
            depth += 1
        elif token in _CLOSING:
            depth = max(depth - 1, 0)
            yield match.start(), depth, token


def outside_brackets(text: str) -> list[bool]:
    """Return for every character whether it is outside all brackets."""
    flags = [True] * len(text)
    start = None
    for position, depth, token in bracket_levels(text):
        is_opening = token in _OPENING
        if is_opening and depth == 0:
            start = position
        elif not is_opening and depth == 0 and start is not None:
            end = position + len(token)
            flags[start:end] = [False] * (end - start)
            start = None
    if start is not None:
        flags[start:] = [False] * (len(text) - start)
    return flags


def split_outside_brackets(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Split `text` where `separator` matches outside all brackets; return the parts and the separators."""
    flags = outside_brackets(text)
    parts, separators, start = [], [], 0
    for match in separator.finditer(text):
        if match.start() < len(flags) and flags[match.start()]:
            parts.append(text[start : match.start()].strip())
            separators.append(match.group().strip())
            start = match.end()
    return [*parts, text[start:].strip()], separators


def split_brackets(text: str) -> tuple[str, str, str] | None:
    """Return `(opening, inside, closing)` if one pair of brackets encloses the whole `text`, else None."""
    opening = next((bracket for bracket in ("(", "[", "{", "\\{") if text.startswith(bracket)), None)
    if opening is None:
        return None
    levels = bracket_levels(text)
    outer_closings = ((position, token) for position, depth, token in levels if depth == 0 and token in _CLOSING)
    position, closing = next(outer_closings, (0, ""))
    if position + len(closing) != len(text) or closing not in (")", "]", "}", "\\}"):
        return None
    return opening, text[len(opening) : position].strip(), closing


def is_balanced(text: str) -> bool:
    """Return whether all braces are paired; `\\{` and `\\}` are text, not braces."""
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth < 0:
            return False
    return depth == 0
