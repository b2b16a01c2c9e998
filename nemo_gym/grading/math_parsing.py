"""Parse the structure of a mathematical answer: number, words, list, set, tuple, interval, matrix, equation.

Only the structure is parsed. Its items are exact numbers, words or LaTeX expressions for the symbolic comparison.
"""

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from nemo_gym.grading import latex
from nemo_gym.grading.numbers import Number, parse_cleaned_number
from nemo_gym.grading.text import normalise_text
from nemo_gym.grading.units import MeasurementUnit, split_unit

MAX_ITEMS = 64
MAX_DEPTH = 6


@dataclass(frozen=True)
class WordAnswer:
    """An answer in words, normalised for comparison."""

    text: str


@dataclass(frozen=True)
class Expression:
    """LaTeX that is neither a number nor words."""

    text: str
    unit: MeasurementUnit | None = None
    text_with_unit: str = field(default="", compare=False)


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
    """A list, set, tuple or interval with its brackets as written; `brackets` is empty for a bare list."""

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
    """A text that cannot be parsed as an answer: contradictory, too long or too deeply nested."""

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
"""Points and segments (`AB`): the order of the letters matters, unlike in a product."""
_REALS = ("\\mathbb{R}", "\\mathbb {R}", "\\mathbb R", "\\Re")
_EMPTY_WORDS = ("no solution", "no solutions", "empty set", "no real solutions", "no real solution")


def parse_math(text: str) -> MathShape:
    """Parse the structure of an answer."""
    if len(text) > latex.MAX_LENGTH:
        return Unreadable(f"longer than {latex.MAX_LENGTH} characters")
    cleaned = latex.clean(text)
    return _parse_shape(cleaned, 0) if latex.is_balanced(cleaned) else Unreadable("unbalanced braces")


def _parse_shape(text: str, depth: int) -> MathShape:
    """Parse cleaned text; `depth` is the nesting depth."""
    if depth > MAX_DEPTH:
        return Unreadable("nested too deep")
    if not text:
        return Unreadable("empty")
    if (number := parse_cleaned_number(text)) is not None:
        return number
    if (words := _parse_words(text)) is not None:
        return words
    text = _with_round_brackets(_without_membership(text))
    if "\\pm" in text or "\\mp" in text:
        pair = _parse_plus_minus(text, depth)
        if pair is not None:
            return pair
    for parser in (_parse_union, _parse_items, _parse_relation, _parse_group, _parse_matrix):
        shape = parser(text, depth)
        if shape is not None:
            return shape
    core, unit = split_unit(text)
    if unit is None or unit.is_multiplier:
        return Expression(_tidy(text))
    return Expression(_tidy(core), unit, _tidy(text))


def _without_membership(text: str) -> str:
    """Remove a leading `x \\in`."""
    match = _IN.match(text)
    return text[match.end() :] if match else text


def _with_round_brackets(text: str) -> str:
    """Rewrite outward brackets of an open interval (`]1,2[`) as round brackets."""
    if len(text) < 4 or "," not in text or not (text[0] == "]" or text[-1] == "["):
        return text
    return ("(" if text[0] == "]" else text[0]) + text[1:-1] + (")" if text[-1] == "[" else text[-1])


def _parse_words(text: str) -> WordAnswer | None:
    """Parse an answer in words; `«…»` marks the content of `\\text`."""
    is_marked = "«" in text
    flat = text.replace("«", " ").replace("»", " ")
    flat = " ".join(flat.split())
    if not flat or _FUNCTIONS.search(flat) or "\\" in flat or not _WORDS.fullmatch(flat.strip("(")):
        return None
    words = normalise_text(flat, ignore_punctuation=True)
    if is_marked and len(words) == 1:
        return None  # a single letter is a variable even in \text
    if is_marked or _POINTS.fullmatch(flat):
        return WordAnswer(words)
    has_variable = any(len(word) == 1 and word not in "aI" for word in flat.split())
    is_list = re.search(r"\b(?:and|or)\b", words) is not None
    return WordAnswer(words) if _PLAIN_WORD.search(flat) and words and not has_variable and not is_list else None


