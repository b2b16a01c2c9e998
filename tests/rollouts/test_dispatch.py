"""The driver's side of a run on many nodes, with simulated nodes: each job ends once, whatever the nodes do."""

import asyncio
import random

import pytest

from nemo_gym.errors import ServerUnreachable
from nemo_gym.rollouts.collect import AttemptRules, InFlight, collect
from nemo_gym.rollouts.dispatch import LeaseDispatcher, LeaseOptions, dispatching
from nemo_gym.rollouts.node_collector import NodeCollector
from nemo_gym.rollouts.outcome import (
    CancelledRollout,
    FailedRollout,
    Failure,
    FailureKind,
    Job,
    LimitedRollout,
    Phase,
    ScoredRollout,
)

pytestmark = pytest.mark.asyncio


class NodeDied(Exception):
    pass


class SimulatedNode:
    """A real node collector behind a link that can fail."""

    def __init__(self, name, attempt):
        self.name = name
        self.is_dead = False
        self.collector = NodeCollector(attempt)
        self.has_jobs = asyncio.Event()

    async def submit(self, jobs, cancelled):
        await asyncio.sleep(0)
        if self.is_dead:
            raise NodeDied(f"{self.name} was killed")
        self.has_jobs.set()
        self.collector.cancel(cancelled)
        self.collector.submit(jobs)

    async def fetch(self, seconds):
        fetching = asyncio.create_task(self.collector.fetch(min(seconds, 0.05)))
        outcomes = await fetching
        if self.is_dead:
            raise NodeDied(f"{self.name} was killed")
        return outcomes

    async def kill(self):
        self.is_dead = True
        await self.collector.close()


def job(number, **fields):
    return Job.of({"_ng_task_index": number, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}, "n": number, **fields})


async def answer(one):
    await asyncio.sleep(random.random() / 500)
    return ScoredRollout(one, {**one.row, "reward": float(one.row["n"])})


async def run_all(dispatcher, jobs, concurrency=16):
    stored = []
    await collect(
        jobs, None, [], concurrency=concurrency, store=stored.append, rules=AttemptRules(),
        attempt_job=dispatcher.attempt,
    )  # fmt: skip
    return stored


async def test_every_rollout_is_stored_once_although_nodes_die_and_join():
    """What ran on a dead node runs elsewhere; nothing is lost, nothing is stored twice."""
    in_flight = InFlight()
    async with LeaseDispatcher(LeaseOptions(concurrency=16, planned=300), in_flight) as dispatcher:
        nodes = [SimulatedNode(f"n{number}", answer) for number in range(3)]
        for node in nodes:
            dispatcher.add_node(node)
        collection = asyncio.create_task(run_all(dispatcher, map(job, range(300))))
        await nodes[0].has_jobs.wait()
        await nodes[0].kill()
        dispatcher.add_node(SimulatedNode("n0.2", answer))
        await asyncio.sleep(0.01)
        await nodes[1].kill()
        stored = await collection

    assert sorted(outcome.record["reward"] for outcome in stored) == [float(number) for number in range(300)]
    lost = {one.name: one.loss for one in dispatcher.current_statistics() if one.loss}
    assert lost.keys() == {"n0", "n1"}
    assert "killed" in lost["n0"]
    assert sum(one.outcomes for one in dispatcher.current_statistics()) == 300
    assert len(in_flight) == len(dispatcher.table) == 0


async def test_outcomes_of_every_kind_arrive_as_they_were():
    """Failures, limits and cancellations keep their details: retries and stop conditions work as on one machine."""
    failure = Failure(FailureKind.TIMEOUT, Phase.MODEL, "too slow", "m", deadline_name="model_call")
    outcomes = [
        ScoredRollout(job(0), {"reward": 1.0, "big": 2**70}),
        FailedRollout(job(1), failure, {"x": 1}, 2.5),
        LimitedRollout(job(2), "steps", {"x": 2}, 7),
        CancelledRollout(job(3), {"x": 3}),
    ]

    async def replay(one):
        return outcomes[one.key.task]

    async with LeaseDispatcher(LeaseOptions(concurrency=4)) as dispatcher:
        dispatcher.add_node(SimulatedNode("n", replay))
        received = await asyncio.gather(*[dispatcher.attempt(one.job) for one in outcomes])

    assert received == outcomes


