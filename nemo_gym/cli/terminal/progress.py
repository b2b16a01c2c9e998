"""Count the outcomes of a running collection and estimate its rate, mean reward and remaining time."""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_PHASES_KEY, NG_SECONDS_KEY, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.intervals import ClusteredMean, MeanWithInterval
from nemo_gym.metrics.latency import LatencyHistogram
from nemo_gym.rollouts.collect import InFlight
from nemo_gym.rollouts.dispatch import NodeStatistics
from nemo_gym.rollouts.outcome import (
    FAILURE_KINDS,
    CancelledRollout,
    FailedRollout,
    Failure,
    FailureKind,
    Job,
    Outcome,
    OutcomeCounts,
    ScoredRollout,
    reward_problem,
)
from nemo_gym.rollouts.plan import PlanSummary
from nemo_gym.wire.stored_rollout import REWARD_KEY, RolloutKey, Row, StoredRollout

RATE_SECONDS, LATEST_RATE_SECONDS = 60.0, 10.0
MAX_DURATIONS = 512
MEAN_PAUSE_FACTOR = 100
"""After computing the mean, wait this many times as long, so that it takes at most 1 % of the time."""
MAX_NEW_REWARDS = 10_000
"""Rewards that are kept before they are added to the mean, which needs less memory than a list of them."""

Clock = Callable[[], float]


class TimedInFlight(InFlight):
    """Rollouts in flight, with the durations of the last ones that ended; can stop admitting new rollouts."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self.durations: deque[float] = deque(maxlen=MAX_DURATIONS)
        self.is_admitting = True
        self.last_rejected: RolloutKey | None = None

    def stop_admitting(self) -> None:
        """Cancel every rollout that is about to be sent from now on; rollouts in flight continue."""
        self.is_admitting = False

    def begin(self, job: Job) -> None:
        if not self.is_admitting:
            self.last_rejected = job.key
            raise asyncio.CancelledError
        super().begin(job)

    def end(self, job: Job) -> float:
        self.durations.append(seconds := super().end(job))
        return seconds

    def duration_quantile(self, q: float, minimum: float = 0.0) -> float | None:
        """Return the q-quantile of the durations of at least `minimum` seconds; None if there are no such durations."""
        durations = sorted(seconds for seconds in self.durations if seconds >= minimum)
        return durations[min(len(durations) - 1, int(q * len(durations)))] if durations else None


class PhaseTimes:
    """Mean seconds of scored rollouts, in total and by phase."""

    def __init__(self) -> None:
        self._rollouts = self._rollouts_with_phases = 0
        self._seconds = 0.0
        self._phases: defaultdict[str, float] = defaultdict(float)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the times of a record; a record may lack them."""
        seconds, phases = record.get(NG_SECONDS_KEY), record.get(NG_PHASES_KEY)
        if isinstance(seconds, float):
            self._rollouts += 1
            self._seconds += seconds
        if isinstance(phases, dict):
            self._rollouts_with_phases += 1
            for name, value in phases.items():
                self._phases[name] += value

    def means(self) -> dict[str, float]:
        """Return the mean seconds of a rollout (`whole`), and of each phase over the rollouts that measured phases."""
        if not self._rollouts:
            return {}
        phases = {name: value / self._rollouts_with_phases for name, value in self._phases.items()}
        return {"whole": self._seconds / self._rollouts, **phases}


