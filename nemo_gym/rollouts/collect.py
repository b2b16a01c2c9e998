"""Send every job, so many at a time, and say what became of each the moment it is known."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from nemo_gym.keys import NG_PHASES_KEY, NG_SECONDS_KEY
from nemo_gym.net import deadline
from nemo_gym.net.phases import phases_of, told_by_error
from nemo_gym.rollouts.again import ONE_TRY, ROLLOUT_DEADLINE, Retries
from nemo_gym.rollouts.classify import TypeOf, failure_of, is_limit_of_call
from nemo_gym.rollouts.flight import Flights
from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.outcome import Cancelled, Failed, Failure, FailureKind, Limit, Outcome, outcome_of
from nemo_gym.rollouts.rules import EVERYBODY, Rules
from nemo_gym.rollouts.stop import Stopping

logger = logging.getLogger("nemo_gym.rollouts")

DEFAULT_AT_ONCE = 1024
"""How many rollouts are in flight when nobody says: enough to keep a server busy, little enough to hold in memory."""

LONGEST_CHAIN = 3
"""Calls from the collector to whoever notices first that a rollout's time is over: agent, tool, what the tool asks."""
DEADLINE_SLACK = 0.02
"""Part of a rollout's time by which clocks and timers may differ on the way."""

Send = Callable[[Job], Awaitable[Any]]
Observer = Callable[[Outcome], None]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What attempts are judged by."""

    type_of: TypeOf = lambda _: None
    rules: Rules = field(default_factory=dict)
    rollout_seconds: float | None = None
    """What a rollout may take; `send` sees to it, here it is only given its name."""
    max_steps: int | None = None
    max_tokens: int | None = None
    flights: Flights = field(default_factory=Flights)


async def collect(
    jobs: Iterable[Job],
    send: Send,
    observers: Iterable[Observer],
    *,
    at_once: int = DEFAULT_AT_ONCE,
    store: Observer = lambda _: None,
    terms: Terms | None = None,
    retries: Retries = ONE_TRY,
    stopping: Stopping | None = None,
) -> None:
    """Send every job, `at_once` at a time, and tell each observer its outcome, in order, before the next is taken.

    `store` is told of every attempt before anybody else; `observers` only of how a rollout ended. A job that fails is
    an outcome and never stops its siblings, whatever `send` raises. What an observer raises (the disk is full) ends
    the collection: jobs in flight are cancelled and told as `Cancelled`. No more jobs are taken from `jobs` than are
    in flight. `stopping` says at the end whether and why jobs were left.
    """
    if at_once < 1:
        raise ValueError(f"at least one rollout must be in flight, not {at_once}")
    crew = _Crew(send, tuple(observers), store, terms or Terms(), retries, stopping or Stopping())
    waiting = iter(jobs)

    async def worker() -> None:
        while crew.stopping.reason is None and (job := next(waiting, None)) is not None:  # taking a job never awaits
            await crew.carry_out(job)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(worker())
    except BaseExceptionGroup as group:
        first = group.exceptions[0]  # the others were cancelled because of it
        if not isinstance(first, _Stopped):
            raise first from None


class _Stopped(Exception):
    """Ends all workers."""


@dataclass(frozen=True, slots=True)
class _Crew:
    """What every worker does with a job."""

    send: Send
    observers: tuple[Observer, ...]
    store: Observer
    terms: Terms
    retries: Retries
    stopping: Stopping

    async def carry_out(self, job: Job) -> None:
        """Send a job, again if that is worth it, and tell how it ended."""
        outcome = await attempt(job, self.send, self.terms, self.observers)
        tries = 1
        while (pause := self._stored(outcome, tries)) is not None:
            try:
                await asyncio.sleep(pause)
                outcome = await attempt(job.again(job.key.attempt + tries), self.send, self.terms)
            except asyncio.CancelledError:
                self._tell(outcome)  # the attempt that is on disk is what is known of it
                raise
            tries += 1
        self._tell(outcome)
        self.stopping.ended(outcome)
        if self.stopping.at_once:
            raise _Stopped

    def _stored(self, outcome: Outcome, tries: int) -> float | None:
        """Store an attempt; the pause before the next one, or None when it was the last."""
        self.store(outcome)
        self.stopping.tried(outcome)
        return self.retries.pause_after(outcome, tries) if self.stopping.reason is None else None

    def _tell(self, outcome: Outcome) -> None:
        for observer in self.observers:
            observer(outcome)


async def attempt(job: Job, send: Send, terms: Terms, cancelled: Iterable[Observer] = ()) -> Outcome:
    """Send one job and return what became of it. If it is cancelled, `cancelled` are told before that goes on."""
    began = time.monotonic()
    rule = terms.rules.get(job.agent, EVERYBODY)
    try:
        with terms.flights.under_way(job):
            result = await send(job)
    except asyncio.CancelledError:
        for observer in cancelled:
            observer(Cancelled(job))
        raise
    except Exception as error:
        seconds = time.monotonic() - began
        failure = failure_of(error, job.agent, terms.type_of, judges=rule.judges)
        # A bug of ours would otherwise hide among the failures: its traceback goes to the log.
        unexplained = failure.kind == FailureKind.INTERNAL
        logger.log(
            logging.ERROR if unexplained else logging.DEBUG, "rollout %s: %s", job.key, error, exc_info=unexplained
        )
        if not is_limit_of_call(error):
            failure = _named(failure, seconds, terms.rollout_seconds)
        told = phases_of({NG_PHASES_KEY: told_by_error(error)}, seconds)
        return Failed(job, failure, {NG_PHASES_KEY: told} if told is not None else {}, seconds=seconds)
    seconds = time.monotonic() - began
    outcome = outcome_of(job, timed(result, seconds), rule=rule, max_tokens=terms.max_tokens)
    if isinstance(outcome, Limit):
        return replace(outcome, most={"steps": terms.max_steps, "tokens": terms.max_tokens}.get(outcome.which))
    return replace(outcome, seconds=seconds) if isinstance(outcome, Failed) else outcome


def timed(result: Any, seconds: float) -> Any:
    """What an agent answered, with how long it took and, if it told that, where the time went."""
    if not isinstance(result, dict):
        return result
    phases = phases_of(result, seconds)
    whole = seconds // 1e-6 / 1e6
    return {**result, NG_SECONDS_KEY: whole, **({NG_PHASES_KEY: phases} if phases is not None else {})}


def _named(failure: Failure, seconds: float, allowed: float | None) -> Failure:
    """A timeout that came when the rollout's own time was over is that one, whoever noticed it first."""
    if failure.kind != FailureKind.TIMEOUT or allowed is None:
        return failure
    if seconds < deadline.first_noticed(allowed, LONGEST_CHAIN) * (1 - DEADLINE_SLACK):
        return failure
    message = f"not done within {allowed:g} s (rollout_timeout_seconds); {failure.message}"
    return replace(failure, which=ROLLOUT_DEADLINE, message=message)
