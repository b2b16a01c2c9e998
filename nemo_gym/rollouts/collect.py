"""Send every job, a bounded number at a time, and report each outcome as soon as it is known.

Also here: the rollouts in flight (`InFlight`) and the early stop (`StopCondition`).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from nemo_gym.keys import NG_PHASES_KEY, NG_SECONDS_KEY
from nemo_gym.rollouts.attribution import ServerTypeOf, classify_error, is_call_timeout
from nemo_gym.rollouts.outcome import (
    DEFAULT_RULE,
    CancelledRollout,
    FailedRollout,
    Failure,
    FailureKind,
    Job,
    LimitedRollout,
    Outcome,
    ScoringRule,
    classify_result,
    truncate_to_microseconds,
)
from nemo_gym.rollouts.retries import NO_RETRIES, ROLLOUT_DEADLINE, RolloutRetryPolicy
from nemo_gym.transport import deadlines
from nemo_gym.transport.call_log import phase_seconds, phases_from_error
from nemo_gym.wire.stored_rollout import RolloutKey, total_tokens

logger = logging.getLogger("nemo_gym.rollouts")

DEFAULT_CONCURRENCY = 1024
"""Default number of rollouts in flight: enough to keep a server busy, few enough to hold in memory."""

LONGEST_CHAIN = 3
"""Calls between the collector and the server that notices the rollout deadline first: agent, tool, the tool's call."""
DEADLINE_SLACK = 0.02
"""Part of the rollout deadline by which clocks and timers may differ."""

Send = Callable[[Job], Awaitable[Any]]
Observer = Callable[[Outcome], None]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class RolloutInFlight:
    """One rollout that was sent and is not answered yet."""

    key: RolloutKey
    agent: str
    seconds: float
    """Time since the rollout was sent, without the time in the queue."""
    waiting_for: str | None = None
    """The server that has not answered, as far as this process knows."""


