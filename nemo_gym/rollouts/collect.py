"""Send every job, a bounded number at a time, and report each outcome as soon as it is known.

Also defines the rollouts in flight (`InFlight`), the early stop (`StopCondition`) and the retry policy.
"""

import asyncio
import itertools
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Protocol

from nemo_gym.keys import NG_PHASES_KEY, NG_SECONDS_KEY, NG_TURN_SECONDS_KEY, NG_TURNS_KEY, RESPONSE_KEY_NAME
from nemo_gym.rollouts.attribution import ServerTypeOf, classify_error, generated_response, is_call_timeout
from nemo_gym.rollouts.crash_recovery import LOST_CALL_KINDS, MAX_RESENDS, ResendGate, ServerMonitor
from nemo_gym.rollouts.outcome import (
    DEFAULT_RULE,
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
from nemo_gym.rollouts.refusals import RefusalBreaker, RefusalGroup
from nemo_gym.rollouts.stop_condition import StopCondition
from nemo_gym.serve.process_status import Crash, RunningHandler
from nemo_gym.transport import deadlines
from nemo_gym.transport.call_timing import phase_seconds, phases_from_error
from nemo_gym.transport.event_loop import is_cancelled
from nemo_gym.wire.stored_rollout import REWARD_KEY, RolloutKey, Row

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

ROLLOUT_DEADLINE = "rollout"

Send = Callable[[Job], Awaitable[Any]]
Observer = Callable[[Outcome], None]


class AttemptJob(Protocol):
    """Runs one attempt of a job. A cancellation is reported to `on_cancel` and raised again."""

    def __call__(self, job: Job, *, on_cancel: Iterable[Observer] = ()) -> Awaitable[Outcome]: ...


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
    resend_gates: defaultdict[str, ResendGate] = field(default_factory=lambda: defaultdict(ResendGate))
    """By server: limits the rollouts that are sent again after its crashes."""

    def lost_server(self, agent: str) -> str | None:
        """Return a lost server that the rollouts of an agent need; None if they can run."""
        if self.monitor is None or not self.monitor.lost_instances:
            return None
        lost = self.monitor.lost_instances
        return next((name for name in self.needed_servers.get(agent, (agent,)) if name in lost), None)

    def _name_suspended(self, failure: Failure, needed: Collection[str]) -> Failure:
        """Return a timeout with the suspended server that it is due to; on a busy machine, only its caller notices."""
        assert self.monitor is not None
        suspended = [name for name in sorted(needed) if self.monitor.is_suspended(name)]
        if not suspended or failure.server in suspended:
            return failure
        return replace(failure, server=suspended[0], message=f"{failure.message}; {suspended[0]} is suspended")

    def record_crash(self, job: Job, server: str, crashes_before: Mapping[str, int]) -> ResendGate | None:
        """Return the gate of a server that another rollout ended; None if the rollout of the job does not use it."""
        if server not in self.needed_servers.get(job.agent, ()):
            return None
        self.resend_gates[server].record_crash(crashes_before.get(server, 0), len(self.in_flight) + 1)
        return self.resend_gates[server]

    async def find_culprit(self, job: Job, failure: Failure, sent_at: float) -> tuple[Failure, int]:
        """Return the failure with its culprit, and how often the attempt may be sent again if its rollout is innocent.

        A server that the rollout does not use can end or block the process that it shares with the agent, and so can
        the request of another rollout to a server that both use. The failure of an innocent rollout is not counted.
        """
        needed = self.needed_servers.get(job.agent)
        if failure.is_incomplete and self.monitor is not None:
            if not await self.monitor.find_crashes(failure.server, sent_at):
                return failure, 0
            failure = replace(failure, kind=FailureKind.SERVER_DIED, refusal_status=None, retryable=True)
        if failure.kind not in LOST_CALL_KINDS or needed is None or failure.server not in self.needed_servers:
            return failure, 0
        if failure.server not in needed:  # in a later phase than dispatch, the rollout called the server after all
            is_innocent = failure.phase == Phase.DISPATCH
            return replace(failure, is_counted=not is_innocent), MAX_RESENDS if is_innocent else 0
        if self.monitor is None or failure.refusal_status is not None:
            return failure, 0
        if failure.kind == FailureKind.TIMEOUT:
            sent_at = time.monotonic()  # if a request of another rollout blocks the server, the crash follows
            blocking = self.monitor.blocking_handler(failure.server)
            if blocking is None:
                return self._name_suspended(failure, needed), 0
            if self._may_belong_to(job, blocking):
                return replace(failure, message=f"{failure.message}; it is blocked: {blocking} is running"), 0
        return self._assign_crash(job, failure, await self.monitor.find_crashes(failure.server, sent_at))

    def _assign_crash(self, job: Job, failure: Failure, crashes: Sequence[Crash]) -> tuple[Failure, int]:
        """Return the failure with the culprit of the crashes that may have caused it, and the resends it allows."""
        own, is_lost = job.key.rollout_id, self.lost_server(job.agent) is not None
        if not crashes:  # a server that was given up ended before this rollout was sent
            resends = 0 if failure.is_counted or is_lost else MAX_RESENDS
            return replace(failure, is_counted=failure.is_counted and not is_lost), resends
        crash = next((crash for crash in crashes if crash.handler and crash.handler.rollout == own), crashes[-1])
        if str(crash) not in failure.message:
            failure = replace(failure, message=f"{failure.message}; its process ended: {crash}")
        culprit = crash.handler
        if culprit is None or culprit.server not in self.needed_servers:
            return replace(failure, is_counted=not is_lost), 0
        # A server that is given up has ended repeatedly, also outside any request of this rollout.
        is_counted = self._may_belong_to(job, culprit) and (culprit.rollout == own or not is_lost)
        failure = replace(failure, server=culprit.server, is_counted=is_counted)
        return failure, 0 if failure.is_counted or is_lost else MAX_RESENDS

    def _may_belong_to(self, job: Job, handler: RunningHandler) -> bool:
        """Return whether a handler may have run for the rollout of a job."""
        return handler.server in self.needed_servers[job.agent] and handler.rollout in (None, job.key.rollout_id)


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
    attempt_job: AttemptJob | None = None,
) -> None:
    """Send the jobs, `concurrency` at a time, until all are done or `stop` ends the run early.

    `store` receives the outcome of every attempt; after it, the observers receive the final outcome of each rollout. An
    exception of `send` becomes a failed outcome and does not affect other jobs. An exception of an observer (the disk
    is full) ends the collection: jobs in flight are cancelled and reported as `CancelledRollout`. At most `concurrency`
    jobs are taken from `jobs` ahead of their outcomes. Afterwards `stop.reason` says why jobs were not sent, if any.
    `answered_job`, a job that an earlier run scored, may be sent again to test a model endpoint (`RefusalBreaker`).
    `attempt_job` replaces `attempt` with `send` and `rules`, to run attempts on other nodes.
    """
    if concurrency < 1:
        raise ValueError(f"at least one rollout must be in flight, not {concurrency}")
    stop = stop or StopCondition()
    if answered_job is not None:
        stop.record_answer(answered_job, 0.0)
    rules = rules or AttemptRules()
    attempt_job = attempt_job or partial(attempt, send=send, rules=rules)
    workers = _WorkerContext(attempt_job, tuple(observers), store, rules, retries, stop)
    queue = iter(jobs)

    async def worker() -> None:
        try:
            while (job := await workers.take(queue)) is not None:
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

    attempt_job: AttemptJob
    observers: tuple[Observer, ...]
    store: Observer
    rules: AttemptRules
    retries: RolloutRetryPolicy
    stop: StopCondition

    @cached_property
    def refusals(self) -> RefusalBreaker:
        return RefusalBreaker(self.stop, self.rules.in_flight, self._finish, self._report, self._send_again)

    async def take(self, jobs: Iterator[Job]) -> Job | None:
        """Return the next job when the budget of the run admits it; None without one, or if the run ends early."""
        while self.stop.reason is None:
            if self.stop.gate is not None:
                await self.stop.gate.enter()
            job = next(jobs, None) if self.stop.reason is None else None
            lost_server = self.rules.lost_server(job.agent) if job is not None else None
            if job is not None and lost_server is None:
                return job
            self._leave_gate()
            if lost_server is None:
                return None
            self.stop.lost_servers.add(lost_server)
        return None

    def _leave_gate(self) -> None:
        if self.stop.gate is not None:
            self.stop.gate.leave()

    async def run(self, job: Job) -> None:
        """Send a job, retry it as the policy allows, and report its final outcome."""
        try:
            group = await self._run_attempts(job)
        finally:
            self._leave_gate()
        if group is not None:
            await self.refusals.wait(group)
        if self.stop.is_immediate:
            raise _StopNow

    async def _run_attempts(self, job: Job) -> RefusalGroup | None:
        """Send a job until it has a final outcome, and report that; return the group of a refusal that is held back."""
        sent_at = time.monotonic()
        outcome = await self.attempt_job(job, on_cancel=self.observers)
        attempts = 1
        while True:
            pause = self._pause_after(outcome, attempts)
            if (group := self._hold_refusal(outcome, sent_at, is_final=pause is None)) is not None:
                return group
            self.store(outcome)
            self.stop.add_attempt(outcome)
            try:
                if pause is not None and self.stop.reason is None:
                    await asyncio.sleep(pause)
                if pause is None or self.stop.reason is not None:  # the run may have stopped during the pause
                    self._report(outcome)
                    self.stop.add_outcome(outcome)
                    return None
                sent_at = time.monotonic()
                outcome = await self.attempt_job(job.with_attempt(job.key.attempt + attempts))
            except asyncio.CancelledError:
                self._report(outcome)  # the previous attempt is stored, so its outcome is the final one
                raise
            attempts += 1

    def _hold_refusal(self, outcome: Outcome, sent_at: float, *, is_final: bool) -> RefusalGroup | None:
        """Record an answer, or hold back a refusal and return its group."""
        if has_model_answer(outcome):
            self.stop.record_answer(outcome.job, sent_at)
            if not self.refusals.groups:
                return None
        return self.refusals.hold(outcome, sent_at, is_final=is_final)

    async def _send_again(self, job: Job) -> Outcome:
        """Send a job that was answered before; its outcome is not stored, but its tokens count."""
        outcome = await self.attempt_job(job)
        self.stop.add_attempt(outcome)
        return outcome

    def _finish(self, outcome: Outcome) -> None:
        """Store and report the outcome of a refusal that was held back; it is not retried."""
        self.store(outcome)
        self._report(outcome)
        self.stop.add_attempt(outcome)
        self.stop.add_outcome(outcome)

    def _pause_after(self, outcome: Outcome, attempts: int) -> float | None:
        """Return the pause before the next attempt, or None if there is no retry."""
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
    gate: ResendGate | None = None
    for resends in itertools.count():
        try:
            if gate is not None:
                await gate.enter()
            gates = rules.resend_gates  # nearly always empty
            crashes = {name: one.crashes for name, one in gates.items()} if gates else {}
            start_time = time.monotonic()
            result = None
            rules.in_flight.begin(job)
            try:
                result = await send(job)
                break
            except Exception as error:
                failed = _failed_attempt(job, error, time.monotonic() - start_time, rules, rule)
                failure, max_resends = await rules.find_culprit(job, failed.failure, start_time)
            finally:
                rules.in_flight.end(job)
                if gate is not None:
                    gate.leave(is_answered=result is not None)
        except asyncio.CancelledError:
            for observer in on_cancel:
                observer(CancelledRollout(job))
            raise
        if resends >= max_resends:
            return replace(failed, failure=failure)
        gate = rules.record_crash(job, failure.server, crashes)
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
    response = generated_response(error)
    record = {name: value for name, value in job.row.items() if name not in (REWARD_KEY, RESPONSE_KEY_NAME)}
    if response is not None:
        turns = {name: response.pop(name) for name in (NG_TURNS_KEY, NG_TURN_SECONDS_KEY) if name in response}
        record |= {RESPONSE_KEY_NAME: response, **turns}
    record |= {NG_PHASES_KEY: phases} if phases is not None else {}
    return FailedRollout(job, failure, record, seconds=seconds)


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


def in_completion_order(
    coroutines: Iterable[Coroutine[Any, Any, tuple[Row, Any]]],
) -> Iterator[Awaitable[tuple[Row, Any]]]:
    """Run the coroutines and yield one awaitable for each; the n-th awaitable returns the n-th result to arrive.

    An exception of a coroutine is raised by one awaitable and affects no other. Closing the iterator early cancels the
    coroutines that are still running.
    """
    futures = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        yield from asyncio.as_completed(futures)
    except GeneratorExit:
        for future in futures:
            future.cancel()
        raise