class Rate:
    """Events per second over the last `span` seconds, from samples of a running total."""

    def __init__(self, span: float = RATE_SECONDS) -> None:
        self._span = span
        self._samples: deque[tuple[float, int]] = deque()

    def add_sample(self, now: float, total: int) -> None:
        self._samples.append((now, total))
        while len(self._samples) > 2 and self._samples[1][0] < now - self._span:  # the first may be older
            self._samples.popleft()

    def per_second(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (first_time, first_total), (last_time, last_total) = self._samples[0], self._samples[-1]
        return (last_total - first_total) / (last_time - first_time) if last_time > first_time else 0.0


class Progress:
    """An observer that counts outcomes. Rates, means and estimates are computed only when they are read."""

    def __init__(
        self,
        in_flight: TimedInFlight | None = None,
        clock: Clock = time.monotonic,
        on_first_failure: Callable[[FailedRollout], None] = lambda _: None,
    ) -> None:
        self.tally = OutcomeCounts()
        self.first_failures: dict[str, Failure] = {}
        """The first failure of each kind."""
        self.failed_attempts: Counter[int] = Counter()
        """Number of attempts -> number of rollouts that failed after this number of attempts and can be retried."""
        self.reopenable = 0
        """Number of rollouts that failed for good, but that `--max-attempts` retries."""
        self._rewards = ClusteredMean()
        self._new_rewards: list[tuple[object, float]] = []
        self.phase_times = PhaseTimes()
        self.tokens = 0
        self.in_flight = in_flight if in_flight is not None else TimedInFlight(clock)
        self.plan: PlanSummary | None = None
        self.reading: tuple[int, float] | None = None
        """While rows are read: number of rows so far, fraction of the file that is read."""
        self.start_time = clock()
        self.durations = LatencyHistogram()
        """Durations of scored rollouts."""
        self.nodes: Callable[[], Sequence[NodeStatistics]] = tuple
        """Returns the nodes of a run on several machines."""
        self._clock = clock
        self._on_first_failure = on_first_failure
        self.rate, self.token_rate, self._latest_rate = Rate(), Rate(), Rate(LATEST_RATE_SECONDS)
        self._mean: MeanWithInterval | None = None
        self._next_mean_at = 0.0
        self._all_sent_at: float | None = None

    def on_reading(self, rows: int, fraction: float) -> None:
        """Record the number of rows read so far and the fraction of the file; called on another thread."""
        self.reading = (rows, fraction)

    def on_plan(self, plan: PlanSummary) -> None:
        """Record the plan of the run and start measuring rates."""
        self.plan = plan
        self.take_sample()

    def __call__(self, outcome: Outcome) -> None:
        """Count an outcome, its tokens and its reward or failure."""
        if isinstance(outcome, CancelledRollout) and outcome.job.key == self.in_flight.last_rejected:
            return  # this rollout was never sent
        self.tally(outcome)
        self.tokens += StoredRollout(outcome.record).total_tokens
        if isinstance(outcome, ScoredRollout):
            self.phase_times.add(outcome.record)
            self.durations.add(outcome.record.get(NG_SECONDS_KEY, 0.0))
            self._add_reward(outcome.job.key.task, outcome.record[REWARD_KEY])
        elif isinstance(outcome, FailedRollout):
            failure = outcome.failure
            if failure.retryable:
                self.failed_attempts[outcome.job.key.attempt + 1] += 1
            elif failure.kind in FAILURE_KINDS:
                self.reopenable += 1
            if failure.kind not in self.first_failures:
                self.first_failures[failure.kind] = failure
                self._on_first_failure(outcome)

    def _add_reward(self, task: object, reward: float) -> None:
        self._new_rewards.append((task, float(reward)))
        if len(self._new_rewards) >= MAX_NEW_REWARDS:
            self._merge_new_rewards()

    def _merge_new_rewards(self) -> None:
        for task, reward in self._new_rewards:
            self._rewards.add(task, reward)
        self._new_rewards.clear()

    def count_records(self, scored: Iterable[Row], failed: Iterable[Row], total: int) -> None:
        """Count the records that a rollout collection driver stored.

        A rollout that failed first and was scored later counts as scored. A record without a rollout key counts as
        one more rollout.
        """
        scored_keys = set()
        failure_kinds: dict[object, str] = {}
        for number, record in enumerate(scored):
            key, reward = _record_key(record, number), record.get(REWARD_KEY)
            self.tokens += StoredRollout(record).total_tokens
            if record.get(NG_FAILURE_CLASS_KEY) is not None or reward_problem(reward) is not None:
                failure_kinds[key] = str(record.get(NG_FAILURE_CLASS_KEY) or FailureKind.INVALID_REWARD)
                continue
            scored_keys.add(key)
            self.tally.scored += 1
            self.phase_times.add(record)
            self._add_reward(record.get(TASK_INDEX_KEY_NAME, number), reward or 0)
        for number, record in enumerate(failed):
            key = _record_key(record, -1 - number)  # a negative number is not one of a scored record
            failure_kinds[key] = str(record.get(NG_FAILURE_CLASS_KEY))
        self.tally.failed.update(kind for key, kind in failure_kinds.items() if key not in scored_keys)
        total = max(total, self.tally.total)
        self.on_plan(PlanSummary(total=total, to_run=total))

    def take_sample(self) -> None:
        """Sample the counts, from which rates are computed, and note since when no rollout is queued."""
        now = self._clock()
        self.rate.add_sample(now, self.tally.total)
        self._latest_rate.add_sample(now, self.tally.total)
        self.token_rate.add_sample(now, self.tokens)
        if self.queue_length == 0 and self._all_sent_at is None:
            self._all_sent_at = now
        elif self.queue_length:
            self._all_sent_at = None

    @property
    def ended_count(self) -> int:
        """Number of rollouts that ended, including those of earlier runs."""
        earlier = self.plan.finished + self.plan.given_up if self.plan else 0
        return earlier + self.tally.total

    @property
    def total(self) -> int | None:
        return self.plan.total if self.plan else None

    @property
    def queue_length(self) -> int | None:
        """Number of rollouts not yet sent; None until the rows are planned."""
        if self.plan is None:
            return None
        return max(0, self.plan.to_run - self.tally.total - len(self.in_flight))

    def compute_mean(self) -> MeanWithInterval | None:
        """Compute the mean reward with its interval."""
        self._merge_new_rewards()
        return self._rewards.mean()

    def mean(self) -> MeanWithInterval | None:
        """Return the mean reward with its interval; cached for a while, because computing it visits every task."""
        start = self._clock()
        if start >= self._next_mean_at:
            self._mean = self.compute_mean()
            self._next_mean_at = start + MEAN_PAUSE_FACTOR * (self._clock() - start)
        return self._mean

    def seconds_left(self) -> float | None:
        """Estimate the remaining time: the queue at the recent rate, then the slowest of the rollouts sent last.

        Returns None if there is no rate or no duration yet. A mean duration is not used, because rates change and a run
        ends with its slowest rollout.
        """
        queued, in_flight, rate = self.queue_length, len(self.in_flight), self.rate.per_second()
        if queued is None or (queued and not rate) or (in_flight and not self.in_flight.durations):
            return None
        queue_seconds = queued / rate if queued else 0.0
        return queue_seconds + self._tail_seconds(in_flight) if in_flight or queued else 0.0

    def _tail_seconds(self, in_flight: int) -> float:
        """Estimate how long rollouts run after the queue is empty; if it is empty already, how long from now on."""
        slowest = self.in_flight.duration_quantile(in_flight / (in_flight + 1)) or 0.0
        if self._all_sent_at is None:
            return slowest
        oldest = next((rollout.seconds for rollout in self.in_flight.oldest(1)), 0.0)
        median_of_longer = self.in_flight.duration_quantile(0.5, minimum=oldest)
        if median_of_longer is not None:
            oldest_left = median_of_longer - oldest
        elif rate := self._latest_rate.per_second():
            oldest_left = in_flight / rate  # all take longer than any ended rollout: they queue inside a server
        else:
            oldest_left = oldest / 2  # older than every known duration: assume half as long again
        return max(slowest - (self._clock() - self._all_sent_at), oldest_left, 0.0)


def _record_key(record: Row, number: int) -> object:
    """Return the task and repeat of a record, or `number` if the record has no rollout key."""
    try:
        return RolloutKey.of(record).rollout_id
    except ValueError:
        return number
