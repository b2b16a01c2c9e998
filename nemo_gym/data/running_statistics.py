"""Statistics that do not depend on how the rows are split into parts or in which order the parts are merged."""

import math
from array import array
from fractions import Fraction

COUNT, AVERAGE, LOWEST, HIGHEST, DEVIATION = "Total # non-null values", "Average", "Min", "Max", "Standard deviation"

Statistics = dict[str, int | float]

OWN_SEED = hash("the seed of this process")


class Numbers:
    """Count, mean, range and sample deviation of numbers. Sums are exact, so merged parts give the same result."""

    __slots__ = ("_sums", "count", "highest", "lowest")

    def __init__(self) -> None:
        self.count = 0
        self.lowest: float = math.inf
        self.highest: float = -math.inf
        # Denominator (a power of two; there are few) -> sum of the numerators, and of their squares.
        self._sums: dict[int, list[int]] = {}

    def add(self, value: float, times: int = 1) -> None:
        """Add a finite number, `times` times."""
        number, denominator = value.as_integer_ratio()
        sums = self._sums.get(denominator)
        if sums is None:
            sums = self._sums[denominator] = [0, 0]
        sums[0] += times * number
        sums[1] += times * number * number
        self.count += times
        if value < self.lowest:
            self.lowest = value
        if value > self.highest:
            self.highest = value

    def merge(self, other: "Numbers") -> None:
        """Add all numbers of `other`."""
        self.count += other.count
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        for denominator, (total, squares) in other._sums.items():
            sums = self._sums.setdefault(denominator, [0, 0])
            sums[0] += total
            sums[1] += squares

    def statistics(self) -> Statistics:
        """Return the five figures, rounded; zeros if no number was added."""
        if not self.count:
            return {COUNT: 0, AVERAGE: 0.0, LOWEST: 0.0, HIGHEST: 0.0, DEVIATION: 0.0}
        total = sum((Fraction(sums[0], part) for part, sums in self._sums.items()), start=Fraction())
        squares = sum((Fraction(sums[1], part * part) for part, sums in self._sums.items()), start=Fraction())
        spread = (squares - total * total / self.count) / max(self.count - 1, 1)
        return {
            COUNT: self.count,
            AVERAGE: _round(float(total / self.count)),
            LOWEST: _round(float(self.lowest)),
            HIGHEST: _round(float(self.highest)),
            DEVIATION: _round(_square_root(spread)),
        }


class Lengths:
    """A histogram of lengths, with its statistics."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        """Length -> number of occurrences."""

    def add(self, length: int, times: int = 1) -> None:
        self.seen[length] = self.seen.get(length, 0) + times

    def merge(self, other: "Lengths") -> None:
        for length, times in other.seen.items():
            self.add(length, times)

    def statistics(self) -> Statistics:
        numbers = Numbers()
        for length, times in self.seen.items():
            numbers.add(length, times)
        return numbers.statistics()


class Distinct:
    """Counts distinct texts, at 8 to 16 bytes for each.

    Texts are identified by their 64-bit hash. It is Python's `hash`, which is fast and differs between processes unless
    they have the same seed (`PYTHONHASHSEED`); parts of a process with another seed cannot be merged.
    """

    __slots__ = ("_buckets", "_recent", "_seed", "_unique")

    MOST_RECENT = 1 << 17
    BUCKETS = 256

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._buckets: list[array[int]] = []  # a set of all hashes would take ten times the memory
        self._unique: list[int] = []
        """Size of each bucket when its duplicates were last removed."""
        self._seed: int | None = None

    def add(self, text: str | bytes) -> None:
        self._seed = OWN_SEED
        self._recent.add(hash(text))
        if len(self._recent) > self.MOST_RECENT:
            self._pack()

    def merge(self, other: "Distinct") -> None:
        if other._seed is not None:
            if self._seed not in (None, other._seed):
                raise ValueError("hashes of processes with different seeds cannot be compared")
            self._seed = other._seed
        for hashes in (other._recent, *other._buckets):
            self._recent.update(hashes)
            if len(self._recent) > self.MOST_RECENT:
                self._pack()

    def __len__(self) -> int:
        if not self._buckets:
            return len(self._recent)
        self._pack()
        for number in range(self.BUCKETS):
            self._remove_duplicates(number)
        return sum(self._unique)

    def _pack(self) -> None:
        if not self._buckets:
            self._buckets = [array("q") for _ in range(self.BUCKETS)]
            self._unique = [0] * self.BUCKETS
        for value in self._recent:
            self._buckets[value % self.BUCKETS].append(value)
        self._recent.clear()
        for number, bucket in enumerate(self._buckets):
            if len(bucket) > 2 * self._unique[number] + self.BUCKETS:
                self._remove_duplicates(number)

    def _remove_duplicates(self, number: int) -> None:
        """Remove duplicates of a bucket. Done when it has doubled, so the cost per value is constant."""
        self._buckets[number] = array("q", set(self._buckets[number]))
        self._unique[number] = len(self._buckets[number])


def _round(value: float) -> float:
    """Round to two decimals, or three below one."""
    return round(value, 2 if abs(value) >= 1 else 3)


def _square_root(value: Fraction) -> float:
    try:
        return math.sqrt(value)
    except OverflowError:  # beyond a float, but its root is not
        return float(math.isqrt(int(value)))