def _parse_plus_minus(text: str, depth: int) -> MathShape | None:
    """Parse `a \\pm b` as a list of two values; None for brackets and lists, whose items are parsed one by one."""
    if latex.split_brackets(text) or "," in text or " or " in text or " and " in text:
        return None
    upper = _parse_shape(text.replace("\\pm", "+").replace("\\mp", "-"), depth + 1)
    lower = _parse_shape(text.replace("\\pm", "-").replace("\\mp", "+"), depth + 1)
    return ItemGroup("", (upper, lower))


def _parse_union(text: str, depth: int) -> MathShape | None:
    """Parse sets joined by `\\cup`."""
    parts, signs = latex.split_outside_brackets(text, _UNION)
    if not signs:
        return None
    shapes = _parse_all(parts, depth)
    return shapes if isinstance(shapes, Unreadable) else SetUnion(shapes)


def _parse_all(parts: list[str], depth: int) -> tuple[MathShape, ...] | Unreadable:
    if len(parts) > MAX_ITEMS:
        return Unreadable(f"more than {MAX_ITEMS} items")
    shapes = tuple(_parse_shape(part, depth + 1) for part in parts)
    return _first_unreadable(shapes) or shapes


def _first_unreadable(shapes: tuple[MathShape, ...]) -> Unreadable | None:
    return next((shape for shape in shapes if isinstance(shape, Unreadable)), None)


def _parse_items(text: str, depth: int, brackets: str = "") -> MathShape | None:
    """Parse items between commas, semicolons, "and" or "or"; None if there is only one item.

    `10,000` is one item; inside `brackets` only if another comma has a space after it, as in `(10,000, 5)`.
    """
    if not brackets or re.search(r",\s", text):  # hide the commas of thousands from the split
        text = _GROUPED.sub(lambda match: match.group().replace(",", "\x00"), text)
    parts, separators = latex.split_outside_brackets(text, _LIST)
    if not separators:
        return None
    parts = [part.replace("\x00", ",") for part in parts]
    if not brackets and not parts[-1]:  # a comma at the end
        parts = parts[:-1]
    shapes = _parse_all(parts, depth)
    if isinstance(shapes, Unreadable):
        return shapes
    if not brackets:  # ± in a list stands for two items
        flat: list[MathShape] = []
        for shape in shapes:
            flat.extend(shape.items if isinstance(shape, ItemGroup) and shape.brackets == "" else [shape])
        shapes = tuple(flat)
    return ItemGroup(brackets, shapes)


def _parse_group(text: str, depth: int) -> MathShape | None:
    """Parse text that one pair of brackets encloses, the empty set or the real numbers."""
    if text in ("\\{\\}", "\\{ \\}", "\\emptyset"):
        return ItemGroup("{}", ())
    if text in _REALS:
        return ItemGroup("()", (Expression("-\\infty"), Expression("\\infty")))
    parts = latex.split_brackets(text)
    if parts is None:
        return None
    opening, inside, closing = parts
    brackets = (opening + closing).replace("\\", "")
    items = _parse_items(inside, depth, brackets)
    if items is not None:
        return items
    if opening + closing in ("()", "{}"):  # around one item; the braces of a set would be \{ and \}
        return _parse_shape(inside, depth + 1)
    if brackets in ("{}", "[]"):
        item = _parse_shape(inside, depth + 1)
        if isinstance(item, Unreadable):
            return item
        if isinstance(item, ItemGroup) and item.brackets == "":  # ± stands for two items
            return ItemGroup(brackets, item.items)
        return ItemGroup(brackets, (item,))
    return None


def _parse_matrix(text: str, depth: int) -> MathShape | None:
    """Parse a LaTeX matrix environment."""
    match = _MATRIX.fullmatch(text)
    if match is None:
        return None
    lines = [line for line in re.split(r"\\\\(?: ?\[[^\]]*\])?", match[1]) if line.strip()]
    rows = tuple(tuple(_parse_shape(cell.strip(), depth + 1) for cell in line.split("&")) for line in lines)
    cells = tuple(cell for row in rows for cell in row)
    if not cells or len(cells) > MAX_ITEMS or len({len(row) for row in rows}) != 1:
        return Unreadable("a matrix that is empty, too large, or has rows of different lengths")
    return _first_unreadable(cells) or Matrix(rows)


