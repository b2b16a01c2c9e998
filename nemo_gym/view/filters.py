"""Translate a filter of the table into SQL with bound values.

Filters are Python comparisons of columns, such as `reward < 0.5 and turns > 3`, `outcome == "failed"` or
`"sorry" in answer`. They are parsed by Python's parser and never evaluated. Free text is searched by word prefixes.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches

from nemo_gym.errors import GymError
from nemo_gym.view.table_row import TEXT_COLUMNS, TableRow

NAMES_IN_FILTERS = {"rollout": "repeat", "tool_calls": "tools"}
"""Columns of the table that have another name in filters."""
COLUMNS = {
    **{
        NAMES_IN_FILTERS.get(column.name, column.name): f"{'c' if column.name in TEXT_COLUMNS else 'r'}.{column.name}"
        for column in fields(TableRow)
    },
    "tokens": "(r.tokens_in + r.tokens_out)",
}
"""Names in filters -> SQL, in the tables `rollouts` (r) and `cells` (c)."""
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "IS",
    ast.NotEq: "IS NOT",
}
LONGEST_FILTER = 2000
MAX_NODES = 200
_TOKEN = re.compile(r"\w+", re.UNICODE)
_LINE_ENDS = {10: 32, 13: 32}
"""The parsed text is one line, so that a column number locates every character."""
_SINGLE_EQUALS = re.compile(r"(?<![=!<>])=(?!=)")

Value = str | int | float | None


class FilterError(GymError, ValueError):
    """A filter is invalid. `span` is the part of the text that is wrong, `suggestion` what may replace it."""

    exit_status = 2
    span: tuple[int, int] | None = None
    suggestion: str | None = None
    reason: str = ""
    """The problem as a sentence, without the fix."""

    @classmethod
    def at(cls, problem: str, reason: str, span: tuple[int, int] | None, **more: str | None) -> "FilterError":
        """Return the error with its span in the text."""
        suggestion = more.pop("suggestion", None)
        error = cls(problem, **{name: value for name, value in more.items() if value is not None})
        error.reason, error.span, error.suggestion = reason, span, suggestion
        return error


@dataclass(frozen=True)
class Condition:
    """A SQL expression with placeholders, and the values for them."""

    sql: str = "1"
    values: tuple[Value, ...] = ()

    @property
    def needs_cells(self) -> bool:
        """True if the condition uses the table of longer texts."""
        return "c." in self.sql


def parse_filter(expression: str, more_columns: Mapping[str, str] | None = None) -> Condition:
    """Return the condition of a filter; an empty filter matches all rollouts.

    `more_columns` maps further names, which only this run has, to SQL.

    Raises:
        FilterError: the filter is invalid; the message gives the reason.
    """
    tree = _parse(expression)
    return Condition() if tree is None else _Translator(expression, {**(more_columns or {}), **COLUMNS}).condition(tree)


def filter_parts(expression: str) -> list[tuple[int, int]]:
    """Return the spans of the comparisons that `and` joins at the top of a valid filter, in UTF-16 units."""
    tree = _parse(expression)
    if tree is None:
        return []
    is_and = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)
    nodes = tree.values if is_and and isinstance(tree, ast.BoolOp) else [tree]
    return [_with_brackets(expression, node_span(expression, node)) for node in nodes]


def filter_names(expression: str) -> list[str]:
    """Return the names of columns in a valid filter, in their order."""
    tree = _parse(expression)
    names = [] if tree is None else [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(names))


def full_text_query(words: str) -> str | None:
    """Return the full-text query that matches all words by prefix; None if there are no words."""
    tokens = _TOKEN.findall(words[:LONGEST_FILTER])
    return " ".join(f'"{token}"*' for token in tokens) or None


def node_span(text: str, node: ast.expr) -> tuple[int, int]:
    """Return start and end of a node in the text, in UTF-16 units, as JavaScript counts."""
    lead = text[: len(text) - len(text.lstrip())]
    line = text.strip().encode("utf-8", "surrogatepass")
    columns = (node.col_offset, node.end_col_offset or 0)
    start, end = (_utf16_length(lead + line[:column].decode("utf-8", "surrogatepass")) for column in columns)
    return start, end


def _with_brackets(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Extend a span by the brackets around it, which `ast` does not count as part of the node."""
    encoded, (start, end) = text.encode("utf-16-le", "surrogatepass"), span
    while True:
        before, after = (
            encoded[: 2 * start].decode("utf-16-le", "replace"),
            encoded[2 * end :].decode("utf-16-le", "replace"),
        )
        if not (before.rstrip().endswith("(") and after.lstrip().startswith(")")):
            return start, end
        start = _utf16_length(before.rstrip()) - 1
        end += _utf16_length(after) - _utf16_length(after.lstrip()) + 1


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _parse(expression: str) -> ast.expr | None:
    """Parse a filter; None for an empty one."""
    text = expression.translate(_LINE_ENDS).strip()
    if not text:
        return None
    if len(text) > LONGEST_FILTER:
        raise FilterError(f"a filter may have at most {LONGEST_FILTER} characters, not {len(text)}")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(expression, text, error) from None
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise FilterError("this filter is too long")
    return tree.body


