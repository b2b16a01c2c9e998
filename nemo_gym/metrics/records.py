"""The numbers of single rollouts, kept small: a tuple of values each, and their names once for all that share them."""

from collections.abc import Container, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from nemo_gym.keys import RESPONSE_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.columns import Number, described, figure_names, take_numbers

Row = dict[str, Any]


class Shape:
    """Which numbers a rollout has: its own fields, then its token usage."""

    __slots__ = ("_in_short", "_pick", "names", "position")

    def __init__(self, own: Sequence[str], usage: Sequence[str]) -> None:
        self.names = (*own, *usage)
        self.position = {name: place for place, name in enumerate(self.names)}
        self._in_short = tuple(dict.fromkeys([*(n for n in own if n == "reward"), *usage, *own]))
        places = [self.position[name] for name in self._in_short]
        self._pick = itemgetter(*places) if len(places) > 1 else lambda values: tuple(values[p] for p in places)

    def info(self, task: int, rollout: int, values: Sequence[Number]) -> Row:
        """One rollout in short: who it is, its reward, its token usage, its other numbers."""
        return {
            "rollout_id": f"{task}:{rollout}",
            TASK_INDEX_KEY_NAME: task,
            ROLLOUT_INDEX_KEY_NAME: rollout,
            **dict(zip(self._in_short, self._pick(values), strict=True)),
        }


Record = tuple[Shape, tuple[Number, ...]]
"""What is kept of one rollout."""


class Shapes:
    """Makes records of rollouts. All rollouts with the same fields share one shape."""

    def __init__(self) -> None:
        self._known: dict[tuple[int | str, ...], tuple[Shape, tuple[int, ...] | None]] = {}

    def record(self, result: Mapping[str, Any]) -> Record:
        """The numbers of one rollout. A field the server itself calls like a token count stands for it."""
        names: list[str] = []
        values: list[Number] = []
        take_numbers(result, names, values)
        own = len(names)
        response = result.get(RESPONSE_KEY_NAME)
        usage = response.get("usage") if isinstance(response, dict) else None
        if isinstance(usage, dict):
            take_numbers(usage, names, values)
        key: tuple[int | str, ...] = (own, *names)
        shape, places = self._known.get(key) or self._learn(key, names[:own], names[own:])
        return shape, tuple(values) if places is None else tuple([values[place] for place in places])

    def _learn(
        self, key: tuple[int | str, ...], own: list[str], usage: list[str]
    ) -> tuple[Shape, tuple[int, ...] | None]:
        apart = [name for name in usage if name not in own]
        places = (*range(len(own)), *(len(own) + usage.index(name) for name in apart))
        self._known[key] = Shape(own, apart), None if len(apart) == len(usage) else places
        return self._known[key]

    @property
    def names(self) -> list[str]:
        """Every name, in order of first appearance."""
        return list(dict.fromkeys(name for shape, _ in self._known.values() for name in shape.names))


def column(records: Iterable[Record], name: str) -> list[Number]:
    """The values called `name` of those records that have one."""
    return [values[shape.position[name]] for shape, values in records if name in shape.position]


def columns_of(records: Sequence[Record], wanted: Container[str] | None = None) -> list[tuple[str, Sequence[Number]]]:
    """Every column of some records, or those `wanted`, by name, in order of first appearance."""
    if not records:
        return []
    shapes = dict.fromkeys([record[0] for record in records])
    if len(shapes) == 1:
        named = zip(records[0][0].names, zip(*[record[1] for record in records], strict=True), strict=True)
        return list(named) if wanted is None else [(name, values) for name, values in named if name in wanted]
    names = dict.fromkeys(name for shape in shapes for name in shape.names if wanted is None or name in wanted)
    return [(name, column(records, name)) for name in names]


class Describer:
    """The five figures of every column of some records, columns in the order of `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._keys_of: dict[tuple[str, ...], list[str]] = {}

    def __call__(self, records: Sequence[Record]) -> dict[str, float]:
        columns = dict(columns_of(records))
        ordered = [(name, columns[name]) for name in self._names if name in columns]
        keys = self._keys(tuple(columns))
        if len(records) == 1:  # a lone value is its own mean, maximum, minimum and median, and has no deviation
            values = [float(value) for _, (value,) in ordered]
            return dict(zip(keys, [*values * 4, *[0.0] * len(values)], strict=True))
        return described(ordered, keys)

    def _keys(self, present: tuple[str, ...]) -> list[str]:
        keys = self._keys_of.get(present)
        if keys is None:
            keys = self._keys_of[present] = figure_names([name for name in self._names if name in present])
        return keys
