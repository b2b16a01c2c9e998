"""Parse the structure of a mathematical answer: number, words, list, set, tuple, interval, matrix, equation.

Only the structure is parsed. Its items are exact numbers or LaTeX expressions that the symbolic comparison reads.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

from nemo_gym.grading import latex
from nemo_gym.grading.numbers import Number, parse_cleaned_number
from nemo_gym.grading.text import normalise_text
from nemo_gym.grading.units import MeasurementUnit, split_unit

MAX_ITEMS = 64
MAX_DEPTH = 6


@dataclass(frozen=True)
class WordAnswer:
    """An answer in words, folded for comparison."""

    text: str


@dataclass(frozen=True)
class Expression:
    """LaTeX that is neither a number nor words."""

    text: str
    unit: MeasurementUnit | None = None


@dataclass(frozen=True)
class Assignment:
    """`x = …`: a name and its value."""

    name: str
    value: "MathShape"
    text: str


@dataclass(frozen=True)
class Relation:
    """An equation or inequality that is not an assignment or an interval."""

    left: str
    sign: str
    right: str


@dataclass(frozen=True)
class ItemGroup:
    """A list, set, tuple or interval: items and brackets as written, without brackets for a bare list."""

    brackets: str
    items: tuple["MathShape", ...]
    variable: str | None = None
    """The variable of an interval that was written as an inequality."""

    @property
    def is_ordered(self) -> bool:
        return self.brackets not in ("", "{}")


@dataclass(frozen=True)
class SetUnion:
    """Intervals or sets joined by a union sign."""

    parts: tuple["MathShape", ...]


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple["MathShape", ...], ...]


@dataclass(frozen=True)
class Unreadable:
    """The reason why a text is no answer: it contradicts itself, is too long or too deep."""

    reason: str


MathShape: TypeAlias = (
    Number | WordAnswer | Expression | Assignment | Relation | ItemGroup | SetUnion | Matrix | Unreadable
)

_LIST = re.compile(r",? and (?:or )?|,? or |;|,")
_GROUPED = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])")
_EQUALS = re.compile(r"(?<![<>!\\:])=(?!=)")
_ORDER = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|<=|>=|<|>")
_OTHER_SIGN = re.compile(r"\\(?:ne|approx|equiv|sim|to|in|subset)(?![a-zA-Z])")
_UNION = re.compile(r"\\cup(?![a-zA-Z])")
_IN = re.compile(r"[a-zA-Z](?:_\{?\w+\}?)? ?\\in(?![a-zA-Z]) ?")
_MATRIX = re.compile(
    r"\\begin ?\{(?:[pbB]?matrix|array)\}(?: ?\{[lcr| ]*\})?(.*)\\end ?\{(?:[pbB]?matrix|array)\}", re.DOTALL
)
_NAME = re.compile(
    r"(?:[a-zA-Z]|\\[a-zA-Z]+ ?|«[^«»]*»|[A-Za-z][a-z]{2,20}(?: [a-z]{2,20}){0,3})"
    r"(?:_ ?(?:\{[^{}]{1,12}\}|\w))?'{0,2}(?: ?\( ?[a-zA-Z](?: ?, ?[a-zA-Z])* ?\))?"
)
_VARIABLE = re.compile(r"[a-zA-Z]|\\[a-zA-Z]+")
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[ '.,!?:()-])*")
_FUNCTIONS = re.compile(
    r"\\(?:sin|cos|tan|cot|sec|csc|log|ln|exp|frac|sqrt|pi|theta|alpha|beta|gamma|infty|emptyset|sum|int|lim|begin)"
)
_PLAIN_WORD = re.compile(r"[^\W\d_]{3,}")
_POINTS = re.compile(r"[A-Z]{2,6}")
"""Points and segments (`AB`) have an order that a product of letters has not."""
_REALS = ("\\mathbb{R}", "\\mathbb {R}", "\\mathbb R", "\\Re")
_EMPTY_WORDS = ("no solution", "no solutions", "empty set", "no real solutions", "no real solution")


def parse_math(text: str) -> MathShape:
    """Parse an answer as written."""
    if len(text) > latex.MAX_LENGTH:
        return Unreadable(f"longer than {latex.MAX_LENGTH} characters")
    cleaned = latex.clean(text)
    return _read(cleaned, 0) if latex.is_balanced(cleaned) else Unreadable("braces that are not closed")


def _read(text: str, depth: int) -> MathShape:
    if depth > MAX_DEPTH:
        return Unreadable("nested too deep")
    if not text:
        return Unreadable("empty")
    if (number := parse_cleaned_number(text)) is not None:
        return number
    if (words := _words(text)) is not None:
        return words
    text = _usual_brackets(_without_membership(text))
    if "\\pm" in text or "\\mp" in text:
        both = _signs(text, depth)
        if both is not None:
            return both
    for reader in (_union, _items, _relation, _group, _matrix):
        shape = reader(text, depth)
        if shape is not None:
            return shape
    core, unit = split_unit(text)
    return Expression(_tidy(core), unit) if unit and not unit.is_multiplier else Expression(_tidy(text))


def _without_membership(text: str) -> str:
    match = _IN.match(text)
    return text[match.end() :] if match else text


def _usual_brackets(text: str) -> str:
    """Rewrite the open interval `]1,2[` with round brackets."""
    if len(text) < 4 or "," not in text or not (text[0] == "]" or text[-1] == "["):
        return text
    return ("(" if text[0] == "]" else text[0]) + text[1:-1] + (")" if text[-1] == "[" else text[-1])


def _words(text: str) -> WordAnswer | None:
    marked = "«" in text
    flat = text.replace("«", " ").replace("»", " ")
    flat = " ".join(flat.split())
    if not flat or _FUNCTIONS.search(flat) or "\\" in flat or not _WORDS.fullmatch(flat.strip("(")):
        return None
    words = normalise_text(flat, ignore_punctuation=True)
    if marked and len(words) == 1:
        return None  # a letter in \text is still a letter
    if _POINTS.fullmatch(flat):
        return WordAnswer(words)
    if marked or (_PLAIN_WORD.search(flat) and all(len(w) > 1 or w in "aI" for w in flat.split())):
        return WordAnswer(words) if marked or (words and not re.search(r"\b(?:and|or)\b", words)) else None
    return None


def _signs(text: str, depth: int) -> MathShape | None:
    if latex.split_brackets(text) or "," in text or " or " in text or " and " in text:
        return None
    upper = _read(text.replace("\\pm", "+").replace("\\mp", "-"), depth + 1)
    lower = _read(text.replace("\\pm", "-").replace("\\mp", "+"), depth + 1)
    return ItemGroup("", (upper, lower))


def _union(text: str, depth: int) -> MathShape | None:
    parts, signs = latex.split(text, _UNION)
    if not signs:
        return None
    shapes = _read_all(parts, depth)
    return shapes if isinstance(shapes, Unreadable) else SetUnion(shapes)


def _read_all(parts: list[str], depth: int) -> tuple[MathShape, ...] | Unreadable:
    if len(parts) > MAX_ITEMS:
        return Unreadable(f"more than {MAX_ITEMS} things")
    shapes = tuple(_read(part, depth + 1) for part in parts)
    return _first_unreadable(shapes) or shapes


def _first_unreadable(shapes: tuple[MathShape, ...]) -> Unreadable | None:
    return next((shape for shape in shapes if isinstance(shape, Unreadable)), None)


def _items(text: str, depth: int, brackets: str = "") -> MathShape | None:
    """Parse items between commas. `10,000` is one item outside brackets, and inside if other commas have a space."""
    spaced = re.search(r",\s", text) is not None
    source = _GROUPED.sub(lambda match: match.group().replace(",", "\x00"), text) if not brackets or spaced else text
    parts, commas = latex.split(source, _LIST)
    if not commas:
        return None
    parts = [part.replace("\x00", ",") for part in parts]
    if not brackets and parts and not parts[-1]:
        parts = parts[:-1]
    shapes = _read_all(parts, depth)
    if isinstance(shapes, Unreadable):
        return shapes
    if not brackets:  # ± inside a list stands for two of its items
        flat: list[MathShape] = []
        for shape in shapes:
            flat.extend(shape.items if isinstance(shape, ItemGroup) and shape.brackets == "" else [shape])
        shapes = tuple(flat)
    return ItemGroup(brackets, shapes)


def _group(text: str, depth: int) -> MathShape | None:
    if text in ("\\{\\}", "\\{ \\}", "\\emptyset"):
        return ItemGroup("{}", ())
    if text in _REALS:
        return ItemGroup("()", (Expression("-\\infty"), Expression("\\infty")))
    parts = latex.split_brackets(text)
    if parts is None:
        return None
    opening, inside, closing = parts
    brackets = (opening + closing).replace("\\", "")
    several = _items(inside, depth, brackets)
    if several is not None:
        return several
    if opening + closing in ("()", "{}"):  # only grouping
        return _read(inside, depth + 1)
    if brackets in ("{}", "[]"):
        only = _read(inside, depth + 1)
        if isinstance(only, Unreadable):
            return only
        items = only.items if isinstance(only, ItemGroup) and only.brackets == "" else (only,)
        return ItemGroup(brackets, items)
    return None


def _matrix(text: str, depth: int) -> MathShape | None:
    match = _MATRIX.fullmatch(text)
    if match is None:
        return None
    lines = [line for line in re.split(r"\\\\(?: ?\[[^\]]*\])?", match[1]) if line.strip()]
    rows = tuple(tuple(_read(cell.strip(), depth + 1) for cell in line.split("&")) for line in lines)
    cells = tuple(cell for row in rows for cell in row)
    if not cells or len(cells) > MAX_ITEMS or len({len(row) for row in rows}) != 1:
        return Unreadable("a matrix with rows of different lengths, or too large")
    return _first_unreadable(cells) or Matrix(rows)


def _relation(text: str, depth: int) -> MathShape | None:
    parts, signs = latex.split(text, _ORDER)
    if signs:
        return _inequality(parts, signs, depth)
    parts, signs = latex.split(text, _EQUALS)
    if signs:
        return _equation(text, parts, depth)
    parts, signs = latex.split(text, _OTHER_SIGN)
    if len(signs) == 1:
        return Relation(parts[0], signs[0], parts[1])
    return None


def _equation(text: str, parts: list[str], depth: int) -> MathShape:
    if not all(parts):
        return Unreadable("an equation with nothing on one side")
    values = [number for part in parts if (number := parse_cleaned_number(part)) is not None]
    if len({number.value for number in values}) > 1:
        return Unreadable("an equation that contradicts itself")
    if _NAME.fullmatch(parts[0]):
        value = _read(parts[-1], depth + 1)
        return value if isinstance(value, Unreadable) else Assignment(_name(parts[0]), value, text)
    if len(parts) > 2:
        return Unreadable("a chain of equations")
    if not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", parts[0])):
        return Unreadable("a calculation, not an answer")
    return Relation(parts[0], "=", parts[1])


def _name(text: str) -> str:
    return normalise_text(text.replace("«", "").replace("»", "").replace("{", "").replace("}", "")).replace(" ", "")


def _inequality(parts: list[str], signs: list[str], depth: int) -> MathShape:
    order = ["<" if s == "<" else ">" if s == ">" else "<=" if s in ("\\le", "<=") else ">=" for s in signs]
    if not all(parts) or len(parts) > 3:
        return Unreadable("an inequality with nothing on one side, or a long chain")
    if len(parts) == 2:
        left, right, sign = parts[0], parts[1], order[0]
        if not _VARIABLE.fullmatch(left.strip()):
            left, right, sign = right, left, sign.translate(str.maketrans("<>", "><"))
        if not _VARIABLE.fullmatch(left.strip()) or re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", right)):
            return Relation(parts[0], order[0], parts[1])
        low, high = (right, "\\infty") if sign[0] == ">" else ("-\\infty", right)
        closed = "=" in sign
        brackets = ("[" if closed and sign[0] == ">" else "(") + ("]" if closed and sign[0] == "<" else ")")
        return _interval(brackets, low, high, left, depth)
    if order[0][0] != order[1][0] or not _VARIABLE.fullmatch(parts[1].strip()):
        return Unreadable("a chain of inequalities")
    low, high, first, second = parts[0], parts[2], order[0], order[1]
    if first[0] == ">":
        low, high, first, second = high, low, second, first
    return _interval(("[" if "=" in first else "(") + ("]" if "=" in second else ")"), low, high, parts[1], depth)


def _interval(brackets: str, low: str, high: str, variable: str, depth: int) -> MathShape:
    ends = (_read(low, depth + 1), _read(high, depth + 1))
    return _first_unreadable(ends) or ItemGroup(brackets, ends, variable.strip())


_SPACE = re.compile(r"(?<![a-zA-Z]) +| +(?![a-zA-Z])")


def _tidy(text: str) -> str:
    """Remove spaces except where a command would run into a letter."""
    return _SPACE.sub("", text.replace("«", "").replace("»", "")).removeprefix("+")


def is_empty(shape: MathShape) -> bool:
    """Return whether the answer is the empty set, or words for it."""
    return (isinstance(shape, ItemGroup) and not shape.items) or (
        isinstance(shape, WordAnswer) and shape.text in _EMPTY_WORDS
    )