async def test_a_cancelled_attempt_is_cancelled_on_its_node():
    """A rollout that is not needed must not keep a model busy."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def hang(_):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    cancelled = []
    async with LeaseDispatcher(LeaseOptions(concurrency=1)) as dispatcher:
        dispatcher.add_node(SimulatedNode("n", hang))
        attempt = asyncio.create_task(dispatcher.attempt(job(0), on_cancel=[cancelled.append]))
        await started.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await asyncio.wait_for(ended.wait(), 10)

    assert cancelled == [CancelledRollout(job(0))]


async def test_an_error_of_the_node_itself_is_an_outcome():
    """The driver must not wait for a job that its node could not run."""

    async def fail(_):
        raise RuntimeError("no memory")

    async with LeaseDispatcher(LeaseOptions(concurrency=1)) as dispatcher:
        dispatcher.add_node(SimulatedNode("n", fail))
        outcome = await dispatcher.attempt(job(0))

    assert outcome.failure.kind == FailureKind.INTERNAL
    assert "no memory" in outcome.failure.message


async def test_a_rollout_that_ends_every_node_fails_with_their_name():
    """It is one failed rollout, and the run goes on with the nodes that return."""
    nodes = []

    async def die(_):
        nodes[-1].is_dead = True
        await asyncio.Event().wait()

    def replace(name, _reason):
        nodes.append(SimulatedNode(f"{name}+", die))
        dispatcher.add_node(nodes[-1])

    async with LeaseDispatcher(LeaseOptions(concurrency=1), on_lost=replace) as dispatcher:
        nodes.append(SimulatedNode("n", die))
        dispatcher.add_node(nodes[0])
        outcome = await asyncio.wait_for(dispatcher.attempt(job(0)), 30)
        await asyncio.gather(*[node.collector.close() for node in nodes])

    assert outcome.failure.kind == FailureKind.SERVER_DIED
    assert "n++++: n++++ was killed" in outcome.failure.message


async def test_without_a_node_the_collection_ends_with_an_error():
    """It must not wait without an end; what is stored stays, and --resume continues."""

    class EmptyPool:
        async def open_workload(self, _factory, _options, _on_join, on_end):
            asyncio.get_running_loop().call_later(0.01, on_end, ServerUnreachable("no node is left"))

        def report_loss(self, name, reason):
            raise AssertionError

    async with dispatching(EmptyPool(), LeaseOptions(concurrency=2), InFlight()) as dispatcher:
        with pytest.raises(ServerUnreachable, match="no node is left"):
            await run_all(dispatcher, map(job, range(5)), concurrency=2)


async def test_a_silent_node_loses_its_leases():
    """A machine that is cut off holds its rollouts no longer than its leases."""

    class SilentNode(SimulatedNode):
        async def fetch(self, _seconds):
            await asyncio.Event().wait()

    options = LeaseOptions(concurrency=1, lease_seconds=0.5)
    lost = []
    async with LeaseDispatcher(options, on_lost=lambda name, reason: lost.append((name, reason))) as dispatcher:
        silent = SilentNode("silent", answer)
        dispatcher.add_node(silent)
        attempt = asyncio.create_task(dispatcher.attempt(job(3)))
        await silent.has_jobs.wait()
        dispatcher.add_node(SimulatedNode("other", answer))
        outcome = await asyncio.wait_for(attempt, 30)

    assert outcome.record["reward"] == 3.0
    assert [name for name, _ in lost] == ["silent"]


async def test_a_driver_that_was_stopped_keeps_its_nodes(monkeypatch):
    """Ctrl-Z, or a machine that sleeps: no node was silent, so none loses its rollouts."""
    monkeypatch.setattr("nemo_gym.rollouts.dispatch.TICK_SECONDS", 0.001)
    now, ticks, seen = [0.0], 0, asyncio.Event()

    def clock():
        nonlocal ticks
        ticks += 1
        if ticks > 20:
            seen.set()
        return now[0]

    class SlowNode(SimulatedNode):
        async def fetch(self, seconds):
            await seen.wait()
            return await super().fetch(seconds)

    lost = []
    options = LeaseOptions(concurrency=1)
    async with LeaseDispatcher(options, on_lost=lambda *loss: lost.append(loss), clock=clock) as dispatcher:
        node = SlowNode("n", answer)
        dispatcher.add_node(node)
        attempt = asyncio.create_task(dispatcher.attempt(job(2)))
        await node.has_jobs.wait()
        now[0] = 1000.0
        ticks = 0
        outcome = await asyncio.wait_for(attempt, 30)

    assert outcome.record["reward"] == 2.0
    assert lost == []


async def test_a_copy_that_fails_does_not_end_the_other(monkeypatch):
    """A node that is idle because everything fails there would turn late rollouts into failures."""
    monkeypatch.setattr("nemo_gym.rollouts.dispatch.TICK_SECONDS", 0.001)
    release, has_failed = asyncio.Event(), asyncio.Event()

    async def wait_for_release(one):
        await release.wait()
        return await answer(one)

    async def fail(one):
        failure = Failure(FailureKind.SERVER_DIED, Phase.DISPATCH, "broken node", "a")
        return FailedRollout(one, failure)

    class BrokenNode(SimulatedNode):
        async def fetch(self, seconds):
            if self.has_jobs.is_set() and not self.collector.running and not self.collector._outbox:
                has_failed.set()  # the dispatcher has handled the failure and asks again
            return await super().fetch(seconds)

    options = LeaseOptions(concurrency=2, planned=1, is_speculative=True)
    async with LeaseDispatcher(options) as dispatcher:
        slow = SimulatedNode("slow", wait_for_release)
        dispatcher.add_node(slow)
        attempt = asyncio.create_task(dispatcher.attempt(job(4)))
        await slow.has_jobs.wait()
        dispatcher.add_node(BrokenNode("broken", fail))
        await has_failed.wait()
        await asyncio.sleep(0.02)  # some ticks: it is not copied again and again
        assert dispatcher.table.copies == 1
        release.set()
        outcome = await asyncio.wait_for(attempt, 30)

    assert outcome.record["reward"] == 4.0


async def test_a_cancellation_from_within_a_job_is_an_outcome():
    """A library that cancels its own task must not leave the driver waiting without an end."""

    async def cancel_oneself(_):
        raise asyncio.CancelledError

    async with LeaseDispatcher(LeaseOptions(concurrency=1)) as dispatcher:
        dispatcher.add_node(SimulatedNode("n", cancel_oneself))
        outcome = await asyncio.wait_for(dispatcher.attempt(job(0)), 30)

    assert outcome.failure.kind == FailureKind.INTERNAL
