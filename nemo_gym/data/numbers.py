"""Statistics that come out the same however the rows are split and in whatever order the parts are added up."""

import math
from array import array
from fractions import Fraction

COUNT, AVERAGE, LOWEST, HIGHEST, DEVIATION = "Total # non-null values", "Average", "Min", "Max", "Standard deviation"

Statistics = dict[str, int | float]

OWN_SEED = hash("the seed of this process")


class Numbers:
    """Count, mean, range and sample deviation of numbers. Sums are exact, so parts merge to the same result."""

    __slots__ = ("_sums", "count", "highest", "lowest")

    def __init__(self) -> None:
        self.count = 0
        self.lowest: float = math.inf
        self.highest: float = -math.inf
        # Denominator (a power of two; there are few) -> sum of the numerators, and of their squares.
        self._sums: dict[int, list[int]] = {}

    def add(self, value: float, times: int = 1) -> None:
        """Count a finite number, `times` times."""
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
        """Count all that `other` counted."""
        self.count += other.count
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        for denominator, (total, squares) in other._sums.items():
            sums = self._sums.setdefault(denominator, [0, 0])
            sums[0] += total
            sums[1] += squares

    def statistics(self) -> Statistics:
        """The five figures, rounded; zeros when there was nothing to count."""
        if not self.count:
            return {COUNT: 0, AVERAGE: 0.0, LOWEST: 0.0, HIGHEST: 0.0, DEVIATION: 0.0}
        total = sum((Fraction(sums[0], part) for part, sums in self._sums.items()), start=Fraction())
        squares = sum((Fraction(sums[1], part * part) for part, sums in self._sums.items()), start=Fraction())
        spread = (squares - total * total / self.count) / max(self.count - 1, 1)
        return {
            COUNT: self.count,
            AVERAGE: rounded(float(total / self.count)),
            LOWEST: rounded(float(self.lowest)),
            HIGHEST: rounded(float(self.highest)),
            DEVIATION: rounded(_root(spread)),
        }


class Lengths:
    """How often each length was seen: its statistics, and what a histogram is drawn from."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

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
    """How many different texts there were, at 8 to 16 bytes for each.

    Texts are known by their 64-bit hash. It is Python's own, which is quick and differs between processes unless they
    were started with the same seed (`PYTHONHASHSEED`); parts from others cannot be merged.
    """

    __slots__ = ("_buckets", "_cleaned", "_recent", "_seed")

    MOST_RECENT = 1 << 17
    BUCKETS = 256

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._buckets: list[array[int]] = []  # a set of all hashes would take ten times the memory
        self._cleaned: list[int] = []
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
        for place in range(self.BUCKETS):
            self._clean(place)
        return sum(self._cleaned)

    def _pack(self) -> None:
        if not self._buckets:
            self._buckets = [array("q") for _ in range(self.BUCKETS)]
            self._cleaned = [0] * self.BUCKETS
        for value in self._recent:
            self._buckets[value % self.BUCKETS].append(value)
        self._recent.clear()
        for place, bucket in enumerate(self._buckets):
            if len(bucket) > 2 * self._cleaned[place] + self.BUCKETS:
                self._clean(place)

    def _clean(self, place: int) -> None:
        """Remove what is there twice. Done when a bucket has doubled, so it costs the same per value at any size."""
        self._buckets[place] = array("q", set(self._buckets[place]))
        self._cleaned[place] = len(self._buckets[place])


def rounded(value: float) -> float:
    """Two decimals, or three below one."""
    return round(value, 2 if abs(value) >= 1 else 3)


def _root(value: Fraction) -> float:
    try:
        return math.sqrt(value)
    except OverflowError:  # beyond a float, but its root is not
        return float(math.isqrt(int(value)))
