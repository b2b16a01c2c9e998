"""Choose the rows of a run: by a condition, by id, by position, in file order or shuffled.

Rows keep the task number that they have in the whole file, so that task 17 is the same row in every run.
"""

import ast
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.catalog.rows import parse_row
from nemo_gym.config.problems import did_you_mean
from nemo_gym.errors import ConfigError
from nemo_gym.keys import AGENT_REF_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.rollouts.plan import Line, line_digest, read_lines
from nemo_gym.wire.stored_rollout import Row

ID_FIELDS = ("id", "task_id", "sample_id", "question_id")
"""Fields in which datasets store the id of a row; the first one counts."""
_RANGE = re.compile(r"\s*(\d+)\s*-\s*(\d+)\s*")
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda part, whole: part in whole,
    ast.NotIn: lambda part, whole: part not in whole,
}
MAX_NODES = 200
MAX_FIELD_NAMES = 1000

Predicate = Callable[[Row], bool]


class NoRowsSelected(ConfigError, ValueError):
    """The selection or the input file has no rows."""


def parse_limit(text: str) -> tuple[int, int]:
    """Parse `20`, the first 20 rows, or `10-20`, the tenth to the twentieth; return the numbers of first and last row.

    Raises:
        ValueError: the text has another form, or selects no row.
    """
    match = _RANGE.fullmatch(text)
    first, last = (int(match[1]), int(match[2])) if match else (1, int(text) if text.strip().isdecimal() else 0)
    if not 1 <= first <= last:
        raise ValueError(f"'{text}' is neither a number from 1 nor a range such as 10-20")
    return first, last


@dataclass(frozen=True, kw_only=True)
class RowSelection:
    """The rows of a file that a run uses. Conditions apply first, then the order, then the limit."""

    limit: int | str | None = None
    """Number of rows, or `10-20` for the tenth to the twentieth; None and 0: all rows."""
    is_limit_per_agent: bool = False
    """Apply the limit to the rows of each agent, so that each of several environments is evaluated."""
    where: str | None = None
    """A comparison of fields, such as `topic == "algebra" and level > 3`."""
    ids: tuple[str, ...] = ()
    """Ids of rows: the value of a field of `ID_FIELDS`, else the task number."""
    tasks: tuple[int, ...] | None = None
    """Task numbers of rows that another run left without a score."""
    shuffle_seed: int | None = None
    """Seed of the order; None: the order of the file."""

    @property
    def is_plain(self) -> bool:
        """True if the first rows of the file are used in their order."""
        is_first = not self.limit or (isinstance(self.limit, int) and not self.is_limit_per_agent)
        return is_first and not self.where and not self.ids and self.tasks is None and self.shuffle_seed is None

    def identity(self) -> dict[str, Any]:
        """Return the selection, except its limit, for the identity of a run."""
        tasks = None if self.tasks is None else list(self.tasks)
        per_agent = {"limit_per_agent": True} if self.limit and self.is_limit_per_agent else {}
        return {
            "where": self.where,
            "ids": list(self.ids),
            "tasks": tasks,
            "shuffle_seed": self.shuffle_seed,
            **per_agent,
        }

    def lines(self, path: Path) -> Iterator[Line]:
        """Yield the selected lines of a file with their line numbers and, if it is needed, task numbers.

        Raises:
            ConfigPathNotFoundError: the file does not exist.
            NoRowsSelected: no row is selected.
            ConfigError: the condition is invalid, or an id or a field of the condition is in no row of the file.
        """
        count = 0
        for count, line in enumerate(self._select(path), start=1):  # noqa: B007 - counts
            yield line
        if not count:
            problem = "no row is selected" if any(read_lines(path, 1)) else "the file has no rows"
            raise NoRowsSelected(problem, where=str(path), fix=f"check {self}" if not self.is_plain else None)

    def __str__(self) -> str:
        names = {"limit": self.limit, "where": self.where, "ids": ",".join(self.ids), "last-failed": self.tasks}
        return ", ".join(f"--{name} {value}" for name, value in names.items() if value not in (None, ""))

    def _select(self, path: Path) -> Iterator[Line]:
        if self.is_plain:
            yield from read_lines(path, self.limit)  # type: ignore[arg-type]
            return
        matching = self._matching_lines(path)
        if self.shuffle_seed is not None:
            offsets = list(_with_offsets(matching, path))
            random.Random(self.shuffle_seed).shuffle(offsets)
            matching = _read_at(path, offsets)
        if not self.limit:
            yield from matching
            return
        first, last = parse_limit(str(self.limit))
        counts = Counter[str]()
        for line in matching:
            agent = self._agent_of(line, path)
            counts[agent] += 1
            if first <= counts[agent] <= last:
                yield line
            elif counts[agent] > last and not self.is_limit_per_agent:
                return

    def _agent_of(self, line: Line, path: Path) -> str:
        """Return the agent by which a line is counted; empty if all lines are counted together."""
        if not self.is_limit_per_agent:
            return ""
        reference = parse_row(line[1], f"{path}:{line[0]}").get(AGENT_REF_KEY_NAME)
        return str(reference.get("name")) if isinstance(reference, Mapping) else ""

    def _matching_lines(self, path: Path) -> Iterator[Line]:
        """Yield the lines that fulfil the conditions, in the order of the file, with their task numbers."""
        predicate = parse_condition(self.where) if self.where else None
        fields = ConditionFields(self.where) if self.where else None
        missing, tasks = set(self.ids), None if self.tasks is None else set(self.tasks)
        first_lines: dict[bytes, int] = {}
        for position, (number, content, *_) in enumerate(read_lines(path)):
            index = first_lines.setdefault(line_digest(content), position)
            if predicate is None and not self.ids and tasks is None:
                yield number, content, index
                continue
            row = parse_row(content, f"{path}:{number}")
            own_number = row.get(TASK_INDEX_KEY_NAME)
            task = index if own_number is None else own_number
            row_id = next((str(row[name]) for name in ID_FIELDS if row.get(name) is not None), str(task))
            is_chosen = (not self.ids or row_id in self.ids) and (
                tasks is None or (isinstance(task, int) and task in tasks)
            )
            missing.discard(row_id)
            if fields is not None:
                fields.add_row(row)
            if is_chosen and (predicate is None or predicate(row)):
                yield number, content, index
        if missing:
            listed = ", ".join(sorted(missing)[:5])
            raise ConfigError(f"no row has the id {listed}", where=str(path), fix="gym view shows the task numbers")
        if fields is not None:
            fields.check(path)


