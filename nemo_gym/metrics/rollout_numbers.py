"""The numbers of rollouts in a compact form: a tuple of values each; rollouts with equal fields share the names."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from nemo_gym.keys import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.number_columns import Number, append_numbers, describe_columns
from nemo_gym.wire.stored_rollout import Row, StoredRollout


class RecordShape:
    """The names of a rollout's numbers: its fields, then its token usage."""

    __slots__ = ("_summary_names", "names", "position")

    def __init__(self, own: Sequence[str], usage: Sequence[str]) -> None:
        self.names = (*own, *usage)
        self.position = {name: position for position, name in enumerate(self.names)}
        self._summary_names = tuple(dict.fromkeys([*(n for n in own if n == "reward"), *usage, *own]))

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
        self._shapes: dict[tuple[int | str, ...], tuple[RecordShape, tuple[int, ...] | None]] = {}

    def record(self, result: Mapping[str, Any]) -> Record:
        """Return the numbers of one rollout. A field of the result replaces a token count of the same name."""
        names: list[str] = []
        values: list[Number] = []
        append_numbers(result, names, values)
        own = len(names)
        append_numbers(StoredRollout(result).usage, names, values)
        key: tuple[int | str, ...] = (own, *names)
        shape, positions = self._shapes.get(key) or self._add_shape(key, names[:own], names[own:])
        return shape, tuple(values) if positions is None else tuple([values[position] for position in positions])

    def _add_shape(
        self, key: tuple[int | str, ...], own: list[str], usage: list[str]
    ) -> tuple[RecordShape, tuple[int, ...] | None]:
        """Store and return a new shape, and the positions of its values if some usage names are left out."""
        added = [name for name in usage if name not in own]
        positions = (*range(len(own)), *(len(own) + usage.index(name) for name in added))
        self._shapes[key] = RecordShape(own, added), None if len(added) == len(usage) else positions
        return self._shapes[key]

    @property
    def names(self) -> list[str]:
        """Every name, in order of first appearance."""
        return list(dict.fromkeys(name for shape, _ in self._shapes.values() for name in shape.names))


def column(records: Iterable[Record], name: str) -> list[Number]:
    """Return the values called `name`; records without such a value are skipped."""
    return [values[shape.position[name]] for shape, values in records if name in shape.position]


def columns_of(records: Sequence[Record], selected: Container[str] | None = None) -> list[tuple[str, Sequence[Number]]]:
    """Return the name and values of every column, or of the `selected` ones, in order of first appearance."""
    shapes = dict.fromkeys(shape for shape, _ in records)
    names = dict.fromkeys(name for shape in shapes for name in shape.names if selected is None or name in selected)
    return [(name, column(records, name)) for name in names]


def describe(records: Sequence[Record], names: Iterable[str]) -> dict[str, float]:
    """Compute the statistics of the columns `names` of the records; columns that no record has are left out."""
    columns = dict(columns_of(records))
    return describe_columns([(name, columns[name]) for name in names if name in columns])
