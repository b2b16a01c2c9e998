"""The numbers of many rollouts as columns, and the five statistics that describe each column.

The numbers of a rollout are kept as a tuple; rollouts with the same fields share the names (`RecordShape`).
"""

import math
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from nemo_gym.keys import NG_SECONDS_KEY, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.wire.stored_rollout import REWARD_KEY, Row, StoredRollout

Number = int | float

INDEX_FIELDS = frozenset({TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME})
NOT_SCORES = INDEX_FIELDS | {NG_SECONDS_KEY}
"""Numbers of every record that do not measure its quality."""
STATISTICS = ("mean", "max", "min", "median", "std")


class RecordShape:
    """The names of a rollout's numbers: its fields, then its token usage."""

    __slots__ = ("_summary_names", "names", "position")

    def __init__(self, names: Sequence[str], field_count: int) -> None:
        """Store the names, of which the first `field_count` are fields and the others token usage."""
        self.names = tuple(names)
        self.position = {name: position for position, name in enumerate(names)}
        reward = [REWARD_KEY] if REWARD_KEY in names[:field_count] else []
        self._summary_names = tuple(dict.fromkeys([*reward, *names[field_count:], *names]))

    def info(self, task: int, rollout: int, values: Sequence[Number]) -> Row:
        """Summarize one rollout: its key, reward, token usage and other numbers."""
        return {
            "rollout_id": f"{task}:{rollout}",
            TASK_INDEX_KEY_NAME: task,
            ROLLOUT_INDEX_KEY_NAME: rollout,
            **{name: values[self.position[name]] for name in self._summary_names},
        }


Record = tuple[RecordShape, tuple[Number, ...]]
"""The numbers of one rollout: their names and their values."""


class RecordShapes:
    """Build the compact records of rollouts. All rollouts with the same fields share one shape."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[int | str, ...], RecordShape] = {}

    def record(self, result: Mapping[str, Any]) -> Record:
        """Return the numbers of one rollout. A field of the result replaces a token count of the same name."""
        numbers = finite_numbers(result)
        field_count = len(numbers)
        for name, number in finite_numbers(StoredRollout(result).usage).items():
            numbers.setdefault(name, number)
        key: tuple[int | str, ...] = (field_count, *numbers)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = RecordShape(list(numbers), field_count)
        return shape, tuple(numbers.values())

    @property
    def names(self) -> list[str]:
        """Every name, in order of first appearance."""
        return list(dict.fromkeys(name for shape in self._shapes.values() for name in shape.names))


def is_failure(result: Mapping[str, Any]) -> bool:
    """Return whether a row reports a failure instead of a score."""
    return StoredRollout(result).failure_class is not None


def finite_number(value: Any) -> Number | None:
    """Return the value as a finite number, a boolean as 0 or 1; None for NaN, infinity and other types."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and value.bit_length() < 1024:  # small enough for a float
        return value
    return None


def finite_numbers(fields: Mapping[str, Any]) -> dict[str, Number]:
    """Return the fields that are finite numbers, without indices and durations."""
    return {
        name: number
        for name, value in fields.items()
        if (number := finite_number(value)) is not None and name not in NOT_SCORES
    }


def column(records: Iterable[Record], name: str) -> list[Number]:
    """Return the values called `name`; records without such a value are skipped."""
    return [values[shape.position[name]] for shape, values in records if name in shape.position]


def columns_of(records: Sequence[Record], selected: Container[str] | None = None) -> list[tuple[str, Sequence[Number]]]:
    """Return the name and values of every column, or of the `selected` ones, in order of first appearance."""
    shapes = dict.fromkeys(shape for shape, _ in records)
    names = dict.fromkeys(name for shape in shapes for name in shape.names if selected is None or name in selected)
    return [(name, column(records, name)) for name in names]


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one finite number; it does not depend on their order."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum is too large for a float; the mean is not
        return math.fsum(value / len(values) for value in values)


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1), or None for fewer than two values."""
    return column_statistics(values)[-1] if len(values) > 1 else None


def column_statistics(values: Sequence[float]) -> tuple[float, float, float, float, float | None]:
    """Return mean, maximum, minimum, median and standard deviation (None for a single value) of the values."""
    ordered = sorted(values)
    count, lowest, highest = len(ordered), float(ordered[0]), float(ordered[-1])
    if lowest == highest:
        return lowest, lowest, lowest, lowest, 0.0 if count > 1 else None
    centre = mean(ordered)
    # `math.dist` scales its arguments, so that squares of very large or small numbers are not lost.
    deviation = math.dist(ordered, [centre] * count) / math.sqrt(count - 1)
    return centre, highest, lowest, float(statistics.median(ordered)), deviation


def describe(records: Sequence[Record], names: Iterable[str]) -> dict[str, float]:
    """Compute the statistics of the columns `names` of the records; columns that no record has are left out."""
    columns = dict(columns_of(records))
    return describe_columns([(name, columns[name]) for name in names if name in columns])


def describe_columns(columns: Sequence[tuple[str, Sequence[float]]]) -> dict[str, float]:
    """Return `mean/<column>` of every column, then `max/…`, `min/…`, `median/…` and `std/…`.

    A column with a single value has no `std/`; if all columns have a single value, every `std/` is 0. A statistic too
    large for a float is left out.
    """
    if not columns:
        return {}
    *blocks, deviations = zip(*[column_statistics(values) for _, values in columns], strict=True)
    if all(deviation is None for deviation in deviations):
        deviations = (0.0,) * len(columns)
    keys = (f"{statistic}/{name}" for statistic in STATISTICS for name, _ in columns)
    values = zip(keys, chain(*blocks, deviations), strict=True)
    return {name: value for name, value in values if value is not None and math.isfinite(value)}
