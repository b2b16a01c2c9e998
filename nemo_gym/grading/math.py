"""Extract mathematical answers from replies and compare them with the expected ones.

This module compares the structure of answers, and numbers exactly. Expressions are compared by the `symbolic` function
that the caller passes, because symbolic computation needs a hard time limit and therefore a separate process
(`nemo_gym.workers.math_verifier`). An ambiguous answer is not equal.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain

from nemo_gym.grading import latex
from nemo_gym.grading.extraction import find_boxes
from nemo_gym.grading.math_parsing import (
    MAX_ITEMS,
    Assignment,
    Expression,
    ItemGroup,
    MathShape,
    Matrix,
    Relation,
    SetUnion,
    Unreadable,
    WordAnswer,
    is_empty,
    parse_math,
)
from nemo_gym.grading.numbers import Number, has_one_ambiguous_unit, number_difference
from nemo_gym.grading.result_types import ExtractedAnswer, Extraction, NoAnswer, Verdict, VerdictKind
from nemo_gym.grading.units import contradict

Symbolic = Callable[[str, str], bool]
"""Return whether two LaTeX expressions (answer, gold) are equal; raise `UnreadableExpression` if one is unreadable."""

_BETWEEN_PARTS = re.compile(
    r"[\s$,;.]*(?:\\?\(|\\?\)|\\[,;! ]|(?:,|\\text\{)?\s*(?:and|or)\s*\}?)?[\s$,;]*", re.IGNORECASE
)
_ALTERNATIVE_WORD = r"(?:or|either|else|maybe|perhaps|possibly|alternatively|otherwise|versus|vs|as well as|if|unless)"
_ALTERNATIVE = re.compile(
    rf"{_ALTERNATIVE_WORD}\b.*|.*\b{_ALTERNATIVE_WORD}|\\(?:vee|lor)|[/|&~+∨\s]*", re.IGNORECASE | re.DOTALL
)
"""Text between two boxes, without formatting, that makes the second one another candidate or another part."""
_NEXT_SENTENCE = re.compile(
    r"[\s$)*}\]\\]*[.!][\s$*]*If (?:we|you(?! (?:prefer|want|like|mean))|I|one|it|they|he|she)\b"
)
"""A condition in the sentence after a box, which ends the answer."""
_NEW_VERSION = re.compile(
    r"\b(?:equivalent\w*|equals?|rather|better|simpl\w+|approx\w*|about|roughly|decimal\w*|i\.?e|that is|is the same"
    r"|no|(?<!if )not|wait|actually|instead|correct\w*|so|thus|hence|therefore|then|gives?|finally|final|which"
    r"|precise\w*|exact\w*|in other words)\b|[=≈:]",
    re.IGNORECASE,
)
"""Words that make the second of two boxes a new form, a correction or a conclusion of the first one."""
_FORMATTING = re.compile(r"\\(?:text|mathrm|textbf|quad|qquad|hspace|,|;|!|:|\\| )|[\s$,;.(){}\[\]*_]", re.IGNORECASE)
_NEGATION = re.compile(r"(?:\b(?:(?<!or )not|never|cannot be)|n['’]t(?: be)?)[\s:$(*_\\\[]*\Z", re.IGNORECASE)
"""The end of a text after which a box is what the answer is not."""
_PHRASE = re.compile(r"\banswer\b[*_`]{0,3}\s{0,4}(?:\bis\b|:|=)[*_`: ]{0,6}", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.\s|\.$|;\s|,? (?:because|since|so|which|as|where|when|given|by) |\s\(|!\s|!$")
_DOLLARS = re.compile(r"\$[^$\n]{1,500}\$")
_MAX_LINE = 600
_MAX_BETWEEN = 40
"""Maximum characters between two boxes that are parts of one answer."""
MAX_QUESTION = 20_000
"""Number of characters of a question that are searched for a copied answer."""


class UnreadableExpression(Exception):
    """The symbolic comparison could not parse one of the two expressions."""


class NeedsSymbols(Exception):
    """The answers can only be compared symbolically."""


def extract_math_answer(text: str) -> Extraction[str]:
    r"""Extract the final answer: the last `\boxed{…}`, else the text after the last "answer is" or "answer:".

    Boxes joined by commas, a slash or words such as "or", "and", "or else", "maybe" are one answer with several values,
    so that a list of candidates is not correct. An empty, unclosed or negated last box is `NoAnswer`.
    """
    boxes, has_open_box = find_boxes(text)
    if has_open_box:
        return NoAnswer("the last box is not closed")
    if boxes:
        return _join_adjacent_boxes(text, boxes)
    return _after_phrase(text)


def _join_adjacent_boxes(text: str, boxes: list[ExtractedAnswer[str]]) -> Extraction[str]:
    """Extract the last box together with the boxes directly before it."""
    last = boxes[-1]
    if not last.value.strip(" \t\r\n$~"):
        return NoAnswer("the last box is empty")
    adjacent = [last]
    for earlier in reversed(boxes[:-1]):
        between = text[earlier.span[1] : adjacent[0].span[0]]
        if len(adjacent) > MAX_ITEMS or not is_joint(between):
            break
        adjacent.insert(0, earlier)
    start = adjacent[0].span[0]
    if _NEGATION.search(text, max(0, start - _MAX_BETWEEN), start):
        return NoAnswer("the last box is negated")
    if len({latex.clean(box.value[: latex.MAX_LENGTH]) for box in adjacent}) == 1:  # all boxes are the same answer
        return ExtractedAnswer(last.value.strip(), last.span, last.rule)
    value = ", ".join(box.value.strip() for box in adjacent)
    return ExtractedAnswer(value, (adjacent[0].span[0], last.span[1]), "boxes")


def is_joint(between: str) -> bool:
    """Return whether the text between two boxes or formulas joins them to one answer with several values."""
    if len(between) > _MAX_BETWEEN or _BETWEEN_PARTS.fullmatch(between):
        return len(between) <= _MAX_BETWEEN
    if _NEXT_SENTENCE.match(between):
        return False
    plain = _FORMATTING.sub(" ", between).strip()
    return bool(_ALTERNATIVE.fullmatch(plain)) and not _NEW_VERSION.search(plain)


def _after_phrase(text: str) -> Extraction[str]:
    """Extract the text after the last "answer is" or "answer:"."""
    phrases = [match.end() for match in _PHRASE.finditer(text)]
    if not phrases:
        return NoAnswer("no box and no 'answer is'")
    start = phrases[-1]
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    end = text.find("\n", start)
    line = text[start : len(text) if end < 0 else end][:_MAX_LINE]
    value = _first_statement(line)
    if not value:
        return NoAnswer("no text after 'answer'")
    return ExtractedAnswer(value, (start, start + len(line)), "answer_phrase")


def _first_statement(line: str) -> str:
    """Return the formulas (`$…$`) at the start of a line, with a unit, or the first sentence."""
    math_parts = list(_DOLLARS.finditer(line))
    if math_parts and not line[: math_parts[0].start()].strip(" *_`("):
        adjacent = [math_parts[0]]
        for part in math_parts[1:]:
            if not is_joint(line[adjacent[-1].end() : part.start()].replace("*", "")):
                break
            adjacent.append(part)
        unit = re.match(r"\s*([a-zA-Z%°][a-zA-Z ]{0,20}|\\?%)[.*]*$", line[adjacent[-1].end() :])
        return ", ".join(part.group()[1:-1].strip() for part in adjacent) + (f" {unit[1]}" if unit else "")
    sentence_end = _SENTENCE_END.search(line)
    return (line[: sentence_end.start()] if sentence_end else line).strip(" *_`")


def compare_math(answer: str, gold: str, *, symbolic: Symbolic, question: str | None = None) -> Verdict:
    """Compare `answer` with `gold`.

    Where a plain number is expected, unevaluated arithmetic (`3 \\cdot 4`, `2^{10}`) is wrong. With `question`, an
    expression copied from the question is wrong.
    """
    expected, parsed = parse_math(gold), parse_math(answer)
    if isinstance(expected, Unreadable):
        return Verdict(VerdictKind.UNDECIDED, answer, reason=f"the expected answer cannot be read: {expected.reason}")
    if isinstance(parsed, Unreadable):
        return Verdict(VerdictKind.UNPARSED, answer, reason=parsed.reason)
    is_same_text = latex.clean(answer) == latex.clean(gold)
    if not is_same_text and question is not None and _is_copied(parsed, answer, question):
        return Verdict(VerdictKind.WRONG, answer, "copied", "copied from the question")
    try:
        reason = None if is_same_text else _MathComparison(symbolic).difference(parsed, expected)
    except UnreadableExpression as problem:
        return Verdict(VerdictKind.UNPARSED, answer, "symbolic", str(problem))
    if reason is None:
        return Verdict(VerdictKind.CORRECT, answer, "math")
    return Verdict(VerdictKind.WRONG, answer, "math", reason)


def raise_needs_symbols(_answer: str, _gold: str) -> bool:
    """Raise NeedsSymbols; pass this function as `symbolic` if no symbolic comparison is available."""
    raise NeedsSymbols


def _is_copied(parsed: MathShape, answer: str, question: str) -> bool:
    """Return whether the answer is copied from the question; words and plain numbers never count as copied."""
    if isinstance(parsed, WordAnswer) or (isinstance(parsed, Number) and parsed.form != "fraction"):
        return False
    compact = latex.clean(answer).replace(" ", "")
    return len(compact) > 1 and compact in latex.clean(question[:MAX_QUESTION]).replace(" ", "")


_GEOMETRY = re.compile(r"\\(?:angle|triangle|widehat|overline|vec|overrightarrow|parallel|perp|cong|sim)(?![a-zA-Z])")
"""Commands of geometry, whose letters are points: as products, `AB` and `BA` would be equal."""
_UNEVALUATED = re.compile(
    r"\\(int|iint|sum|prod|lim|sin|cos|tan|cot|sec|csc|log|ln|exp|binom|gcd|lcm|det|lfloor|lceil|arcsin|arccos|arctan"
    r"|max|min|mod|pmod|bmod|frac ?\{d\}|partial|nabla|dbinom)(?![a-zA-Z])|(!)"
)


_RANGE_OR_DATE = re.compile(r"\d+(?:-{1,3}\d+)+")
"""A range (`10-12`, in LaTeX `10--12`) or a date (`2024-01-02`).

