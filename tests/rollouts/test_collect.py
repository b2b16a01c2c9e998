"""Many jobs, so many at a time, an outcome each."""

import asyncio
import logging

import pytest

from nemo_gym.errors import AgentFailed, DeadlineExceeded
from nemo_gym.net.allowance import ToolCallTimeout
from nemo_gym.rollouts.again import Retries
from nemo_gym.rollouts.collect import Terms, collect
from nemo_gym.rollouts.job import Job
from nemo_gym.rollouts.outcome import Cancelled, Failed, Scored, record_of
from nemo_gym.rollouts.rules import Rule
from nemo_gym.rollouts.stop import Stopping

pytestmark = pytest.mark.asyncio


SAID = {"response": {"usage": {"total_tokens": 10}}}


def jobs_of(count):
    for task in range(count):
        yield Job.of({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})


async def test_a_failed_row_does_not_stop_its_siblings():
    """One broken rollout costs one record, never the run."""
    outcomes = []

    async def send(job):
        if job.key.task == 1:
            raise AgentFailed("502 from the agent", where="simple_agent")
        return {"reward": 1.0, **SAID}

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
        return {"reward": 0, **SAID}

    await collect(counted(), send, [], at_once=4)

    assert (taken, done, most) == (50, 50, 4)


async def test_an_outcome_is_told_before_the_next_job_is_taken():
    order = []

    async def send(job):
        order.append(("sent", job.key.task))
        return {"reward": 0, **SAID}

    await collect(jobs_of(2), send, [lambda o: order.append(("told", o.job.key.task))], at_once=1)

    assert order == [("sent", 0), ("told", 0), ("sent", 1), ("told", 1)]


async def test_a_full_disk_ends_the_collection_at_once():
    """Results that cannot be kept must not be paid for."""
    started = asyncio.Event()
    told = []

    async def send(job):
        if job.key.task == 0:
            await started.wait()
            return {"reward": 0, **SAID}
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


AGAIN = Retries(max_attempts=3, pause_seconds=0)


async def test_a_failure_that_may_pass_is_tried_again_and_told_once():
    """The store keeps every attempt; a tally counts every rollout once."""
    attempts, ended = [], []

    async def send(job):
        if job.key.task == 1 and not job.key.attempt:
            raise ConnectionError("gone")
        return {"reward": 1.0, **SAID}

    await collect(jobs_of(3), send, [ended.append], store=attempts.append, at_once=1, retries=AGAIN)

    assert [(str(o.job.key), type(o)) for o in attempts] == [
        ("0-0", Scored),
        ("1-0", Failed),
        ("1-0-a1", Scored),
        ("2-0", Scored),
    ]
    assert [str(o.job.key) for o in ended] == ["0-0", "1-0-a1", "2-0"]


async def test_a_rollout_in_its_pause_is_told_as_it_stands_when_the_run_is_cancelled():
    ended = []
    stored = asyncio.Event()

    async def send(job):
        raise ConnectionError("gone")

    retries = Retries(max_attempts=3, pause_seconds=60, uniform=lambda low, high: high)
    run = asyncio.create_task(
        collect(jobs_of(1), send, [ended.append], store=lambda _: stored.set(), retries=retries, at_once=1)
    )
    await stored.wait()
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert [o.failure.kind for o in ended] == ["server_died"]


async def test_a_second_attempt_that_is_cancelled_leaves_the_first_as_the_outcome():
    """What is on disk and what is counted must be the same."""
    ended = []
    again = asyncio.Event()

    async def send(job):
        if not job.key.attempt:
            raise ConnectionError("gone")
        again.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(collect(jobs_of(1), send, [ended.append], retries=AGAIN, at_once=1))
    await again.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert [(type(o), str(o.job.key)) for o in ended] == [(Failed, "0-0")]


async def test_so_many_failures_end_the_collection_and_cancel_what_is_in_flight():
    told = []

    async def send(job):
        if job.key.task == 0:
            return await asyncio.Event().wait()
        raise AgentFailed("no")

    stopping = Stopping(max_failures=3)
    await collect(jobs_of(100), send, [told.append], at_once=2, stopping=stopping)

    assert [type(o) for o in told] == [Failed, Failed, Failed, Cancelled]
    assert stopping.at_once


async def test_spent_tokens_end_the_collection_when_those_in_flight_are_done():
    """Ten tokens each, three at once: nothing that was begun is thrown away."""
    told = []

    async def send(job):
        await asyncio.sleep(0)
        return {"reward": 1.0, **SAID}

    stopping = Stopping(max_tokens=35)
    await collect(jobs_of(100), send, [told.append], at_once=3, stopping=stopping)

    assert {type(o) for o in told} == {Scored}
    assert 4 <= len(told) <= 6
    assert stopping.tokens == 10 * len(told)


async def test_a_failure_is_not_tried_again_when_the_tokens_are_spent():
    attempts = []

    async def send(job):
        attempts.append(job)
        return {"_ng_failure_class": "judge_failed", **SAID}

    await collect(jobs_of(1), send, [], retries=AGAIN, stopping=Stopping(max_tokens=10))

    assert len(attempts) == 1


async def test_a_timeout_at_the_end_of_the_rollouts_time_is_the_rollouts():
    """Whoever notices first, the limit that has to be raised is this one."""
    told = []

    async def send(job):
        await asyncio.sleep(0.5 if job.key.task else 0)
        raise DeadlineExceeded("late", where="m")

    await collect(jobs_of(2), send, [told.append], terms=Terms(rollout_seconds=0.5), at_once=1)

    assert [o.failure.which for o in told] == ["request", "rollout"]


async def test_a_server_further_down_notices_the_end_of_the_rollouts_time_earlier():
    """Each passes on a little less than it has; raising the tool's limit instead of the rollout's would not help."""
    told = []

    async def send(job):
        await asyncio.sleep(0.45)
        raise (ToolCallTimeout if job.key.task else DeadlineExceeded)("late", where="tool")

    await collect(jobs_of(2), send, [told.append], terms=Terms(rollout_seconds=0.5), at_once=2)

    which = {o.job.key.task: o.failure.which for o in told}
    assert which == {0: "rollout", 1: "tool_call"}  # who held the call to its own limit knows better


async def test_results_are_held_to_the_rules_of_their_agent():
    told = []

    async def send(job):
        return {"reward": 2.0, **SAID}

    await collect(jobs_of(1), send, [told.append], terms=Terms(rules={"a": Rule(reward_range=(0, 1))}))

    assert told[0].failure.kind == "invalid_reward"
    assert told[0].seconds is not None


async def test_every_outcome_says_how_long_it_took_and_the_answered_ones_where_the_time_went():
    """The viewer's seconds and the latency of each phase come from here, for good rollouts as for bad ones."""
    records = []

    async def send(job):
        await asyncio.sleep(0.01)
        if job.key.task == 1:
            raise AgentFailed("502 from the agent", where="simple_agent")
        return {"reward": "x" if job.key.task == 2 else 1.0, "_ng_phases": [0.001, 0.002, 0.0, 0.001, 0.005], **SAID}

    await collect(jobs_of(3), send, [lambda outcome: records.append(record_of(outcome))], at_once=1)

    assert all(0.005 < record["_ng_seconds"] < 60 for record in records)
    assert [sorted(record.get("_ng_phases", ())) for record in records] == [
        ["agent", "model", "queue", "seed_session", "tools", "verify"],
        [],
        ["agent", "model", "queue", "seed_session", "tools", "verify"],
    ]
    assert records[1]["_ng_failure"]["seconds"] == pytest.approx(records[1]["_ng_seconds"], abs=1e-3)
