"""Many jobs, so many at a time, an outcome each."""

import asyncio
import logging

import pytest

from nemo_gym.errors import AgentFailed
from nemo_gym.rollouts.collect import collect
from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.outcome import Cancelled, Failed, Scored

pytestmark = pytest.mark.asyncio


def jobs_of(count):
    for task in range(count):
        yield Job.of({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})


async def test_a_failed_row_does_not_stop_its_siblings():
    """One broken rollout costs one record, never the run."""
    outcomes = []

    async def send(job):
        if job.key.task == 1:
            raise AgentFailed("502 from the agent", where="simple_agent")
        return {"reward": 1.0}

    await collect(jobs_of(3), send, [outcomes.append], at_once=2)

    assert sorted(o.job.key.task for o in outcomes if isinstance(o, Scored)) == [0, 2]
    assert [o.failure.message for o in outcomes if isinstance(o, Failed)] == ["simple_agent: 502 from the agent"]


async def test_even_a_bug_of_ours_costs_one_record_and_is_logged(caplog):
    outcomes = []

    async def send(job):
        raise KeyError("typo")

    with caplog.at_level(logging.ERROR, logger="nemo_gym.rollouts"):
        await collect(jobs_of(1), send, [outcomes.append])

    assert outcomes[0].failure.kind == "internal"
    assert "Traceback" in caplog.text


async def test_no_more_jobs_are_taken_than_are_in_flight():
    """Memory is bounded by what is in flight, whatever the size of the data."""
    taken = flying = most = 0
    done = 0

    def counted():
        nonlocal taken
        for job in jobs_of(50):
            taken += 1
            assert taken - done <= 4
            yield job

    async def send(job):
        nonlocal flying, most, done
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1
        done += 1
        return {"reward": 0}

    await collect(counted(), send, [], at_once=4)

    assert (taken, done, most) == (50, 50, 4)


async def test_an_outcome_is_told_before_the_next_job_is_taken():
    order = []

    async def send(job):
        order.append(("sent", job.key.task))
        return {"reward": 0}

    await collect(jobs_of(2), send, [lambda o: order.append(("told", o.job.key.task))], at_once=1)

    assert order == [("sent", 0), ("told", 0), ("sent", 1), ("told", 1)]


async def test_a_full_disk_ends_the_collection_at_once():
    """Results that cannot be kept must not be paid for."""
    started = asyncio.Event()
    told = []

    async def send(job):
        if job.key.task == 0:
            await started.wait()
            return {"reward": 0}
        started.set()
        return await asyncio.Event().wait()

    def store(outcome):
        told.append(type(outcome))
        if isinstance(outcome, Scored):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await collect(jobs_of(5), send, [store], at_once=2)

    assert told == [Scored, Cancelled]


async def test_a_cancelled_collection_says_which_rollouts_were_under_way():
    told = []
    begun = asyncio.Event()

    async def send(job):
        if job.key.task == 2:
            begun.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(collect(jobs_of(9), send, [told.append], at_once=3))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert sorted(outcome.job.key.task for outcome in told) == [0, 1, 2]
    assert {type(outcome) for outcome in told} == {Cancelled}


async def test_nothing_in_flight_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        await collect(jobs_of(1), None, [], at_once=0)
