"""Translate a filter of the table into SQL with bound values.

Filters are Python comparisons of columns, such as `reward < 0.5 and turns > 3`, `outcome == "failed"` or
`"sorry" in answer`. They are parsed by Python's parser and never evaluated. Free text is searched by word prefixes.
"""

import ast
import re
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

Value = str | int | float | None


class FilterError(GymError, ValueError):
    """A filter is invalid."""

    exit_status = 2


@dataclass(frozen=True)
class Condition:
    """A SQL expression with placeholders, and the values for them."""

    sql: str = "1"
    values: tuple[Value, ...] = ()

    @property
    def needs_cells(self) -> bool:
        """True if the condition uses the table of longer texts."""
        return "c." in self.sql


def parse_filter(expression: str) -> Condition:
    """Return the condition of a filter; an empty filter matches all rollouts.

    Raises:
        FilterError: the filter is invalid; the message gives the reason.
    """
    text = expression.strip()
    if not text:
        return Condition()
    if len(text) > LONGEST_FILTER:
        raise FilterError(f"a filter may have at most {LONGEST_FILTER} characters, not {len(text)}")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        example = 'for example: reward < 1 and outcome == "scored"'
        raise FilterError(f"cannot read {text!r}: {reason}", fix=example) from None
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise FilterError("this filter is too long")
    return _translate(tree.body)


def full_text_query(words: str) -> str | None:
    """Return the full-text query that matches all words by prefix; None if there are no words."""
    tokens = _TOKEN.findall(words[:LONGEST_FILTER])
    return " ".join(f'"{token}"*' for token in tokens) or None


def _translate(node: ast.expr) -> Condition:
    """Translate a comparison, or several with the operators `and`, `or` and `not`."""
    if isinstance(node, ast.BoolOp):
        parts = [_translate(value) for value in node.values]
        joined = (" AND " if isinstance(node.op, ast.And) else " OR ").join(part.sql for part in parts)
        return Condition(f"({joined})", tuple(value for part in parts for value in part.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _translate(node.operand)
        return Condition(f"NOT ({inner.sql})", inner.values)
    if isinstance(node, ast.Compare):
        return _comparison(node)
    raise FilterError(f"{ast.unparse(node)!r} is not a comparison", fix="such as reward < 1")


def _comparison(node: ast.Compare) -> Condition:
    """Translate a comparison, which may be chained: `0 < reward < 1`."""
    pieces, values = [], []
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
        first, second = _operand(left), _operand(right)
        if isinstance(operator, ast.In | ast.NotIn):  # upper and lower case are the same
            sql = f"instr(lower({second.sql}), lower({first.sql})) {'>' if isinstance(operator, ast.In) else '='} 0"
            values += [*second.values, *first.values]
        elif type(operator) in COMPARISONS:
            sql = f"{first.sql} {COMPARISONS[type(operator)]} {second.sql}"
            values += [*first.values, *second.values]
        else:
            raise FilterError("only < <= > >= == !=, in and not in can be used")
        pieces.append(sql)
    return Condition(f"({' AND '.join(pieces)})", tuple(values))


def _operand(node: ast.expr) -> Condition:
    """Translate a column name or a constant."""
    if isinstance(node, ast.Name):
        if node.id in COLUMNS:
            return Condition(COLUMNS[node.id])
        close = get_close_matches(node.id, COLUMNS, n=1)
        raise FilterError(f"unknown column {node.id!r}", fix=close[0] if close else f"one of {', '.join(COLUMNS)}")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _operand(node.operand)
        return Condition(f"-{inner.sql}", inner.values)
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | int | float)):
        value = int(node.value) if isinstance(node.value, bool) else node.value
        if isinstance(value, int) and abs(value) >= 2**63:  # SQLite has integers of 64 bits and text in UTF-8
            raise FilterError(f"{value} is too large")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise FilterError(f"{value!r} is not a valid text")
        return Condition("?", (value,))
    raise FilterError(f"{ast.unparse(node)!r} is neither a column nor a value")
