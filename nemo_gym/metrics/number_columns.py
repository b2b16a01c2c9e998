"""Columns of numbers from many rollouts, and the five statistics that describe each column."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from nemo_gym.keys import NG_SECONDS_KEY, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.wire.stored_rollout import StoredRollout

Number = int | float

INDEX_FIELDS = frozenset({TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME})
NOT_SCORES = INDEX_FIELDS | {NG_SECONDS_KEY}
"""Numbers of every record that do not measure its quality."""
STATISTICS = ("mean", "max", "min", "median", "std")
SMALLEST_EXACT = 1e-280
"""A sum of squares below this may have lost digits to underflow."""


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


def append_numbers(fields: Mapping[str, Any], names: list[str], values: list[Number]) -> None:
    """Append the names and values of the finite numbers in `fields` to both lists, without indices and durations."""
    for name, value in fields.items():
        number = finite_number(value)
        if number is not None and name not in NOT_SCORES:
            names.append(name)
            values.append(number)


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one finite number; it does not depend on their order."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum is too large for a float; the mean is not
        return math.fsum(value / len(values) for value in values)


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1), or None for fewer than two values."""
    if len(values) < 2:
        return None
    lowest, highest = min(values), max(values)
    return 0.0 if lowest == highest else _deviation(values, mean(values), lowest, highest)


def _deviation(values: Sequence[float], centre: float, lowest: float, highest: float) -> float:
    """Return the sample standard deviation of values that are not all equal."""
    squares = math.fsum([(value - centre) * (value - centre) for value in values])
    if not SMALLEST_EXACT < squares < math.inf:
        # Scale by the range, so that squares and their sum neither overflow nor underflow.
        scale = max(highest - centre, centre - lowest)
        squares = math.fsum(((value - centre) / scale) ** 2 for value in values)
        return scale * math.sqrt(squares / (len(values) - 1))
    return math.sqrt(squares / (len(values) - 1))


def column_statistics(values: Sequence[float]) -> tuple[float, float, float, float, float | None]:
    """Return mean, maximum, minimum, median and standard deviation (None for a single value) of the values."""
    ordered = sorted(values)
    lowest, highest = ordered[0], ordered[-1]
    if lowest == highest:
        value = float(lowest)
        return value, value, value, value, 0.0 if len(ordered) > 1 else None
    centre = mean(ordered)
    return centre, float(highest), float(lowest), _median(ordered), _deviation(ordered, centre, lowest, highest)


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


def _median(ordered: Sequence[float]) -> float:
    """Return the median of sorted values."""
    half, odd = divmod(len(ordered), 2)
    return float(ordered[half]) if odd else (ordered[half - 1] + ordered[half]) / 2
