"""Numbers of many rollouts kept column by column, and the five figures each column is described by."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from nemo_gym.keys import NG_FAILURE_CLASS_KEY, RESPONSE_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

Numbers = dict[str, int | float]

INDEX_FIELDS = frozenset({TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME})


def is_failure(result: Mapping[str, Any]) -> bool:
    """Whether this row says why there is no score, instead of giving one."""
    return result.get(NG_FAILURE_CLASS_KEY) is not None


def finite_number(value: Any) -> int | float | None:
    """`value` as a number that may enter a mean, else None: truth counts 0 or 1; NaN and infinity do not count."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and value.bit_length() < 1024:  # no larger than a float can hold
        return value
    return None


def numbers_in(fields: Mapping[str, Any]) -> Numbers:
    """The finite numbers among `fields`, in their order, without the task and rollout index."""
    found: Numbers = {}
    for name, value in fields.items():
        if isinstance(value, int | float) and name not in INDEX_FIELDS:
            number = finite_number(value)
            if number is not None:
                found[name] = number
    return found


def usage_in(result: Mapping[str, Any]) -> Numbers:
    """The token counts of `response.usage`, if the row still carries them."""
    response = result.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, Mapping) else None
    return numbers_in(usage) if isinstance(usage, Mapping) else {}


def own_and_usage(result: Mapping[str, Any]) -> tuple[Numbers, Numbers]:
    """Everything about one rollout that can be averaged: its own numeric fields, and its token usage.

    A field the server itself calls like one of the token counts stands for it.
    """
    own = numbers_in(result)
    return own, {name: number for name, number in usage_in(result).items() if name not in own}


def numbers_of(result: Mapping[str, Any]) -> Numbers:
    """Everything about one rollout that can be averaged, in one."""
    own, usage = own_and_usage(result)
    return own | usage


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean of at least one finite number, exact to rounding whatever the order."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum is too large for a float; the mean is not
        return math.fsum(value / len(values) for value in values)


def sample_std(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1), or None for fewer than two values."""
    if len(values) < 2:
        return None
    lowest, highest = min(values), max(values)
    if lowest == highest:
        return 0.0
    centre = mean(values)
    # Scaled by the range, so that neither squares nor their sum leave what a float can hold.
    scale = max(highest - centre, centre - lowest)
    squares = math.fsum(((value - centre) / scale) ** 2 for value in values)
    return scale * math.sqrt(squares / (len(values) - 1))


class Columns:
    """The numbers of some rollouts; eight bytes each, in the order they came."""

    def __init__(self) -> None:
        self.count = 0
        self._values: dict[str, array[float]] = {}

    def add(self, numbers: Mapping[str, int | float]) -> None:
        """Take in the numbers of one more rollout."""
        self.count += 1
        for name, number in numbers.items():
            column = self._values.get(name)
            if column is None:
                column = self._values[name] = array("d")
            column.append(number)

    @property
    def names(self) -> list[str]:
        """The columns, in order of first appearance."""
        return list(self._values)

    def describe(self, order: Iterable[str] | None = None) -> dict[str, float]:
        """`mean/…` of every column, then `max/…`, `min/…`, `median/…` and `std/…`.

        `order` lists columns in the order wanted. A lone value has no deviation: its `std/` is left out,
        unless no column has one, in which case all are 0. A figure too large for a float is left out too.
        """
        columns = [(name, self._values[name]) for name in (order or self._values) if name in self._values]
        described: dict[str, float] = {}
        described |= {f"mean/{name}": mean(values) for name, values in columns}
        described |= {f"max/{name}": max(values) for name, values in columns}
        described |= {f"min/{name}": min(values) for name, values in columns}
        described |= {f"median/{name}": float(median(values)) for name, values in columns}
        deviations = {f"std/{name}": sample_std(values) for name, values in columns}
        if all(deviation is None for deviation in deviations.values()):
            described |= dict.fromkeys(deviations, 0.0)
        else:
            described |= {name: deviation for name, deviation in deviations.items() if deviation is not None}
        return {name: figure for name, figure in described.items() if math.isfinite(figure)}
