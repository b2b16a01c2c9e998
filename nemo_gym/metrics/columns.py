"""Numbers of many rollouts kept column by column, and the five figures each column is described by."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_SECONDS_KEY, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

Number = int | float

INDEX_FIELDS = frozenset({TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME})
NOT_SCORES = INDEX_FIELDS | {NG_SECONDS_KEY}
"""Numbers of every record that say nothing about how good it is."""
NEVER_NUMBERS = frozenset({str, dict, list, type(None)})
"""What JSON has besides numbers, told apart by type alone because that is quick."""
SMALL = 2**1000
FIGURES = ("mean", "max", "min", "median", "std")
"""What is said of every column, in this order."""
SMALLEST_EXACT = 1e-280
"""A sum of squares below this may have lost digits to underflow."""


def is_failure(result: Mapping[str, Any]) -> bool:
    """Whether this row says why there is no score, instead of giving one."""
    return result.get(NG_FAILURE_CLASS_KEY) is not None


def finite_number(value: Any) -> Number | None:
    """`value` as a number that may enter a mean, else None: truth counts 0 or 1; NaN and infinity do not count."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and value.bit_length() < 1024:  # no larger than a float can hold
        return value
    return None


def take_numbers(fields: Mapping[str, Any], names: list[str], values: list[Number]) -> None:
    """Append the finite numbers among `fields`, in their order, without indices and how long it took."""
    for name, value in fields.items():  # most of the time of aggregating is spent here
        kind = type(value)
        if kind in NEVER_NUMBERS or name in NOT_SCORES:
            continue
        plain = value - value == 0 if kind is float else kind is int and -SMALL < value < SMALL
        number = value if plain else finite_number(value)
        if number is not None:
            names.append(name)
            values.append(number)


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
    return 0.0 if lowest == highest else _spread(values, mean(values), lowest, highest)


def _spread(values: Sequence[float], centre: float, lowest: float, highest: float) -> float:
    """The sample standard deviation of values that are not all equal."""
    squares = math.fsum([(value - centre) * (value - centre) for value in values])
    if not SMALLEST_EXACT < squares < math.inf:
        # Scaled by the range, so that neither squares nor their sum leave what a float can hold.
        scale = max(highest - centre, centre - lowest)
        squares = math.fsum(((value - centre) / scale) ** 2 for value in values)
        return scale * math.sqrt(squares / (len(values) - 1))
    return math.sqrt(squares / (len(values) - 1))


def figures(values: Sequence[float]) -> tuple[float, float, float, float, float | None]:
    """Mean, maximum, minimum, median and deviation of at least one value; a lone value has no deviation."""
    ordered = sorted(values)
    lowest, highest = ordered[0], ordered[-1]
    if lowest == highest:
        same = float(lowest)
        return same, same, same, same, 0.0 if len(ordered) > 1 else None
    centre = mean(ordered)
    return centre, float(highest), float(lowest), _middle(ordered), _spread(ordered, centre, lowest, highest)


def described(columns: Sequence[tuple[str, Sequence[float]]], keys: Sequence[str] | None = None) -> dict[str, float]:
    """`mean/…` of every named column, then `max/…`, `min/…`, `median/…` and `std/…`.

    A lone value has no deviation: its `std/` is left out, unless no column has one, in which case all are 0. A figure
    too large for a float is left out too. `keys` are these names, where they are known already.
    """
    if not columns:
        return {}
    *blocks, deviations = zip(*[figures(values) for _, values in columns], strict=True)
    if all(deviation is None for deviation in deviations):
        deviations = (0.0,) * len(columns)
    told = zip(keys or figure_names([name for name, _ in columns]), chain(*blocks, deviations), strict=True)
    return {name: figure for name, figure in told if figure is not None and math.isfinite(figure)}


def figure_names(names: Sequence[str]) -> list[str]:
    """The names of the figures of these columns, in their order."""
    return [f"{figure}/{name}" for figure in FIGURES for name in names]


def _middle(ordered: Sequence[float]) -> float:
    """The median of sorted values."""
    half, odd = divmod(len(ordered), 2)
    return float(ordered[half]) if odd else (ordered[half - 1] + ordered[half]) / 2