def _parse_relation(text: str, depth: int) -> MathShape | None:
    """Parse an inequality, an equation, or another relation with a single sign."""
    parts, signs = latex.split_outside_brackets(text, _ORDER)
    if signs:
        return _parse_inequality(parts, signs, depth)
    parts, signs = latex.split_outside_brackets(text, _EQUALS)
    if signs:
        return _parse_equation(text, parts, depth)
    parts, signs = latex.split_outside_brackets(text, _OTHER_SIGN)
    if len(signs) == 1:
        return Relation(parts[0], signs[0], parts[1])
    return None


def _parse_equation(text: str, parts: list[str], depth: int) -> MathShape:
    """Parse `x = 3` and `x = 1 + 2 = 3` as an assignment of 3, and any other equation as a relation."""
    if not all(parts):
        return Unreadable("an equation with an empty side")
    values = [number for part in parts if (number := parse_cleaned_number(part)) is not None]
    if len({number.value for number in values}) > 1:
        return Unreadable("an equation that contradicts itself")
    if _NAME.fullmatch(parts[0]):
        value = _parse_shape(parts[-1], depth + 1)
        return value if isinstance(value, Unreadable) else Assignment(_name(parts[0]), value, text)
    if len(parts) > 2:
        return Unreadable("a chain of equations")
    if not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", parts[0])):
        return Unreadable("a calculation, not an answer")
    return Relation(parts[0], "=", parts[1])


def _name(text: str) -> str:
    """Return the normal form of a variable's name, without braces, guillemets and spaces."""
    return normalise_text(text.replace("«", "").replace("»", "").replace("{", "").replace("}", "")).replace(" ", "")


def _parse_inequality(parts: list[str], signs: list[str], depth: int) -> MathShape:
    """Parse `x < 1` and `1 < x < 2` as intervals and any other inequality as a relation."""
    operators = ["<" if s == "<" else ">" if s == ">" else "<=" if s in ("\\le", "<=") else ">=" for s in signs]
    if not all(parts) or len(parts) > 3:
        return Unreadable("an inequality with an empty side, or a long chain")
    if len(parts) == 2:
        left, right, sign = parts[0], parts[1], operators[0]
        if not _VARIABLE.fullmatch(left.strip()):  # `1 > x` is `x < 1`
            left, right, sign = right, left, sign.translate(str.maketrans("<>", "><"))
        if not _VARIABLE.fullmatch(left.strip()) or re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", right)):
            return Relation(parts[0], operators[0], parts[1])
        low, high = (right, "\\infty") if sign[0] == ">" else ("-\\infty", right)
        is_closed = "=" in sign
        brackets = ("[" if is_closed and sign[0] == ">" else "(") + ("]" if is_closed and sign[0] == "<" else ")")
        return _interval(brackets, low, high, left, depth)
    if operators[0][0] != operators[1][0] or not _VARIABLE.fullmatch(parts[1].strip()):
        return Unreadable("a chain of inequalities")
    low, high, low_sign, high_sign = parts[0], parts[2], operators[0], operators[1]
    if low_sign[0] == ">":  # `2 > x > 1` is `1 < x < 2`
        low, high, low_sign, high_sign = high, low, high_sign, low_sign
    brackets = ("[" if "=" in low_sign else "(") + ("]" if "=" in high_sign else ")")
    return _interval(brackets, low, high, parts[1], depth)


def _interval(brackets: str, low: str, high: str, variable: str, depth: int) -> MathShape:
    bounds = (_parse_shape(low, depth + 1), _parse_shape(high, depth + 1))
    return _first_unreadable(bounds) or ItemGroup(brackets, bounds, variable.strip())


_SPACE = re.compile(r"(?<![a-zA-Z]) +| +(?![a-zA-Z])")


def _tidy(text: str) -> str:
    """Remove guillemets and spaces, except spaces between a command and a letter."""
    return _SPACE.sub("", text.replace("«", "").replace("»", "")).removeprefix("+")


def is_empty(shape: MathShape) -> bool:
    """Return whether the answer is the empty set or means "no solution"."""
    return (isinstance(shape, ItemGroup) and not shape.items) or (
        isinstance(shape, WordAnswer) and shape.text in _EMPTY_WORDS
    )
