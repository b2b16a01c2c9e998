"""How a collection is going, in numbers: how far, how fast, how good, and how long it will still take."""

import asyncio
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_PHASES_KEY, NG_SECONDS_KEY, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.intervals import ClusteredMean, Mean
from nemo_gym.rollouts.flight import Flights
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.key import RolloutKey
from nemo_gym.rollouts.outcome import (
    REWARD_KEY,
    Cancelled,
    Failed,
    Failure,
    FailureKind,
    Outcome,
    Scored,
    reward_problem,
)
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.tally import Tally
from nemo_gym.rollouts.usage import total_tokens

RECENT_SECONDS, LATEST_SECONDS = 60.0, 10.0
KEPT_DURATIONS = 512
MEAN_SHARE = 100
"""The running mean is computed so seldom that it takes no more than one part in so many of the time."""

Clock = Callable[[], float]


class TimedFlights(Flights):
    """Rollouts in flight, how long the latest ones took, and whether more may take off."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self.durations = Durations()
        self.landing = False
        self.refused: RolloutKey | None = None
        """The last rollout that was not let off."""

    def land(self) -> None:
        """From now on no rollout takes off: whoever would send one is cancelled instead. Those in flight go on."""
        self.landing = True

    def begin(self, job: Job) -> None:
        if self.landing:
            self.refused = job.key
            raise asyncio.CancelledError
        super().begin(job)

    def end(self, job: Job) -> float:
        seconds = super().end(job)
        self.durations.add(seconds)
        return seconds


class Durations:
    """How long the latest rollouts took."""

    def __init__(self, kept: int = KEPT_DURATIONS) -> None:
        self._latest: deque[float] = deque(maxlen=kept)

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, seconds: float) -> None:
        self._latest.append(seconds)

    def quantile(self, share: float, longer_than: float = 0.0) -> float | None:
        """The duration that `share` of the rollouts that took longer than that did not exceed; None: none did."""
        ordered = sorted(self._latest)
        start = bisect_left(ordered, longer_than)
        rest = len(ordered) - start
        return ordered[start + min(rest - 1, int(share * rest))] if rest else None


class Spent:
    """Where the time of scored rollouts went, summed up."""

    def __init__(self) -> None:
        self._rollouts = self._timed = 0
        self._seconds = 0.0
        self._phases: dict[str, float] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        seconds, phases = record.get(NG_SECONDS_KEY), record.get(NG_PHASES_KEY)
        if isinstance(seconds, float):
            self._rollouts += 1
            self._seconds += seconds
        if isinstance(phases, dict):
            self._timed += 1
            for name, value in phases.items():
                self._phases[name] = self._phases.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """Seconds of a rollout on average (`whole`) and, of those whose agents tell, by phase; empty without any."""
        if not self._rollouts:
            return {}
        phases = {name: value / self._timed for name, value in self._phases.items()}
        return {"whole": self._seconds / self._rollouts, **phases}


class Rate:
    """Events per second over the last while; told how many there were in all, now and then."""

    def __init__(self, span: float = RECENT_SECONDS) -> None:
        self._span = span
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, total: int) -> None:
        self._seen.append((now, total))
        while len(self._seen) > 2 and self._seen[1][0] < now - self._span:
            self._seen.popleft()

    def per_second(self) -> float:
        if len(self._seen) < 2:
            return 0.0
        (began, before), (now, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now - began) if now > began else 0.0


class Progress:
    """An observer that counts outcomes. Told of one, it only adds up; everything else waits until it is asked."""

    def __init__(
        self,
        flights: TimedFlights | None = None,
        clock: Clock = time.monotonic,
        on_first_failure: Callable[[Failed], None] = lambda _: None,
    ) -> None:
        self.tally = Tally()
        self.first_failures: dict[str, Failure] = {}
        """The first failure of each kind."""
        self.attempts: Counter[int] = Counter()
        """How many rollouts failed after how many attempts, of those that another might mend."""
        self.rewards = ClusteredMean()
        self.spent = Spent()
        self.tokens = 0
        self.flights = flights if flights is not None else TimedFlights(clock)
        self.planned: Planned | None = None
        self.reading: tuple[int, float] | None = None
        """While rows are read: how many so far, and which share of the file."""
        self.began = clock()
        self._clock = clock
        self._on_first_failure = on_first_failure
        self._rate, self._token_rate, self._latest_rate = Rate(), Rate(), Rate(LATEST_SECONDS)
        self._mean: Mean | None = None
        self._mean_again_at = 0.0
        self._all_sent_at: float | None = None

    def on_reading(self, rows: int, share: float) -> None:
        """Rows are being read; told on another thread."""
        self.reading = (rows, share)

    def on_plan(self, planned: Planned) -> None:
        """The work is known: the clock of the rate starts."""
        self.planned = planned
        self.look()

    def __call__(self, outcome: Outcome) -> None:
        if isinstance(outcome, Cancelled) and outcome.job.key == self.flights.refused:
            return  # it was never sent
        self.tally(outcome)
        self.tokens += total_tokens(outcome.record)
        if isinstance(outcome, Scored):
            self.spent.add(outcome.record)
            self.rewards.add(outcome.job.row.get(TASK_INDEX_KEY_NAME), float(outcome.record[REWARD_KEY]))
        elif isinstance(outcome, Failed):
            self._failed(outcome)

    def _failed(self, outcome: Failed) -> None:
        failure = outcome.failure
        if failure.retryable:
            self.attempts[outcome.job.key.attempt + 1] += 1
        if failure.kind not in self.first_failures:
            self.first_failures[failure.kind] = failure
            self._on_first_failure(outcome)

    def read_back(self, scored: Iterable[Row], failed: Iterable[Row], total: int) -> None:
        """Count what somebody else's collector stored; a rollout that failed and was scored later is scored.

        A record that does not say which rollout it is counts as one of its own.
        """
        places = set()
        kinds: dict[object, str] = {}
        for number, record in enumerate(scored):
            place, reward = _place(record, number), record.get(REWARD_KEY)
            self.tokens += total_tokens(record)
            if record.get(NG_FAILURE_CLASS_KEY) is not None or reward_problem(reward) is not None:
                kinds[place] = str(record.get(NG_FAILURE_CLASS_KEY) or FailureKind.INVALID_REWARD)
                continue
            places.add(place)
            self.tally.scored += 1
            self.spent.add(record)
            self.rewards.add(record.get(TASK_INDEX_KEY_NAME, number), float(reward or 0))
        for number, record in enumerate(failed):
            kinds[_place(record, -1 - number)] = str(record.get(NG_FAILURE_CLASS_KEY))
        self.tally.failed.update(kind for place, kind in kinds.items() if place not in places)
        total = max(total, self.tally.total)
        self.on_plan(Planned(total=total, to_run=total))

    def look(self) -> None:
        """Take note of where things stand now; rates are differences between such looks."""
        now = self._clock()
        self._rate.note(now, self.tally.total)
        self._latest_rate.note(now, self.tally.total)
        self._token_rate.note(now, self.tokens)
        if self.queued == 0 and self._all_sent_at is None:
            self._all_sent_at = now
        elif self.queued:
            self._all_sent_at = None

    @property
    def done(self) -> int:
        """Rollouts that have ended, earlier runs included."""
        earlier = self.planned.finished + self.planned.given_up if self.planned else 0
        return earlier + self.tally.total

    @property
    def total(self) -> int | None:
        return self.planned.total if self.planned else None

    @property
    def queued(self) -> int | None:
        """Rollouts that were not sent yet; None before that is known."""
        if self.planned is None:
            return None
        return max(0, self.planned.to_run - self.tally.total - len(self.flights))

    @property
    def per_second(self) -> float:
        return self._rate.per_second()

    @property
    def tokens_per_second(self) -> float:
        return self._token_rate.per_second()

    def mean(self) -> Mean | None:
        """The mean reward so far with its interval, perhaps of a moment ago: it looks at every task."""
        now = self._clock()
        if now >= self._mean_again_at:
            self._mean = self.rewards.mean()
            self._mean_again_at = now + MEAN_SHARE * (self._clock() - now)
        return self._mean

    def seconds_left(self) -> float | None:
        """What is queued at the recent rate, and then the slowest of the last ones; None when nobody can say.

        The mean duration would be wrong twice: rates change, and a run ends with its slowest rollout.
        """
        queued, flying = self.queued, len(self.flights)
        if queued is None or (queued and not self.per_second) or (flying and not self.flights.durations):
            return None
        waiting = queued / self.per_second if queued else 0.0
        return waiting + self._tail(flying) if flying or queued else 0.0

    def _tail(self, flying: int) -> float:
        """How long the slowest of the rollouts that are sent last will take from now, or from when it is sent."""
        slowest = self.flights.durations.quantile(flying / (flying + 1)) or 0.0
        if self._all_sent_at is None:
            return slowest
        oldest = next((flight.seconds for flight in self.flights.oldest(1)), 0.0)
        longer = self.flights.durations.quantile(0.5, longer_than=oldest)
        if longer is not None:
            stubborn = longer - oldest
        elif rate := self._latest_rate.per_second():
            stubborn = flying / rate  # all are slower than any before: they queue somewhere
        else:
            stubborn = oldest / 2  # it has outlasted everything we know: perhaps half as long again
        return max(slowest - (self._clock() - self._all_sent_at), stubborn, 0.0)


def _place(record: Row, number: int) -> object:
    """Which rollout a record is, or what makes it one of its own."""
    try:
        return RolloutKey.of(record).place
    except ValueError:
        return number
