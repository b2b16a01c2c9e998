"""Mathematical answers: found in a text, and compared with the expected one.

Structure is compared here, numbers exactly. Where two expressions have to be understood, `symbolic` is asked; grading
has none of its own, because that work needs a hard clock and belongs into a process of its own
(`nemo_gym.workers.math`). The type of the expected answer decides what may equal it, and what is unclear is not equal.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nemo_gym.grading import latex
from nemo_gym.grading.boxed import boxes
from nemo_gym.grading.numbers import Number, numbers_differ
from nemo_gym.grading.shapes import (
    MOST_ITEMS,
    Assignment,
    Expression,
    Group,
    Matrix,
    Relation,
    Shape,
    Union,
    Unreadable,
    Words,
    is_empty,
    read,
)
from nemo_gym.grading.verdict import Extracted, Extraction, Outcome, Unparsed, Verdict

Symbolic = Callable[[str, str], bool]
"""Whether two LaTeX expressions (answer, gold) are equal. Raises `NotUnderstood` when one cannot be read."""

_BETWEEN_BOXES = re.compile(
    r"[\s$,;.]*(?:\\?\(|\\?\)|\\[,;! ]|(?:,|\\text\{)?\s*(?:and|or)\s*\}?)?[\s$,;]*", re.IGNORECASE
)
_PHRASE = re.compile(r"\banswer\b[*_`]{0,3}\s{0,4}(?:\bis\b|:|=)[*_`: ]{0,6}", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.\s|\.$|;\s|,? (?:because|since|so|which|as|where|when|given|by) |\s\(|!\s|!$")
_DOLLARS = re.compile(r"\$[^$\n]{1,500}\$")
_LONGEST_LINE = 600
LONGEST_QUESTION = 20_000
"""Characters of a question that are searched for a copied answer."""


class NotUnderstood(Exception):
    """The symbolic comparison could not read one of the two sides."""


class NeedsSymbols(Exception):
    """The answer cannot be decided without understanding an expression."""


@dataclass(frozen=True)
class Rules:
    """What counts as the same answer."""

    worked_out: bool = True
    """When a plain number is expected, arithmetic still to be done (`3 \\cdot 4`, `2^{10}`) is not an answer."""


def math_answer(text: str) -> Extraction[str]:
    r"""The final answer of a solution: the last `\boxed{…}`, else what stands behind the last "answer is" or "answer:".

    Boxes joined by nothing but "or", "and" or commas are one answer, so that naming candidates is not naming the
    answer. When the last box is empty or not closed there is no answer.
    """
    found, dangling = boxes(text)
    if dangling:
        return Unparsed("the last box is not closed")
    if found:
        return _joined(text, found)
    return _after_phrase(text)


def _joined(text: str, found: list[Extracted[str]]) -> Extraction[str]:
    last = found[-1]
    if not last.value.strip(" \t\r\n$~"):
        return Unparsed("the last box is empty")
    together = [last]
    for earlier in reversed(found[:-1]):
        between = text[earlier.span[1] : together[0].span[0]]
        if len(together) > MOST_ITEMS or len(between) > 40 or not _BETWEEN_BOXES.fullmatch(between):
            break
        together.insert(0, earlier)
    if len({latex.clean(box.value[: latex.LONGEST]) for box in together}) == 1:
        return Extracted(last.value.strip(), last.span, last.rule)
    value = ", ".join(box.value.strip() for box in together)
    return Extracted(value, (together[0].span[0], last.span[1]), "boxes")


def _after_phrase(text: str) -> Extraction[str]:
    phrases = [found.end() for found in _PHRASE.finditer(text)]
    if not phrases:
        return Unparsed("there is no box and no 'answer is'")
    start = phrases[-1]
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    end = text.find("\n", start)
    line = text[start : len(text) if end < 0 else end][:_LONGEST_LINE]
    value = _first_statement(line)
    if not value:
        return Unparsed("nothing stands behind 'answer'")
    return Extracted(value, (start, start + len(line)), "answer_phrase")


def _first_statement(line: str) -> str:
    math_parts = list(_DOLLARS.finditer(line))
    if math_parts and not line[: math_parts[0].start()].strip(" *_`("):
        together = [math_parts[0]]
        for part in math_parts[1:]:
            if not _BETWEEN_BOXES.fullmatch(line[together[-1].end() : part.start()].replace("*", "")):
                break
            together.append(part)
        unit = re.match(r"\s*([a-zA-Z%°][a-zA-Z ]{0,20}|\\?%)[.*]*$", line[together[-1].end() :])
        return ", ".join(part.group()[1:-1].strip() for part in together) + (f" {unit[1]}" if unit else "")
    cut = _SENTENCE_END.search(line)
    return (line[: cut.start()] if cut else line).strip(" *_`")


def compare_math(
    answer: str, gold: str, *, symbolic: Symbolic, rules: Rules | None = None, question: str | None = None
) -> Verdict:
    """Whether `answer` says the same as `gold`.

    With `question`, an expression copied from it is no answer to it.
    """
    rules = rules or Rules()
    wanted, said = read(gold), read(answer)
    if isinstance(wanted, Unreadable):
        return Verdict(Outcome.UNDECIDED, answer, reason=f"the expected answer cannot be read: {wanted.reason}")
    if isinstance(said, Unreadable):
        return Verdict(Outcome.UNPARSED, answer, reason=said.reason)
    same_text = latex.clean(answer) == latex.clean(gold)
    if not same_text and question is not None and _copied(said, answer, question):
        return Verdict(Outcome.WRONG, answer, "copied", "copied from the question")
    try:
        reason = None if same_text else _Comparison(symbolic, rules).differ(said, wanted)
    except NotUnderstood as problem:
        return Verdict(Outcome.UNPARSED, answer, "symbolic", str(problem))
    if reason is None:
        return Verdict(Outcome.CORRECT, answer, "math")
    return Verdict(Outcome.WRONG, answer, "math", reason)


def needs_symbols(_answer: str, _gold: str) -> bool:
    """A `symbolic` that only says it was asked."""
    raise NeedsSymbols


def _copied(said: Shape, answer: str, question: str) -> bool:
    if isinstance(said, Words) or (isinstance(said, Number) and said.form != "fraction"):
        return False
    copy = latex.clean(answer).replace(" ", "")
    return len(copy) > 1 and copy in latex.clean(question[:LONGEST_QUESTION]).replace(" ", "")


_GEOMETRY = re.compile(r"\\(?:angle|triangle|widehat|overline|vec|overrightarrow|parallel|perp|cong|sim)(?![a-zA-Z])")
"""Letters behind these are points: to multiply them would make equal what is not."""
_UNWORKED = re.compile(
    r"\\(int|iint|sum|prod|lim|sin|cos|tan|cot|sec|csc|log|ln|exp|binom|gcd|lcm|det|lfloor|lceil|arcsin|arccos|arctan"
    r"|max|min|mod|pmod|bmod|frac ?\{d\}|partial|nabla|dbinom)(?![a-zA-Z])|(!)"
)


class _Comparison:
    """One answer against one gold. Every method returns why they differ, or None."""

    def __init__(self, symbolic: Symbolic, rules: Rules) -> None:
        self.symbolic = symbolic
        self.rules = rules

    def differ(self, said: Shape, wanted: Shape) -> str | None:
        if is_empty(wanted) or is_empty(said):
            return None if is_empty(wanted) and is_empty(said) else "another kind of answer"
        if isinstance(wanted, Assignment) or isinstance(said, Assignment):
            return self.assignments(said, wanted)
        said, wanted = _as_union(said), _as_union(wanted)
        if isinstance(wanted, Group) or isinstance(said, Group):
            return self.groups(said, wanted)
        if isinstance(wanted, Union | Matrix | Relation):
            return self.compounds(said, wanted)
        if isinstance(said, Union | Matrix | Relation):
            return "another kind of answer"
        return self.leaves(said, wanted)

    def leaves(self, said: Shape, wanted: Shape) -> str | None:
        if isinstance(wanted, Words) or isinstance(said, Words):
            return None if said == wanted else "other words"
        if isinstance(said, Number) and isinstance(wanted, Number):
            return numbers_differ(said, wanted, worked_out=self.rules.worked_out)
        if isinstance(wanted, Number) and self.rules.worked_out:
            return "not a number, or one that is still to be worked out"
        return self.expressions(said, wanted)

    def expressions(self, said: Shape, wanted: Shape) -> str | None:
        if said == wanted:
            return None
        answer, gold = written(said), written(wanted)
        if answer == gold:
            return None
        if said.unit and wanted.unit and said.unit != wanted.unit:  # type: ignore[union-attr]
            return "another unit"
        if _GEOMETRY.search(answer) or _GEOMETRY.search(gold):
            return "other points"
        if self.rules.worked_out and (unworked := _functions(answer) - _functions(gold)):
            return f"still to be worked out: {', '.join(sorted(unworked))}"
        return None if self.symbolic(answer, gold) else "another value"

    def assignments(self, said: Shape, wanted: Shape) -> str | None:
        if isinstance(said, Assignment) and isinstance(wanted, Assignment):
            if said.name != wanted.name:
                return "another variable"
            return self.differ(said.value, wanted.value)
        if isinstance(said, Relation) or isinstance(wanted, Relation):
            return self.compounds(_as_relation(said), _as_relation(wanted))
        return self.differ(
            said.value if isinstance(said, Assignment) else said,
            wanted.value if isinstance(wanted, Assignment) else wanted,
        )

    def compounds(self, said: Shape, wanted: Shape) -> str | None:
        if isinstance(said, Union) and isinstance(wanted, Union):
            return self.matched(said.parts, wanted.parts)
        if isinstance(said, Matrix) and isinstance(wanted, Matrix):
            if (len(said.rows), len(said.rows[0])) != (len(wanted.rows), len(wanted.rows[0])):
                return "a matrix of another size"
            return self.in_order([c for row in said.rows for c in row], [c for row in wanted.rows for c in row])
        if isinstance(said, Relation) and isinstance(wanted, Relation):
            same = self.symbolic(_relation_text(said), _relation_text(wanted))
            return None if same else "another equation"
        return "another kind of answer"

    def groups(self, said: Shape, wanted: Shape) -> str | None:
        if (
            isinstance(wanted, Matrix)
            and len(wanted.rows[0]) == 1
            and isinstance(said, Group)
            and said.brackets == "()"
        ):
            return self.in_order(said.items, [row[0] for row in wanted.rows])
        if (
            isinstance(said, Matrix)
            and len(said.rows[0]) == 1
            and isinstance(wanted, Group)
            and wanted.brackets == "()"
        ):
            return self.in_order([row[0] for row in said.rows], wanted.items)
        if isinstance(said, Group) and isinstance(wanted, Group):
            return self.two_groups(said, wanted)
        group, other = (said, wanted) if isinstance(said, Group) else (wanted, said)
        if isinstance(group, Group) and group.brackets == "{}" and len(group.items) == 1:
            return self.differ(group.items[0], other) if group is said else self.differ(other, group.items[0])
        return "one thing where several are expected" if group is wanted else "several things where one is expected"

    def two_groups(self, said: Group, wanted: Group) -> str | None:
        if said.variable and wanted.variable and said.variable != wanted.variable:
            return "another variable"
        if "{}" in (said.brackets, wanted.brackets) and (said.is_ordered or wanted.is_ordered):
            return "another kind of brackets"
        if not said.is_ordered and not wanted.is_ordered:
            if wanted.brackets == "{}" or said.brackets == "{}":
                return self.matched(_distinct(said.items), _distinct(wanted.items))
            if _names(wanted.items) != _names(said.items) and len(_names(wanted.items) | _names(said.items)) > 2:
                return self.in_order(said.items, wanted.items)
            return self.matched(said.items, wanted.items)
        if said.brackets != wanted.brackets and not _list_for_tuple(said, wanted):
            return "another kind of brackets"
        return self.in_order(said.items, wanted.items)

    def in_order(self, said: Sequence[Shape], wanted: Sequence[Shape]) -> str | None:
        if len(said) != len(wanted):
            return f"{len(said)} things where {len(wanted)} are expected"
        for one, other in zip(said, wanted, strict=True):
            if (reason := self.differ(one, other)) is not None:
                return reason
        return None

    def matched(self, said: Sequence[Shape], wanted: Sequence[Shape]) -> str | None:
        """Each thing said is one thing wanted and the other way round, in any order."""
        if len(said) != len(wanted):
            return f"{len(said)} things where {len(wanted)} are expected"
        left = list(wanted)
        for one in said:
            partner = next((other for other in left if self.differ(one, other) is None), None)
            if partner is None:
                return "something that is not expected"
            left.remove(partner)
        return None


def _list_for_tuple(said: Group, wanted: Group) -> bool:
    """A tuple may be written without its brackets; a two-sided interval may not."""
    bare, other = (said, wanted) if said.brackets == "" else (wanted, said)
    if bare.brackets != "" or bare.variable or other.variable:
        return False
    return other.brackets == "()" or (other.brackets == "[]" and len(other.items) != 2)


def _distinct(items: Sequence[Shape]) -> list[Shape]:
    return list(dict.fromkeys(items))


def _as_union(shape: Shape) -> Shape:
    """`x < 1 or x > 2` as the union of its intervals."""
    if not (isinstance(shape, Group) and shape.brackets == "" and shape.items):
        return shape
    variables = {_variable(item) for item in shape.items}
    return Union(shape.items) if len(variables) == 1 and None not in variables else shape


def _variable(shape: Shape) -> str | None:
    return shape.variable if isinstance(shape, Group) else None


def _names(items: Sequence[Shape]) -> set[str | None]:
    return {item.name if isinstance(item, Assignment) else None for item in items}


def _as_relation(shape: Shape) -> Shape:
    if isinstance(shape, Assignment):
        left, right = shape.text.split("=", 1)
        return Relation(left.strip(), "=", right.strip())
    return shape


def _relation_text(shape: Relation) -> str:
    return f"{shape.left} {shape.sign} {shape.right}"


def _functions(text: str) -> set[str]:
    return {found.group().strip() for found in _UNWORKED.finditer(text)}


def written(shape: Shape) -> str:
    """A number or expression as LaTeX."""
    if isinstance(shape, Expression):
        return shape.text
    if isinstance(shape, Number):
        value = shape.value / 100 if shape.percent else shape.value
        if value.denominator == 1:
            return str(value.numerator)
        if shape.form == "decimal":
            return f"{float(value):.{max(shape.places, 1)}f}"
        sign = "-" if value < 0 else ""
        return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    raise NotUnderstood("neither a number nor an expression")
