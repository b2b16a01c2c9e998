"""Send every job, a bounded number at a time, and report each outcome as soon as it is known.

Also defines the rollouts in flight (`InFlight`), the early stop (`StopCondition`) and the retry policy.
"""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

from nemo_gym.keys import NG_PHASES_KEY, NG_SECONDS_KEY
from nemo_gym.rollouts.attribution import ServerTypeOf, classify_error, is_call_timeout
from nemo_gym.rollouts.outcome import (
    DEFAULT_RULE,
    AnsweredJob,
    CancelledRollout,
    FailedRollout,
    Failure,
    FailureKind,
    Job,
    LimitedRollout,
    Outcome,
    Phase,
    ScoringRule,
    classify_result,
    has_model_answer,
    truncate_to_microseconds,
)
from nemo_gym.rollouts.refusals import RefusalBreaker, RefusalGroup, refusal_reason
from nemo_gym.serve.process_status import Crash, RunningHandler
from nemo_gym.transport import deadlines
from nemo_gym.transport.call_timing import phase_seconds, phases_from_error
from nemo_gym.transport.event_loop import is_cancelled
from nemo_gym.wire.stored_rollout import RolloutKey, StoredRollout

logger = logging.getLogger("nemo_gym.rollouts")

DEFAULT_CONCURRENCY = 1024
"""Default number of rollouts in flight: enough to keep a server busy, few enough to hold in memory."""

LONGEST_CHAIN = 3
"""Most nested calls between the collector and the server whose deadline passes first: agent, tool, the tool's call."""
DEADLINE_SLACK = 0.02
"""Fraction of the rollout deadline by which clocks and timers may differ."""

LONGEST_PAUSE = 60.0

MAX_ATTEMPTS_PER_RUN = 2
"""Single calls are already retried where that is safe, so a run attempts a rollout at most twice. A third attempt is
left for a resumed run, after the cause is fixed."""
RETRIED_KINDS = frozenset(FailureKind) - {FailureKind.INVALID_REWARD, FailureKind.INTERNAL}
"""Kinds that an agent defines are not retried within a run either."""

LOST_CALL_KINDS = frozenset(
    {FailureKind.SERVER_DIED, FailureKind.MODEL_UNREACHABLE, FailureKind.JUDGE_FAILED, FailureKind.TIMEOUT}
)
"""Kinds of failures that the crash of a server, or a blocked server, can cause."""
MAX_RESENDS = 10
"""How often one attempt may be sent again because another server or rollout ended or blocked a process."""

ROLLOUT_DEADLINE = "rollout"

Send = Callable[[Job], Awaitable[Any]]
Observer = Callable[[Outcome], None]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class RolloutInFlight:
    """One rollout that was sent and has no answer yet."""

    key: RolloutKey
    agent: str
    seconds: float
    """Time since the rollout was sent, without the time in the queue."""
    waiting_for: str | None = None
    """The server whose answer is pending, as far as it is known in this process."""