class InFlight:
    """The rollouts in flight, oldest first. Reading is cheap and safe at any time on the loop's thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._sent: dict[RolloutKey, tuple[Job, float]] = {}  # a dictionary keeps the order of sending

    def __len__(self) -> int:
        return len(self._sent)

    def oldest(self, count: int) -> list[RolloutInFlight]:
        """Return the `count` rollouts that are in flight longest, longest first."""
        now = self._clock()
        return [
            RolloutInFlight(key, job.agent, now - sent, waiting_for=f"agent {job.agent}")
            for key, (job, sent) in islice(self._sent.items(), count)
        ]

    @contextmanager
    def sending(self, job: Job) -> Iterator[None]:
        """Count a job as in flight inside a `with` block."""
        self.begin(job)
        try:
            yield
        finally:
            self.end(job)

    def begin(self, job: Job) -> None:
        """Note that the job is sent now."""
        self._sent[job.key] = (job, self._clock())

    def end(self, job: Job) -> float:
        """Note that the job is answered; return the seconds it took."""
        return self._clock() - self._sent.pop(job.key)[1]


@dataclass(kw_only=True)
class StopCondition:
    """Stop a run early: after too many failures at once, after too many tokens when rollouts in flight are done."""

    max_failures: int | None = None
    max_tokens: int | None = None
    tokens: int = 0
    """Tokens used so far; a resumed run starts with those of earlier runs."""
    failures: int = 0
    reason: str | None = field(default=None, init=False)
    """Why no further rollouts are started."""
    is_immediate: bool = field(default=False, init=False)
    """Cancel the rollouts in flight too."""

    def __post_init__(self) -> None:
        self._check_tokens()

    def add_attempt(self, outcome: Outcome) -> None:
        """Count the tokens of an attempt, whatever its outcome."""
        self.tokens += total_tokens(outcome.record)
        self._check_tokens()

    def add_outcome(self, outcome: Outcome) -> None:
        """Count the final outcome of a rollout."""
        if not isinstance(outcome, FailedRollout):
            return
        self.failures += 1
        if self.max_failures is not None and self.failures >= self.max_failures:
            rollouts = "a rollout" if self.max_failures == 1 else f"{self.failures} rollouts"
            self.reason = f"{rollouts} failed (max_failures {self.max_failures})"
            self.is_immediate = True

    def _check_tokens(self) -> None:
        if self.max_tokens is not None and self.tokens >= self.max_tokens and self.reason is None:
            self.reason = f"{self.tokens:,} tokens are spent (max_total_tokens {self.max_tokens:,})"


@dataclass(frozen=True, kw_only=True)
class AttemptRules:
    """How attempts are classified."""

    server_type: ServerTypeOf = lambda _: None
    scoring: Mapping[str, ScoringRule] = field(default_factory=dict)
    """By agent; other agents get the default rule."""
    rollout_seconds: float | None = None
    """The rollout deadline; `send` enforces it, the collector only recognizes it."""
    max_steps: int | None = None
    max_tokens: int | None = None
    in_flight: InFlight = field(default_factory=InFlight)


async def collect(
    jobs: Iterable[Job],
    send: Send,
    observers: Iterable[Observer],
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    store: Observer = lambda _: None,
    rules: AttemptRules | None = None,
    retries: RolloutRetryPolicy = NO_RETRIES,
    stop: StopCondition | None = None,
) -> None:
    """Send every job, `concurrency` at a time, and pass each outcome to the observers in order.

    `store` receives every attempt, before the observers; `observers` receive only the final outcome of each rollout. A
    job that fails is an outcome and never stops its siblings, whatever `send` raises. An exception of an observer (the
    disk is full) ends the collection: jobs in flight are cancelled and reported as `CancelledRollout`. At most
    `concurrency` jobs are taken from `jobs` ahead of their outcomes. `stop.reason` says afterwards why jobs were left.
    """
    if concurrency < 1:
        raise ValueError(f"at least one rollout must be in flight, not {concurrency}")
    workers = _WorkerContext(send, tuple(observers), store, rules or AttemptRules(), retries, stop or StopCondition())
    queue = iter(jobs)

    async def worker() -> None:
        while workers.stop.reason is None and (job := next(queue, None)) is not None:  # taking a job never awaits
            await workers.run(job)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(worker())
    except BaseExceptionGroup as group:
        first = group.exceptions[0]  # the others were cancelled because of it
        if not isinstance(first, _StopNow):
            raise first from None


class _StopNow(Exception):
    """Ends all workers."""


@dataclass(frozen=True, slots=True)
class _WorkerContext:
    """The work of every worker on a job."""

    send: Send
    observers: tuple[Observer, ...]
    store: Observer
    rules: AttemptRules
    retries: RolloutRetryPolicy
    stop: StopCondition

    async def run(self, job: Job) -> None:
        """Send a job, retry it if the policy says so, and report its outcome."""
        outcome = await attempt(job, self.send, self.rules, self.observers)
        tries = 1
        while (pause := self._store_attempt(outcome, tries)) is not None:
            try:
                await asyncio.sleep(pause)
                outcome = await attempt(job.with_attempt(job.key.attempt + tries), self.send, self.rules)
            except asyncio.CancelledError:
                self._report(outcome)  # the attempt that is on disk is the latest known
                raise
            tries += 1
        self._report(outcome)
        self.stop.add_outcome(outcome)
        if self.stop.is_immediate:
            raise _StopNow

    def _store_attempt(self, outcome: Outcome, tries: int) -> float | None:
        """Store an attempt; return the pause before the next one, or None if it was the last."""
        self.store(outcome)
        self.stop.add_attempt(outcome)
        if self.stop.reason is not None or not isinstance(outcome, FailedRollout):
            return None
        return self.retries.pause_after(outcome, tries)

    def _report(self, outcome: Outcome) -> None:
        for observer in self.observers:
            observer(outcome)


async def attempt(job: Job, send: Send, rules: AttemptRules, on_cancel: Iterable[Observer] = ()) -> Outcome:
    """Send one job and return its outcome. A cancellation is reported to `on_cancel` and then raised."""
    began = time.monotonic()
    rule = rules.scoring.get(job.agent, DEFAULT_RULE)
    try:
        with rules.in_flight.sending(job):
            result = await send(job)
    except asyncio.CancelledError:
        for observer in on_cancel:
            observer(CancelledRollout(job))
        raise
    except Exception as error:
        return _failed_attempt(job, error, time.monotonic() - began, rules, rule)
    seconds = time.monotonic() - began
    outcome = classify_result(job, add_timing(result, seconds), rule=rule, max_tokens=rules.max_tokens)
    if isinstance(outcome, LimitedRollout):
        return replace(outcome, most={"steps": rules.max_steps, "tokens": rules.max_tokens}.get(outcome.which))
    return replace(outcome, seconds=seconds) if isinstance(outcome, FailedRollout) else outcome


def _failed_attempt(
    job: Job, error: Exception, seconds: float, rules: AttemptRules, rule: ScoringRule
) -> FailedRollout:
    failure = classify_error(error, job.agent, rules.server_type, judges=rule.judges)
    # A bug of ours would otherwise hide among the failures: its traceback goes to the log.
    is_bug = failure.kind == FailureKind.INTERNAL
    logger.log(logging.ERROR if is_bug else logging.DEBUG, "rollout %s: %s", job.key, error, exc_info=is_bug)
    if not is_call_timeout(error):
        failure = _recognize_rollout_deadline(failure, seconds, rules.rollout_seconds)
    phases = phase_seconds({NG_PHASES_KEY: phases_from_error(error)}, seconds)
    return FailedRollout(job, failure, {NG_PHASES_KEY: phases} if phases is not None else {}, seconds=seconds)


def add_timing(result: Any, seconds: float) -> Any:
    """Return an agent's answer with its duration and, if the agent measured them, the seconds by phase."""
    if not isinstance(result, dict):
        return result
    phases = phase_seconds(result, seconds)
    timing = {NG_SECONDS_KEY: truncate_to_microseconds(seconds)}
    return {**result, **timing, **({NG_PHASES_KEY: phases} if phases is not None else {})}


def _recognize_rollout_deadline(failure: Failure, seconds: float, limit: float | None) -> Failure:
    """Attribute a timeout to the rollout deadline if that had passed, whichever call raised it."""
    if failure.kind != FailureKind.TIMEOUT or limit is None:
        return failure
    if seconds < deadlines.seconds_after_hops(limit, LONGEST_CHAIN) * (1 - DEADLINE_SLACK):
        return failure
    message = f"not done within {limit:g} s (rollout_timeout_seconds); {failure.message}"
    return replace(failure, which=ROLLOUT_DEADLINE, message=message)
