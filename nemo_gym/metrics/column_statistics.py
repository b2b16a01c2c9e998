"""The numbers of many rollouts as columns, and the five statistics that describe each column."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

from nemo_gym.keys import MASK_SAMPLE_KEY, NG_SECONDS_KEY, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.wire.stored_rollout import REWARD_KEY, Row, StoredRollout

Number = int | float
Numbers = dict[str, Number]
"""The numbers of one rollout by name."""

INDEX_FIELDS = frozenset({TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME})
NOT_SCORES = INDEX_FIELDS | {NG_SECONDS_KEY, MASK_SAMPLE_KEY}
"""Numbers in a record that are not scores, so no statistics are computed from them."""
STATISTICS = ("mean", "max", "min", "median", "std")


def is_failure(result: Mapping[str, Any]) -> bool:
    """Return whether a row reports a failure, or a masked sample, instead of a score."""
    return StoredRollout(result).failure_class is not None or result.get(MASK_SAMPLE_KEY) is True


def finite_number(value: Any) -> Number | None:
    """Return the value as a finite number, a boolean as 0 or 1; None for NaN, infinity and other types."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and value.bit_length() < 1024:  # small enough for a float
        return value
    return None


def finite_numbers(fields: Mapping[str, Any]) -> Numbers:
    """Return the fields that are finite numbers, without indices and durations."""
    return {
        name: number
        for name, value in fields.items()
        if (number := finite_number(value)) is not None and name not in NOT_SCORES
    }


def rollout_numbers(result: Mapping[str, Any]) -> Numbers:
    """Return the numbers of one rollout: its fields, then its token usage.

    A field has priority over a token count of the same name.
    """
    numbers = finite_numbers(result)
    for name, number in finite_numbers(StoredRollout(result).usage).items():
        numbers.setdefault(name, number)
    return numbers


def is_count(name: str) -> bool:
    """Return whether a column counts tokens: a measurement, not a score."""
    return name.endswith("_tokens")


def rollout_info(task: int, rollout: int, numbers: Numbers) -> Row:
    """Summarize one rollout: its key, reward, token counts and other numbers."""
    # False sorts before True: the reward is first, then the token counts.
    names = sorted(numbers, key=lambda name: (name != REWARD_KEY, not is_count(name)))
    return {
        "rollout_id": f"{task}:{rollout}",
        TASK_INDEX_KEY_NAME: task,
        ROLLOUT_INDEX_KEY_NAME: rollout,
        **{name: numbers[name] for name in names},
    }


def column(rollouts: Iterable[Numbers], name: str) -> list[Number]:
    """Return the numbers called `name`; rollouts without such a number are skipped."""
    return [numbers[name] for numbers in rollouts if name in numbers]


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one finite number; the order of the numbers does not change it."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum is too large for a float; the mean is not
        return float(sum(map(Fraction, values)) / len(values))


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1), or None for fewer than two values."""
    return column_statistics(values)[-1] if len(values) > 1 else None


def column_statistics(values: Sequence[float]) -> tuple[float, float, float, float, float | None]:
    """Return mean, maximum, minimum, median and standard deviation (None for a single value) of the values."""
    ordered = sorted(values)
    count, lowest, highest = len(ordered), float(ordered[0]), float(ordered[-1])
    if lowest == highest:  # then no statistic needs rounding
        return lowest, lowest, lowest, lowest, 0.0 if count > 1 else None
    centre = mean(ordered)
    # `math.dist` scales its arguments, so that squares of very large or small numbers are not lost.
    deviation = math.dist(ordered, [centre] * count) / math.sqrt(count - 1)
    return centre, highest, lowest, float(statistics.median(ordered)), deviation


def describe(rollouts: Sequence[Numbers], names: Iterable[str]) -> dict[str, float]:
    """Compute the statistics of the columns `names` of the rollouts; columns that no rollout has are left out."""
    columns = ((name, column(rollouts, name)) for name in names)
    return describe_columns([(name, values) for name, values in columns if values])


def describe_columns(columns: Sequence[tuple[str, Sequence[float]]]) -> dict[str, float]:
    """Return `mean/<column>` of every column, then `max/…`, `min/…`, `median/…` and `std/…`.

    A column with a single value has no `std/`: its spread is unknown. If every column has a single value, no spread was
    seen anywhere, and every `std/` is 0. A statistic too large for a float is left out.
    """
    if not columns:
        return {}
    *other_statistics, deviations = zip(*[column_statistics(values) for _, values in columns], strict=True)
    if all(deviation is None for deviation in deviations):
        deviations = (0.0,) * len(columns)
    keys = (f"{statistic}/{name}" for statistic in STATISTICS for name, _ in columns)
    entries = zip(keys, chain(*other_statistics, deviations), strict=True)
    return {key: value for key, value in entries if value is not None and math.isfinite(value)}