def _unreadable(expression: str, text: str, error: Exception) -> FilterError:
    """Return the error of a text that Python cannot parse."""
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    example = 'for example: reward < 1 and outcome == "scored"'
    problem = f"cannot read {text!r}: {reason}"
    single = _SINGLE_EQUALS.search(text)
    lead = _utf16_length(expression) - _utf16_length(expression.lstrip())
    if single is not None:
        start = lead + _utf16_length(text[: single.start()])
        return FilterError.at(problem, "Use == to compare.", (start, start + 1), suggestion="==", fix=example)
    span = None
    if isinstance(error, SyntaxError) and error.offset and (error.lineno or 1) == 1:
        start = min(lead + _utf16_length(text[: error.offset - 1]), _utf16_length(expression))
        span = (start, _utf16_length(expression))
    return FilterError.at(problem, f"The filter cannot be read: {reason}.", span, fix=example)


class _Translator:
    """Translates the nodes of one filter into SQL."""

    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self._text = text
        self._columns = columns

    def condition(self, node: ast.expr) -> Condition:
        """Translate a comparison, or several with the operators `and`, `or` and `not`."""
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(value) for value in node.values]
            joined = (" AND " if isinstance(node.op, ast.And) else " OR ").join(part.sql for part in parts)
            return Condition(f"({joined})", tuple(value for part in parts for value in part.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.condition(node.operand)
            return Condition(f"NOT ({inner.sql})", inner.values)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        problem = f"{ast.unparse(node)!r} is not a comparison"
        raise self._error(node, problem, "A comparison is missing here, such as < 1.", fix="such as reward < 1")

    def _comparison(self, node: ast.Compare) -> Condition:
        """Translate a comparison, which may be chained: `0 < reward < 1`."""
        pieces, values = [], []
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            first, second = self._operand(left), self._operand(right)
            if isinstance(operator, ast.In | ast.NotIn):  # upper and lower case are the same
                sign = ">" if isinstance(operator, ast.In) else "="
                sql = f"instr(lower({second.sql}), lower({first.sql})) {sign} 0"
                values += [*second.values, *first.values]
            elif type(operator) in COMPARISONS:
                sql = f"{first.sql} {COMPARISONS[type(operator)]} {second.sql}"
                values += [*first.values, *second.values]
            else:
                problem = "only < <= > >= == !=, in and not in can be used"
                raise self._error(node, problem, "Only < <= > >= == !=, in and not in can be used.")
            pieces.append(sql)
        return Condition(f"({' AND '.join(pieces)})", tuple(values))

    def _operand(self, node: ast.expr) -> Condition:
        """Translate a column name or a constant."""
        if isinstance(node, ast.Name):
            if node.id in self._columns:
                return Condition(self._columns[node.id])
            close = get_close_matches(node.id, self._columns, n=1)
            fix = close[0] if close else f"one of {', '.join(self._columns)}"
            message = f"There is no column {node.id}."
            suggestion = close[0] if close else None
            raise self._error(node, f"unknown column {node.id!r}", message, suggestion=suggestion, fix=fix)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._operand(node.operand)
            return Condition(f"-{inner.sql}", inner.values)
        if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | int | float)):
            value = int(node.value) if isinstance(node.value, bool) else node.value
            if isinstance(value, int) and abs(value) >= 2**63:  # SQLite has integers of 64 bits and text in UTF-8
                raise self._error(node, f"{value} is too large", "This number is too large.")
            if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
                raise self._error(node, f"{value!r} is not a valid text", "This is not a valid text.")
            return Condition("?", (value,))
        problem = f"{ast.unparse(node)!r} is neither a column nor a value"
        raise self._error(node, problem, "This is neither a column nor a value.")

    def _error(self, node: ast.expr, problem: str, reason: str, **more: str | None) -> FilterError:
        return FilterError.at(problem, reason, node_span(self._text, node), **more)
