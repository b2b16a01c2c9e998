"""Counts of the `/run` requests of a server process, in the memory that its launcher reads (`process_status`).

They are what a monitor sees of servers whose rollouts are sent by a trainer: this package's collector counts outcomes
itself.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

from nemo_gym.metrics.latency import BOUNDS, LatencyHistogram
from nemo_gym.metrics.prometheus_text import Labels, MetricFamily
from nemo_gym.serve.process_status import StatusReader, own_status

_IN_FLIGHT, _FAILED, _SECONDS, _BUCKETS = 0, 1, 2, 3
COUNTERS = _BUCKETS + len(BOUNDS) + 1


@dataclass(frozen=True)
class RunCounts:
    """The `/run` requests of one process, or of several."""

    in_flight: int = 0
    answered: int = 0
    failed: int = 0
    """Requests that ended with an error, whose caller left, or whose process ended."""
    durations: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Of the requests that ended before their process."""

    @classmethod
    def from_status(cls, status: StatusReader | None) -> Self:
        """Read the counts of a process; zeros without one."""
        if status is None:
            return cls()
        values = status.counters(COUNTERS)
        durations = LatencyHistogram.from_counts([int(value) for value in values[_BUCKETS:]], values[_SECONDS])
        failed = int(values[_FAILED])
        return cls(int(values[_IN_FLIGHT]), durations.count - failed, failed, durations)

    def __add__(self, other: "RunCounts") -> "RunCounts":
        return RunCounts(
            self.in_flight + other.in_flight,
            self.answered + other.answered,
            self.failed + other.failed,
            self.durations + other.durations,
        )

    def without_in_flight(self) -> "RunCounts":
        """Return what remains of the counts when the process has ended: its requests have ended too, with a failure."""
        return replace(self, in_flight=0, failed=self.failed + self.in_flight)


@contextmanager
def counting_run() -> Iterator[None]:
    """Count the `/run` request that the block answers; an exception is a failure."""
    begin = time.monotonic()
    counters = own_status.counters
    counters[_IN_FLIGHT] += 1
    try:
        yield
    except BaseException:
        counters[_FAILED] += 1
        raise
    finally:
        seconds = time.monotonic() - begin
        counters[_IN_FLIGHT] -= 1
        counters[_SECONDS] += seconds
        counters[_BUCKETS + LatencyHistogram.bucket_of(seconds)] += 1


def run_metrics(counts: Mapping[str, RunCounts] | RunCounts) -> list[MetricFamily]:
    """Return the metrics of `/run` requests: of one machine, or by node."""
    values: Iterable[tuple[Labels, RunCounts]] = (
        [({}, counts)] if isinstance(counts, RunCounts) else [({"node": name}, one) for name, one in counts.items()]
    )
    listed = list(values)
    ended = [
        ({**labels, "outcome": outcome}, float(count))
        for labels, one in listed
        for outcome, count in (("answered", one.answered), ("failed", one.failed))
    ]
    return [
        MetricFamily(
            "nemo_gym_run_requests_in_flight",
            "gauge",
            "Requests for a rollout (/run) without an answer.",
            [(labels, float(one.in_flight)) for labels, one in listed],
        ),
        MetricFamily("nemo_gym_run_requests_total", "counter", "Requests for a rollout that ended, by outcome.", ended),
        MetricFamily(
            "nemo_gym_run_request_seconds",
            "histogram",
            "Duration of requests for a rollout.",
            [(labels, one.durations) for labels, one in listed],
        ),
    ]
