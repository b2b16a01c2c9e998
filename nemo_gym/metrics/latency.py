"""Durations in buckets of fixed bounds: constant memory, estimated quantiles, and the shape that monitors read."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Self

BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
"""Upper bounds in seconds: two per power of ten; rollouts take milliseconds to hours."""


class LatencyHistogram:
    """Counts durations by bucket."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.count = 0
        self.total = 0.0

    @classmethod
    def from_counts(cls, counts: Sequence[int], total: float) -> Self:
        """Return the histogram with these durations per bucket."""
        histogram = cls()
        histogram._counts, histogram.count, histogram.total = list(counts), sum(counts), total
        return histogram

    def __add__(self, other: Self) -> Self:
        counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        return self.from_counts(counts, self.total + other.total)

    @staticmethod
    def bucket_of(seconds: float) -> int:
        """Return the position of the bucket of a duration."""
        return bisect_left(BOUNDS, seconds)

    def add(self, seconds: float) -> None:
        self._counts[self.bucket_of(seconds)] += 1
        self.count += 1
        self.total += seconds

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Yield each upper bound as text, at last `+Inf`, with the number of durations up to it."""
        below = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            below += count
            yield bound, below

    def quantile(self, q: float) -> float | None:
        """Estimate a quantile: interpolated within its bucket; None without durations."""
        if not self.count:
            return None
        rank, below, low = q * self.count, 0, 0.0
        for bound, count in zip((*BOUNDS, BOUNDS[-1]), self._counts, strict=True):
            if count and below + count >= rank:
                return low + (bound - low) * (rank - below) / count
            below, low = below + count, bound
        return low
