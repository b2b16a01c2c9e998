"""Statistics that are computed for parts of the data and merged; how the data is divided does not matter."""

import math
from array import array
from collections import Counter
from fractions import Fraction

COUNT, AVERAGE, LOWEST, HIGHEST, DEVIATION = "Total # non-null values", "Average", "Min", "Max", "Standard deviation"

Statistics = dict[str, int | float]


class NumberStats:
    """Count, mean, range and sample standard deviation of numbers. Sums are exact, so merging changes no result."""

    __slots__ = ("_sums", "count", "highest", "lowest")

    def __init__(self) -> None:
        self.count = 0
        self.lowest: float = math.inf
        self.highest: float = -math.inf
        # Denominator (a power of two, so few) -> sum of the numerators and sum of their squares.
        self._sums: dict[int, list[int]] = {}

    def add(self, value: float, times: int = 1) -> None:
        """Add a finite number, `times` times."""
        numerator, denominator = value.as_integer_ratio()
        sums = self._sums.get(denominator)
        if sums is None:
            sums = self._sums[denominator] = [0, 0]
        sums[0] += times * numerator
        sums[1] += times * numerator * numerator
        self.count += times
        if value < self.lowest:
            self.lowest = value
        if value > self.highest:
            self.highest = value

    def merge(self, other: "NumberStats") -> None:
        """Add all numbers of `other`."""
        self.count += other.count
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        for denominator, (total, squares) in other._sums.items():
            sums = self._sums.setdefault(denominator, [0, 0])
            sums[0] += total
            sums[1] += squares

    def statistics(self) -> Statistics:
        """Return the five statistics, rounded; zeros if no number was added."""
        if not self.count:
            return {COUNT: 0, AVERAGE: 0.0, LOWEST: 0.0, HIGHEST: 0.0, DEVIATION: 0.0}
        total = sum((Fraction(sums[0], denominator) for denominator, sums in self._sums.items()), start=Fraction())
        squares = sum((Fraction(sums[1], denominator**2) for denominator, sums in self._sums.items()), start=Fraction())
        variance = (squares - total * total / self.count) / max(self.count - 1, 1)
        return {
            COUNT: self.count,
            AVERAGE: _round(float(total / self.count)),
            LOWEST: _round(float(self.lowest)),
            HIGHEST: _round(float(self.highest)),
            DEVIATION: _round(_square_root(variance)),
        }


def length_statistics(histogram: Counter[int]) -> Statistics:
    """Return the statistics of lengths, given the number of occurrences of each length."""
    numbers = NumberStats()
    for length, times in histogram.items():
        numbers.add(length, times)
    return numbers.statistics()


class DistinctCounter:
    """Counts distinct texts with 8 to 16 bytes of memory per text.

    Texts are identified by Python's 64-bit `hash`, which is the same only in this process and its forks: do not merge
    counters of other processes.
    """

    __slots__ = ("_buckets", "_recent", "_unique")

    MAX_RECENT = 1 << 17
    BUCKETS = 256

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._buckets: list[array[int]] = []  # a set of all hashes would need ten times the memory
        self._unique: list[int] = []
        """Size of each bucket when its duplicates were last removed."""

    def add(self, text: str | bytes) -> None:
        self._recent.add(hash(text))
        if len(self._recent) > self.MAX_RECENT:
            self._pack()

    def merge(self, other: "DistinctCounter") -> None:
        """Add all texts of `other`."""
        for hashes in (other._recent, *other._buckets):
            self._recent.update(hashes)
            if len(self._recent) > self.MAX_RECENT:
                self._pack()

    def __len__(self) -> int:
        """Return the number of distinct texts."""
        if not self._buckets:
            return len(self._recent)
        self._pack()
        for number in range(self.BUCKETS):
            self._remove_duplicates(number)
        return sum(self._unique)

    def _pack(self) -> None:
        """Move the recent hashes to the buckets; remove the duplicates of buckets that have about doubled."""
        if not self._buckets:
            self._buckets = [array("q") for _ in range(self.BUCKETS)]
            self._unique = [0] * self.BUCKETS
        for value in self._recent:
            self._buckets[value % self.BUCKETS].append(value)
        self._recent.clear()
        for number, bucket in enumerate(self._buckets):
            if len(bucket) > 2 * self._unique[number] + self.BUCKETS:  # not more often: the cost per hash is constant
                self._remove_duplicates(number)

    def _remove_duplicates(self, number: int) -> None:
        """Remove the duplicates of the bucket `number`."""
        self._buckets[number] = array("q", set(self._buckets[number]))
        self._unique[number] = len(self._buckets[number])


def _round(value: float) -> float:
    """Round to two decimals, or to three if the absolute value is below 1."""
    return round(value, 2 if abs(value) >= 1 else 3)


def _square_root(value: Fraction) -> float:
    try:
        return math.sqrt(value)
    except OverflowError:  # too large for a float, but its root is not
        return float(math.isqrt(int(value)))