def _with_offsets(lines: Iterator[Line], path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield the line number, offset and task number of lines, which are in the order of the file."""
    indices = {line[0]: line[2] for line in lines if len(line) == 3}
    offset = 0
    with path.open("rb") as file:
        for number, content in enumerate(file, start=1):
            if number in indices:
                yield number, offset, indices[number]
            offset += len(content)


def _read_at(path: Path, offsets: list[tuple[int, int, int]]) -> Iterator[Line]:
    with path.open("rb") as file:
        for number, offset, index in offsets:
            file.seek(offset)
            yield number, file.readline(), index


def parse_condition(text: str) -> Predicate:
    """Return the predicate of a condition. It is parsed by Python's parser and never evaluated as code.

    A comparison with a field that a row lacks, or of values that cannot be compared, is false; `level == None` finds
    the rows that lack a field.

    Raises:
        ConfigError: the condition is invalid.
    """
    fix = "compare fields of the rows, for example --where 'level > 3 and topic == \"algebra\"'"
    try:
        tree = ast.parse(text.strip(), mode="eval")
        if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
            raise ValueError("it is too long")
        return _predicate(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"cannot read {text!r}: {reason}", where="--where", fix=fix) from None


def _predicate(node: ast.expr) -> Predicate:
    if isinstance(node, ast.BoolOp):
        parts = [_predicate(value) for value in node.values]
        combine = all if isinstance(node.op, ast.And) else any
        return lambda row: combine(part(row) for part in parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _predicate(node.operand)
        return lambda row: not inner(row)
    if not isinstance(node, ast.Compare):
        raise ValueError(f"{ast.unparse(node)!r} is not a comparison")
    if not all(type(compare) in _COMPARISONS for compare in node.ops):
        raise ValueError("only < <= > >= == !=, in and not in can be used")
    sides = (node.left, *node.comparators)
    operands = [_operand(side) for side in sides]
    names_null = any(isinstance(side, ast.Constant) and side.value is None for side in sides)
    comparisons = [_COMPARISONS[type(compare)] for compare in node.ops]

    def holds(row: Row) -> bool:
        values = [operand(row) for operand in operands]
        if not names_null and any(value is None for value in values):
            return False
        try:
            return all(
                bool(compare(left, right))
                for compare, left, right in zip(comparisons, values, values[1:], strict=False)
            )
        except TypeError:
            return False

    return holds


def _operand(node: ast.expr) -> Callable[[Row], Any]:
    """Return the function that reads a field, maybe nested (`verifier_metadata.level`), or the value of a constant."""
    path = _field_path(node)
    if path:

        def read_field(row: Row) -> Any:
            value: Any = row
            for name in path:
                value = value.get(name) if isinstance(value, Mapping) else None
            return value

        return read_field
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):  # a TypeError for {[1]}
        raise ValueError(f"{ast.unparse(node)!r} is neither a field nor a value") from None
    return lambda _row: value


def _field_path(node: ast.expr) -> tuple[str, ...]:
    """Return the names of a field, maybe nested; empty if the node is not a field."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node.id, *names) if isinstance(node, ast.Name) else ()


class ConditionFields:
    """The fields of a condition, and whether rows have them: a misspelt field would fulfil no comparison silently."""

    def __init__(self, condition: str) -> None:
        body = ast.parse(condition.strip(), mode="eval").body
        sides = [
            side for node in ast.walk(body) if isinstance(node, ast.Compare) for side in (node.left, *node.comparators)
        ]
        self._missing = {path for side in sides if (path := _field_path(side))}
        self._names: dict[str, None] = {}

    def add_row(self, row: Row) -> None:
        """Note the fields of a row."""
        if not self._missing:
            return
        self._missing = {path for path in self._missing if not _has_field(row, path)}
        if self._missing and len(self._names) < MAX_FIELD_NAMES:
            self._names.update(dict.fromkeys(_field_names(row)))

    def check(self, path: Path) -> None:
        """Refuse fields that no row has.

        Raises:
            ConfigError: a field of the condition is in no row; the error names the nearest field.
        """
        if not self._missing or not self._names:
            return
        name = ".".join(min(self._missing))
        nested = [other for other in self._names if other.endswith(f".{name.rpartition('.')[2]}")]
        guess = f" — did you mean '{nested[0]}'?" if nested else did_you_mean(name, self._names)
        fields = ", ".join(other for other in self._names if "." not in other and not other.startswith("_"))
        raise ConfigError(f"no row has the field '{name}'{guess}", where=f"--where, {path}", fix=f"fields: {fields}")


def _has_field(row: Row, path: tuple[str, ...]) -> bool:
    value: Any = row
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


def _field_names(row: Mapping[str, Any], prefix: str = "", depth: int = 3) -> Iterator[str]:
    """Yield the names of the fields of a row, with those of nested objects as `verifier_metadata.level`."""
    for name, value in row.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping) and depth > 1:
            yield from _field_names(value, f"{prefix}{name}.", depth - 1)
