r"""LaTeX of an answer brought to one spelling, and cut at the places where its structure is.

Text in, text out: nothing is evaluated. `\dfrac` and `\tfrac` become `\frac`, spacing commands a space, `\left(` a
bracket, `≤` becomes `\le`. Text commands become their content between guillemets, so that words stay known as words.
"""

import re
from collections.abc import Iterator

from nemo_gym.grading.normalise import fold

LONGEST = 4000
"""More than this is not an answer."""

_REPLACED = {
    "dfrac": "\\frac",
    "tfrac": "\\frac",
    "cfrac": "\\frac",
    "leq": "\\le",
    "leqslant": "\\le",
    "geq": "\\ge",
    "geqslant": "\\ge",
    "neq": "\\ne",
    "lt": "<",
    "gt": ">",
    "lbrace": "\\{",
    "rbrace": "\\}",
    "lbrack": "[",
    "rbrack": "]",
    "degree": "°",
    "percent": "%",
    "dots": "\\ldots",
    "cdots": "\\ldots",
    "land": " and ",
    "lor": " or ",
    "colon": ":",
    "to": "\\to",
    "rightarrow": "\\to",
    "empty": "\\emptyset",
    "varnothing": "\\emptyset",
}
_DROPPED = {
    *("left", "right", "displaystyle", "textstyle", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr"),
    *("limits", "boldsymbol", "bf", "rm", "bm", "mathbf", "mathit", "mathsf", "boxed", "fbox", "ensuremath"),
}
_SPACES = {"quad", "qquad", "thinspace", "medspace", "thickspace", "space", "hspace", "enspace", "phantom"}
_TEXTS = {"text", "textbf", "textit", "textrm", "textsf", "textnormal", "mathrm", "mbox", "mathcal", "operatorname"}
_FUNCTION_NAMES = {
    "sin",
    "cos",
    "tan",
    "log",
    "ln",
    "exp",
    "det",
    "gcd",
    "lcm",
    "arcsin",
    "arccos",
    "arctan",
    "min",
    "max",
}
_SYMBOLS = {
    "∞": "\\infty ",
    "π": "\\pi ",
    "√": "\\sqrt ",
    "≤": "\\le ",
    "≥": "\\ge ",
    "≠": "\\ne ",
    "∪": "\\cup ",
    "∩": "\\cap ",
    "∈": "\\in ",
    "±": "\\pm ",
    "∓": "\\mp ",
    "∅": "\\emptyset ",
    "θ": "\\theta ",
    "α": "\\alpha ",
    "β": "\\beta ",
    "γ": "\\gamma ",
    "λ": "\\lambda ",
    "φ": "\\phi ",
    "ω": "\\omega ",
    "≈": "\\approx ",
    "→": "\\to ",
    "…": "\\ldots ",
}
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
    """One spelling for everything that means the same in print. Length at most that of a small multiple of `text`."""
    text = unwrapped(text if text.isascii() else fold(text).text.replace("}^{", "").replace("}_{", ""))
    for symbol, command in _SYMBOLS.items():
        if symbol in text:
            text = text.replace(symbol, command)
    text = _DEGREES.sub("°", _commands(text).replace("{,}", ","))
    text = _SHORT_FRACTION.sub(_braced_fraction, _ROOT.sub(r"\\sqrt{\1}", text))
    text = _plain(text)
    return " ".join(unwrapped(text.replace("\\circ", "°")).split())


def _plain(text: str) -> str:
    """What people type without LaTeX: `sqrt(3)`, `pi`, `x**2`, `x^10`, `5 != 6`."""
    text = _PLAIN_ROOT.sub(r"\\sqrt{\1}", text.replace("**", "^"))
    text = _PLAIN_NAME.sub(lambda found: "\\infty " if found[1][0] in "io" else f"\\{found[1]} ", text)
    return _RAISED.sub(lambda found: f"^{{{found[1] or found[2]}}}", text)


def _braced_fraction(found: re.Match[str]) -> str:
    above, below = found[1] or found[2] or "", found[3] or found[4] or ""
    return f"\\frac{{{above.strip()}}}{{{below.strip()}}}"


def unwrapped(text: str) -> str:
    """`text` without dollar signs, math delimiters, emphasis and the full stop around it."""
    before = None
    while before != text:
        before = text
        text = text.strip().strip("~").strip()
        if text.endswith((".", ",", ";")) and not text.endswith(("..", "\\,", "\\;")):
            text = text[:-1]
        for opening, closing in _WRAPPERS:
            inside = text[len(opening) : -len(closing)]
            if not (text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing)):
                continue
            if opening not in inside and closing not in inside:
                text = inside
    return text