As a difference of numbers, `8-10` and `2024-02-01` would be equal.
"""


class _MathComparison:
    """Compares answers with golds; every method returns the difference as text, or None if they are equal."""

    def __init__(self, symbolic: Symbolic) -> None:
        self.symbolic = symbolic

    def difference(self, answer: MathShape, gold: MathShape) -> str | None:
        """Compare two answers of any kind."""
        if is_empty(gold) or is_empty(answer):
            return None if is_empty(gold) and is_empty(answer) else "another kind of answer"
        if isinstance(gold, Assignment) or isinstance(answer, Assignment):
            return self._assignment_difference(answer, gold)
        answer, gold = _as_union(answer), _as_union(gold)
        if isinstance(gold, ItemGroup) or isinstance(answer, ItemGroup):
            return self._group_difference(answer, gold)
        if isinstance(gold, SetUnion | Matrix | Relation):
            return self._compound_difference(answer, gold)
        if isinstance(answer, SetUnion | Matrix | Relation):
            return "another kind of answer"
        if isinstance(gold, WordAnswer) or isinstance(answer, WordAnswer):
            return None if answer == gold else "other words"
        if isinstance(answer, Number) and isinstance(gold, Number):
            return number_difference(answer, gold)
        if isinstance(gold, Number):
            return "not an evaluated number"
        return self._expression_difference(answer, gold)

    def _expression_difference(self, answer: MathShape, gold: MathShape) -> str | None:
        """Compare two expressions, or an expression with a number."""
        if answer == gold:
            return None
        answer_latex, gold_latex = to_latex(answer), to_latex(gold)
        if has_one_ambiguous_unit(answer.unit, gold.unit):  # type: ignore[union-attr]
            # Its letters may be variables, so they are compared as a part of the expression.
            answer_latex = getattr(answer, "text_with_unit", "") or answer_latex
            gold_latex = getattr(gold, "text_with_unit", "") or gold_latex
        unit, gold_unit = answer.unit, gold.unit  # type: ignore[union-attr]
        if unit and gold_unit and unit != gold_unit and (answer_latex != gold_latex or contradict(unit, gold_unit)):
            return "another unit"
        if answer_latex == gold_latex:
            return None
        if _RANGE_OR_DATE.fullmatch(gold_latex):
            return None if _hyphenated_numbers(answer_latex) == _hyphenated_numbers(gold_latex) else "other numbers"
        if _GEOMETRY.search(answer_latex) or _GEOMETRY.search(gold_latex):
            return "other points"
        if unevaluated := _unevaluated_functions(answer_latex) - _unevaluated_functions(gold_latex):
            return f"not evaluated: {', '.join(sorted(unevaluated))}"
        return None if self.symbolic(answer_latex, gold_latex) else "another value"

    def _assignment_difference(self, answer: MathShape, gold: MathShape) -> str | None:
        """Compare two answers of which at least one is an assignment (`x = 3`)."""
        if isinstance(answer, Relation) or isinstance(gold, Relation):
            return self._compound_difference(_as_relation(answer), _as_relation(gold))
        if isinstance(answer, Assignment) and isinstance(gold, Assignment) and answer.name != gold.name:
            return "another variable"
        return self.difference(_assigned_value(answer), _assigned_value(gold))

    def _compound_difference(self, answer: MathShape, gold: MathShape) -> str | None:
        """Compare unions, matrices and relations."""
        if isinstance(answer, SetUnion) and isinstance(gold, SetUnion):
            return self._unordered_difference(answer.parts, gold.parts)
        if isinstance(answer, Matrix) and isinstance(gold, Matrix):
            if (len(answer.rows), len(answer.rows[0])) != (len(gold.rows), len(gold.rows[0])):
                return "a matrix of another size"
            return self._ordered_difference([*chain(*answer.rows)], [*chain(*gold.rows)])
        if isinstance(answer, Relation) and isinstance(gold, Relation):
            is_same = self.symbolic(_relation_text(answer), _relation_text(gold))
            return None if is_same else "another equation"
        return "another kind of answer"

    def _group_difference(self, answer: MathShape, gold: MathShape) -> str | None:
        """Compare two answers of which at least one is a list, set, tuple or interval."""
        answer, gold = _vector_as_tuple(answer, gold), _vector_as_tuple(gold, answer)
        if isinstance(answer, ItemGroup) and isinstance(gold, ItemGroup):
            return self._two_group_difference(answer, gold)
        if isinstance(answer, ItemGroup):
            single = _single_item(answer)
            return "several values where one is expected" if single is None else self.difference(single, gold)
        single = _single_item(gold)
        return "one value where several are expected" if single is None else self.difference(answer, single)

    def _two_group_difference(self, answer: ItemGroup, gold: ItemGroup) -> str | None:
        """Compare two groups: bare lists and sets in any order, tuples and intervals item by item."""
        if answer.variable and gold.variable and answer.variable != gold.variable:
            return "another variable"
        if "{}" in (answer.brackets, gold.brackets) and (answer.is_ordered or gold.is_ordered):
            return "another kind of brackets"
        if not answer.is_ordered and not gold.is_ordered:
            if "{}" in (answer.brackets, gold.brackets):  # a set has each item once
                return self._unordered_difference([*dict.fromkeys(answer.items)], [*dict.fromkeys(gold.items)])
            names, gold_names = _assigned_names(answer.items), _assigned_names(gold.items)
            if names != gold_names and len(names | gold_names) > 2:
                # `1, 2` for `x = 1, y = 2`: the order tells which value belongs to which variable.
                return self._ordered_difference(answer.items, gold.items)
            return self._unordered_difference(answer.items, gold.items)
        if answer.brackets != gold.brackets and not _is_bare_tuple(answer, gold):
            return "another kind of brackets"
        return self._ordered_difference(answer.items, gold.items)

    def _ordered_difference(self, answers: Sequence[MathShape], golds: Sequence[MathShape]) -> str | None:
        if len(answers) != len(golds):
            return f"{len(answers)} values where {len(golds)} are expected"
        reasons = (self.difference(answer, gold) for answer, gold in zip(answers, golds, strict=True))
        return next((reason for reason in reasons if reason is not None), None)

    def _unordered_difference(self, answers: Sequence[MathShape], golds: Sequence[MathShape]) -> str | None:
        """Match every answer with one gold, in any order."""
        if len(answers) != len(golds):
            return f"{len(answers)} values where {len(golds)} are expected"
        unmatched = list(golds)
        for answer in answers:
            equal_gold = next((gold for gold in unmatched if self.difference(answer, gold) is None), None)
            if equal_gold is None:
                return "an unexpected value"
            unmatched.remove(equal_gold)
        return None


def _vector_as_tuple(shape: MathShape, other: MathShape) -> MathShape:
    """Convert a column matrix to a tuple if `other` is a tuple."""
    is_column = isinstance(shape, Matrix) and len(shape.rows[0]) == 1
    if is_column and isinstance(other, ItemGroup) and other.brackets == "()":
        return ItemGroup("()", tuple(row[0] for row in shape.rows))  # type: ignore[union-attr]
    return shape


def _single_item(group: MathShape) -> MathShape | None:
    """Return the item of a set with one item; None for any other group."""
    is_single = isinstance(group, ItemGroup) and group.brackets == "{}" and len(group.items) == 1
    return group.items[0] if is_single else None  # type: ignore[union-attr]


def _assigned_value(shape: MathShape) -> MathShape:
    return shape.value if isinstance(shape, Assignment) else shape


def _is_bare_tuple(answer: ItemGroup, expected: ItemGroup) -> bool:
    """Return whether one side is the same tuple without brackets; `[a,b]` is an interval and needs its brackets."""
    bare, other = (answer, expected) if answer.brackets == "" else (expected, answer)
    if bare.brackets != "" or bare.variable or other.variable:
        return False
    return other.brackets == "()" or (other.brackets == "[]" and len(other.items) != 2)


def _as_union(shape: MathShape) -> MathShape:
    """Convert a list of intervals of one variable (`x < 1 or x > 2`) to a union; return other shapes unchanged."""
    if not (isinstance(shape, ItemGroup) and shape.brackets == "" and shape.items):
        return shape
    variables = {item.variable if isinstance(item, ItemGroup) else None for item in shape.items}
    return SetUnion(shape.items) if len(variables) == 1 and None not in variables else shape


def _assigned_names(items: Sequence[MathShape]) -> set[str | None]:
    """Return the names of the assignments among the items; None stands for items that are no assignments."""
    return {item.name if isinstance(item, Assignment) else None for item in items}


def _as_relation(shape: MathShape) -> MathShape:
    if isinstance(shape, Assignment):
        left, right = shape.text.split("=", 1)
        return Relation(left.strip(), "=", right.strip())
    return shape


def _relation_text(shape: Relation) -> str:
    return f"{shape.left} {shape.sign} {shape.right}"


def _hyphenated_numbers(text: str) -> list[int] | None:
    """Return the numbers of a range or date; None for any other text."""
    return [int(part) for part in re.split("-+", text)] if _RANGE_OR_DATE.fullmatch(text) else None


def _unevaluated_functions(text: str) -> set[str]:
    return {match.group().strip() for match in _UNEVALUATED.finditer(text)}


def to_latex(shape: MathShape) -> str:
    """Return a number or expression as LaTeX; raise UnreadableExpression for other shapes."""
    if isinstance(shape, Expression):
        return shape.text
    if isinstance(shape, Number):
        value = shape.value / 100 if shape.percent else shape.value
        if value.denominator == 1:
            return str(value.numerator)
        if shape.form == "decimal":
            places = shape.places + 2 if shape.percent else shape.places
            return f"{float(value):.{max(places, 1)}f}"
        sign = "-" if value < 0 else ""
        return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    raise UnreadableExpression("neither a number nor an expression")
