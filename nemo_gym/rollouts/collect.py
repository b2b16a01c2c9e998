"""Send every job, so many at a time, and say what became of each the moment it is known."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from nemo_gym.rollouts.classify import TypeOf, failure_of
from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.outcome import Cancelled, Failed, FailureKind, Outcome, outcome_of

logger = logging.getLogger("nemo_gym.rollouts")

DEFAULT_AT_ONCE = 1024
"""How many rollouts are in flight when nobody says: enough to keep a server busy, little enough to hold in memory."""

Send = Callable[[Job], Awaitable[Any]]
Observer = Callable[[Outcome], None]


async def collect(
    jobs: Iterable[Job],
    send: Send,
    observers: Iterable[Observer],
    *,
    at_once: int = DEFAULT_AT_ONCE,
    type_of: TypeOf = lambda _: None,
) -> None:
    """Send every job, `at_once` at a time, and tell each observer its outcome, in order, before the next is taken.

    A job that fails is an outcome and never stops its siblings, whatever `send` raises. What an observer raises (the
    disk is full) ends the collection: jobs in flight are cancelled and told as `Cancelled`. No more jobs are taken
    from `jobs` than are in flight.
    """
    if at_once < 1:
        raise ValueError(f"at least one rollout must be in flight, not {at_once}")
    told = tuple(observers)
    waiting = iter(jobs)

    async def worker() -> None:
        for job in waiting:  # shared by all workers: taking the next job never awaits
            outcome = await attempt(job, send, type_of, told)
            for observer in told:
                observer(outcome)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(worker())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # the others were cancelled because of it


async def attempt(job: Job, send: Send, type_of: TypeOf, cancelled: Iterable[Observer] = ()) -> Outcome:
    """Send one job and return what became of it. If it is cancelled, `cancelled` are told before that goes on."""
    try:
        result = await send(job)
    except asyncio.CancelledError:
        for observer in cancelled:
            observer(Cancelled(job))
        raise
    except Exception as error:
        failure = failure_of(error, job.agent, type_of)
        # A bug of ours would otherwise hide among the failures: its traceback goes to the log.
        unexplained = failure.kind == FailureKind.INTERNAL
        logger.log(
            logging.ERROR if unexplained else logging.DEBUG, "rollout %s: %s", job.key, error, exc_info=unexplained
        )
        return Failed(job, failure)
    return outcome_of(job, result)