def _commands(text: str) -> str:
    pieces: list[str] = []
    position = 0
    while (found := _COMMAND.search(text, position)) is not None:
        pieces.append(text[position : found.start()])
        position = found.end()
        name = found[1]
        if name in _TEXTS and (content := _TEXT_CONTENT.match(text, position)):
            position = content.end()
            pieces.append(_words(content[1]))
        else:
            pieces.append(_spelled(name))
    pieces.append(text[position:])
    return "".join(pieces)


def _words(content: str) -> str:
    content = content.replace("\\", "").replace("$", "")
    if content.strip().lower() in ("and", "or"):
        return f" {content.strip().lower()} "
    if content.strip() and not any(character.isalpha() for character in content):
        return content  # a number in \\text is a number
    if content.strip() in _FUNCTION_NAMES:
        return f"\\{content.strip()} "
    return f"«{content}»"


def _spelled(name: str) -> str:
    if name in _REPLACED:
        return _REPLACED[name] + (" " if _REPLACED[name].startswith("\\") and _REPLACED[name][-1].isalpha() else "")
    if name in _DROPPED:
        return ""
    if name in _SPACES or name in ",;:! \t\n":
        return "" if name == "!" else " "
    if name in "%$#&_":
        return name
    if name in "()[]":  # a leftover of \( \) \[ \]
        return ""
    return f"\\{name}" + (" " if name[0].isalpha() else "")


_OPENERS, _CLOSERS = "([{", ")]}"
_DEPTH = re.compile(r"\\begin|\\end|\\[{}]|\\[a-zA-Z]+|[()\[\]{}«»]")


def levels(text: str) -> Iterator[tuple[int, int, str]]:
    """Every bracket with its position and the depth outside it: `(position, depth, token)`."""
    depth = 0
    for found in _DEPTH.finditer(text):
        token = found.group()
        if token in ("\\begin", "\\{", "«") or token in _OPENERS:
            yield found.start(), depth, token
            depth += 1
        elif token in ("\\end", "\\}", "»") or token in _CLOSERS:
            depth = max(depth - 1, 0)
            yield found.start(), depth, token


def outside(text: str) -> list[bool]:
    """For every character whether it stands outside all brackets."""
    flags = [True] * len(text)
    opened = None
    for position, depth, token in levels(text):
        opens = token in ("\\begin", "\\{", "«") or token in _OPENERS
        if opens and depth == 0:
            opened = position
        elif not opens and depth == 0 and opened is not None:
            end = position + len(token)
            flags[opened:end] = [False] * (end - opened)
            opened = None
    if opened is not None:
        flags[opened:] = [False] * (len(text) - opened)
    return flags


def split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """`text` cut where `separator` matches outside all brackets, and the separators found there."""
    flags = outside(text)
    parts, separators, start = [], [], 0
    for found in separator.finditer(text):
        if found.start() < len(flags) and flags[found.start()]:
            parts.append(text[start : found.start()].strip())
            separators.append(found.group().strip())
            start = found.end()
    return [*parts, text[start:].strip()], separators


def bracketed(text: str) -> tuple[str, str, str] | None:
    """`(opening, inside, closing)` when one pair of brackets holds all of `text`; `\\{` stays `\\{`."""
    flat = text.replace("\\{", "\x01").replace("\\}", "\x02")
    if len(flat) < 2 or flat[0] not in "([{\x01" or flat[-1] not in ")]}\x02":
        return None
    depth = 0
    for position, character in enumerate(flat):
        if character in "([{\x01":
            depth += 1
        elif character in ")]}\x02":
            depth -= 1
            if depth == 0 and position < len(flat) - 1:
                return None
    if depth:
        return None
    inside = flat[1:-1].replace("\x01", "\\{").replace("\x02", "\\}").strip()
    return flat[0].replace("\x01", "\\{"), inside, flat[-1].replace("\x02", "\\}")


def is_balanced(text: str) -> bool:
    """Whether every brace is closed; `\\{` and `\\}` are text."""
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth < 0:
            return False
    return depth == 0