class InFlight:
    """The rollouts in flight, oldest first. Use it on the event loop's thread only."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._sent: dict[RolloutKey, tuple[Job, float]] = {}  # a dictionary keeps the order of sending

    def __len__(self) -> int:
        return len(self._sent)

    def oldest(self, count: int) -> list[RolloutInFlight]:
        """Return the `count` rollouts that have been in flight longest, longest first."""
        now = self._clock()
        return [
            RolloutInFlight(key, job.agent, now - sent_at, waiting_for=f"agent {job.agent}")
            for key, (job, sent_at) in islice(self._sent.items(), count)
        ]

    @contextmanager
    def sending(self, job: Job) -> Iterator[None]:
        """Register a job as in flight inside a `with` block."""
        self.begin(job)
        try:
            yield
        finally:
            self.end(job)

    def begin(self, job: Job) -> None:
        """Register a job that is sent now."""
        self._sent[job.key] = (job, self._clock())

    def end(self, job: Job) -> float:
        """Remove a job that was answered, and return the seconds since `begin`."""
        return self._clock() - self._sent.pop(job.key)[1]


@dataclass(kw_only=True)
class StopCondition:
    """Early stop of a run: immediately after `max_failures`; after `max_tokens`, once the rollouts in flight end."""

    max_failures: int | None = None
    max_tokens: int | None = None
    tokens: int = 0
    """Tokens used so far; a resumed run starts with those of earlier runs."""
    failures: int = 0
    refusal: Failure | None = field(default=None, init=False)
    """The refusal of a model endpoint that stopped the run."""
    answers: dict[str, AnsweredJob] = field(default_factory=dict, init=False)
    """By agent: the rollout sent last whose model calls succeeded; sent at 0 if that was in an earlier run."""
    lost_servers: set[str] = field(default_factory=set, init=False)
    """Servers that ended for good; rollouts that need them are not started."""
    reason: str | None = field(default=None, init=False)
    """Reason why no further rollouts are started; None while they are."""
    is_immediate: bool = field(default=False, init=False)
    """True if the rollouts in flight are cancelled as well."""

    def __post_init__(self) -> None:
        self._check_tokens()

    def add_attempt(self, outcome: Outcome) -> None:
        """Add the tokens of an attempt, scored or not, to those used."""
        self.tokens += StoredRollout(outcome.record).total_tokens
        self._check_tokens()

    def record_answer(self, job: Job, sent_at: float) -> None:
        """Record a rollout whose model calls succeeded."""
        latest = self.answers.get(job.agent)
        if latest is None or latest.sent_at <= sent_at:
            self.answers[job.agent] = AnsweredJob(job, sent_at)

    def add_outcome(self, outcome: Outcome) -> None:
        """Count the final outcome of a rollout if it is a failure."""
        if not isinstance(outcome, FailedRollout):
            return
        self.failures += 1
        if self.max_failures is not None and self.failures >= self.max_failures:
            rollouts = "a rollout" if self.max_failures == 1 else f"{self.failures} rollouts"
            self.reason = f"{rollouts} failed (max_failures {self.max_failures})"
            self.is_immediate = True

    def refuse(self, failure: Failure) -> None:
        """Start no further rollouts, because a model endpoint refuses the run; an earlier reason is kept."""
        if self.reason is None:
            self.refusal = failure
            self.reason = f"{failure.server}: {refusal_reason(failure)}"

    def finish(self) -> None:
        """Set the reason if rollouts were not started because of a lost server."""
        if self.lost_servers and self.reason is None:
            self.reason = f"{', '.join(sorted(self.lost_servers))} ended and will not be restarted"

    def _check_tokens(self) -> None:
        if self.max_tokens is not None and self.tokens >= self.max_tokens and self.reason is None:
            self.reason = f"{self.tokens:,} tokens are spent (max_total_tokens {self.max_tokens:,})"


@dataclass(frozen=True, kw_only=True)
class RolloutRetryPolicy:
    """Decides whether a failed rollout is retried in the same run, and after which pause."""

    max_attempts: int = 1
    """Maximum attempts per rollout, including those of earlier runs."""
    pause_seconds: float = 2.0
    uniform: Callable[[float, float], float] = random.uniform

    def pause_after(self, outcome: FailedRollout, attempts: int) -> float | None:
        """Return the seconds until the next attempt, or None for no retry, after `attempts` attempts in this run."""
        failure = outcome.failure
        if not failure.retryable or outcome.job.key.attempt + 1 >= self.max_attempts:
            return None
        if failure.deadline_name == ROLLOUT_DEADLINE:
            return None  # the attempt took the longest time allowed; a retry would delay the end of the run
        if failure.kind not in RETRIED_KINDS or attempts >= MAX_ATTEMPTS_PER_RUN:
            return None
        max_pause = min(LONGEST_PAUSE, self.pause_seconds * 2 ** (attempts - 1))
        return self.uniform(max_pause / 2, max_pause)


NO_RETRIES = RolloutRetryPolicy()


class ServerMonitor(Protocol):
    """What the process that runs the servers knows about crashes."""

    @property
    def lost_instances(self) -> Collection[str]:
        """The servers that ended and will not be restarted."""
        ...

    def blocking_handler(self, instance: str) -> RunningHandler | None:
        """Return the handler that blocks a process which serves a server; None without one."""
        ...

    async def find_crashes(self, instance: str, since: float) -> Sequence[Crash]:
        """Return the crashes since a time of processes that serve a server; wait for reports that may follow."""
        ...


@dataclass(frozen=True, kw_only=True)
class AttemptRules:
    """The settings by which attempts are classified."""

    server_type: ServerTypeOf = lambda _: None
    scoring: Mapping[str, ScoringRule] = field(default_factory=dict)
    """Scoring rules by agent; other agents get the default rule."""
    rollout_seconds: float | None = None
    """The rollout deadline. `send` enforces it; here it only identifies the timeouts it caused."""
    max_steps: int | None = None
    max_tokens: int | None = None
    in_flight: InFlight = field(default_factory=InFlight)
    needed_servers: Mapping[str, Collection[str]] = field(default_factory=dict)
    """For each instance, the instances that it uses, itself included."""
    monitor: ServerMonitor | None = None

    def lost_server(self, agent: str) -> str | None:
        """Return a lost server that the rollouts of an agent need; None if they can run."""
        if self.monitor is None or not self.monitor.lost_instances:
            return None
        lost = self.monitor.lost_instances
        return next((name for name in self.needed_servers.get(agent, (agent,)) if name in lost), None)

    async def find_culprit(self, job: Job, failure: Failure, sent_at: float) -> tuple[Failure, int]:
        """Return the failure with its culprit, and how often the attempt may be sent again if its rollout is innocent.

        A server that the rollout does not use can end or block the process that it shares with the agent, and so can
        the request of another rollout to a server that both use.
        """
        needed = self.needed_servers.get(job.agent)
        if failure.kind not in LOST_CALL_KINDS or needed is None or failure.server not in self.needed_servers:
            return failure, 0
        if failure.server not in needed:  # in a later phase than dispatch, the rollout called the server after all
            return failure, MAX_RESENDS if failure.phase == Phase.DISPATCH else 0
        if self.monitor is None or failure.refusal_status is not None:
            return failure, 0
        own = job.key.rollout_id

        def is_innocent(culprit: RunningHandler) -> bool:
            return culprit.server not in needed or culprit.rollout not in (None, own)

        if failure.kind == FailureKind.TIMEOUT:
            sent_at = time.monotonic()  # if a request of another rollout blocks the server, the crash follows
            blocking = self.monitor.blocking_handler(failure.server)
            if blocking is None or not is_innocent(blocking):
                note = f"; it is blocked: {blocking} is running" if blocking else ""
                return replace(failure, message=failure.message + note), 0
        crashes = await self.monitor.find_crashes(failure.server, sent_at)
        if not crashes:
            return failure, 0
        crash = next((crash for crash in crashes if crash.handler and crash.handler.rollout == own), crashes[-1])
        if str(crash) not in failure.message:
            failure = replace(failure, message=f"{failure.message}; its process ended: {crash}")
        culprit = crash.handler
        if culprit is None or culprit.server not in self.needed_servers:
            return failure, 0
        failure = replace(failure, server=culprit.server)
        return failure, MAX_RESENDS if is_innocent(culprit) and self.lost_server(job.agent) is None else 0


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
    answered_job: Job | None = None,
) -> None:
    """Send the jobs, `concurrency` at a time, until all are done or `stop` ends the run early.

    `store` receives the outcome of every attempt; after it, the observers receive the final outcome of each rollout. An
    exception of `send` becomes a failed outcome and does not affect other jobs. An exception of an observer (the disk
    is full) ends the collection: jobs in flight are cancelled and reported as `CancelledRollout`. At most `concurrency`
    jobs are taken from `jobs` ahead of their outcomes. Afterwards `stop.reason` says why jobs were not sent, if any.
    `answered_job`, a job that an earlier run scored, may be sent again to test a model endpoint (`RefusalBreaker`).
    """
    if concurrency < 1:
        raise ValueError(f"at least one rollout must be in flight, not {concurrency}")
    stop = stop or StopCondition()
    if answered_job is not None:
        stop.record_answer(answered_job, 0.0)
    workers = _WorkerContext(send, tuple(observers), store, rules or AttemptRules(), retries, stop)
    queue = iter(jobs)

    async def worker() -> None:
        try:
            while workers.stop.reason is None and (job := next(queue, None)) is not None:
                lost_server = workers.rules.lost_server(job.agent)
                if lost_server is not None:
                    workers.stop.lost_servers.add(lost_server)
                    continue
                await workers.run(job)
        except asyncio.CancelledError:
            if not is_cancelled():  # `in_flight` rejected the job: no more rollouts are admitted, the others finish
                await workers.refusals.check()
            raise
        await workers.refusals.check()

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(worker())
        await workers.refusals.close()
    except BaseExceptionGroup as group:
        workers.refusals.abandon()
        first = group.exceptions[0]  # the other workers were cancelled because of it
        if not isinstance(first, _StopNow):
            raise first from None
    workers.stop.finish()


class _StopNow(Exception):
    """Raised by a worker to end all workers."""


@dataclass(frozen=True)
class _WorkerContext:
    """The arguments of `collect`, which all workers share, and the steps that a worker takes for one job."""

    send: Send
    observers: tuple[Observer, ...]
    store: Observer
    rules: AttemptRules
    retries: RolloutRetryPolicy
    stop: StopCondition

    @cached_property
    def refusals(self) -> RefusalBreaker:
        return RefusalBreaker(self.stop, self.rules.in_flight, self._finish, self._report, self._send_again)

    async def run(self, job: Job) -> None:
        """Send a job, retry it as the policy allows, and report its final outcome."""
        sent_at = time.monotonic()
        outcome = await attempt(job, self.send, self.rules, self.observers)
        attempts = 1
        while (group := self._hold_refusal(outcome, sent_at)) is None:
            if (pause := self._store_attempt(outcome, attempts)) is None:
                self._report(outcome)
                self.stop.add_outcome(outcome)
                break
            try:
                await asyncio.sleep(pause)
                sent_at = time.monotonic()
                outcome = await attempt(job.with_attempt(job.key.attempt + attempts), self.send, self.rules)
            except asyncio.CancelledError:
                self._report(outcome)  # the previous attempt is stored, so its outcome is the final one
                raise
            attempts += 1
        if group is not None:
            await self.refusals.wait(group)
        if self.stop.is_immediate:
            raise _StopNow

    def _hold_refusal(self, outcome: Outcome, sent_at: float) -> RefusalGroup | None:
        """Record an answer, or hold back a refusal and return its group."""
        if has_model_answer(outcome):
            self.stop.record_answer(outcome.job, sent_at)
            if not self.refusals.groups:
                return None
        return self.refusals.hold(outcome, sent_at)

    async def _send_again(self, job: Job) -> Outcome:
        """Send a job that was answered before; its outcome is not stored, but its tokens count."""
        outcome = await attempt(job, self.send, self.rules)
        self.stop.add_attempt(outcome)
        return outcome

    def _finish(self, outcome: Outcome) -> None:
        """Store and report the outcome of a refusal that was held back; it is not retried."""
        self.store(outcome)
        self._report(outcome)
        self.stop.add_attempt(outcome)
        self.stop.add_outcome(outcome)

    def _store_attempt(self, outcome: Outcome, attempts: int) -> float | None:
        """Store an attempt; return the pause before the next attempt, or None if there is no retry."""
        self.store(outcome)
        self.stop.add_attempt(outcome)
        if self.stop.reason is not None or not isinstance(outcome, FailedRollout):
            return None
        if self.rules.lost_server(outcome.job.agent) is not None:
            return None
        return self.retries.pause_after(outcome, attempts)

    def _report(self, outcome: Outcome) -> None:
        for observer in self.observers:
            observer(outcome)


async def attempt(job: Job, send: Send, rules: AttemptRules, on_cancel: Iterable[Observer] = ()) -> Outcome:
    """Send one job and return its outcome. A cancellation is reported to `on_cancel` and raised again.

    A job is sent again, within the same attempt, if it did not cause the failure (`AttemptRules.find_culprit`).
    """
    rule = rules.scoring.get(job.agent, DEFAULT_RULE)
    for resends in itertools.count():
        start_time = time.monotonic()
        try:
            rules.in_flight.begin(job)
            try:
                result = await send(job)
                break
            except Exception as error:
                failed = _failed_attempt(job, error, time.monotonic() - start_time, rules, rule)
                failure, max_resends = await rules.find_culprit(job, failed.failure, start_time)
            finally:
                rules.in_flight.end(job)
        except asyncio.CancelledError:
            for observer in on_cancel:
                observer(CancelledRollout(job))
            raise
        if resends >= max_resends:
            return replace(failed, failure=failure)
        logger.info("rollout %s is sent again: %s", job.key, failure.message)
    seconds = time.monotonic() - start_time
    outcome = classify_result(job, add_timing(result, seconds), rule=rule, max_tokens=rules.max_tokens)
    if isinstance(outcome, LimitedRollout):
        limits = {"steps": rules.max_steps, "tokens": rules.max_tokens}
        return replace(outcome, limit_value=limits.get(outcome.limit_name))
    return replace(outcome, seconds=seconds) if isinstance(outcome, FailedRollout) else outcome


def _failed_attempt(
    job: Job, error: Exception, seconds: float, rules: AttemptRules, rule: ScoringRule
) -> FailedRollout:
    """Return the outcome of an attempt whose `send` raised `error` after `seconds`."""
    failure = classify_error(error, job.agent, rules.server_type, judges=rule.judges)
    # An internal error is a bug: its traceback is logged, so that it does not go unnoticed among other failures.
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
    """Attribute a timeout after `seconds` to the rollout deadline `limit` if the deadline can have caused it."""
    if failure.kind != FailureKind.TIMEOUT or limit is None:
        return failure
    # A nested call gets a little less time than its caller and reports the timeout first.
    if seconds < deadlines.seconds_after_hops(limit, LONGEST_CHAIN) * (1 - DEADLINE_SLACK):
        return failure
    message = f"not done within {limit:g} s (rollout_timeout_seconds); {failure.message}"
    return replace(failure, deadline_name=ROLLOUT_DEADLINE, message=message)
