"""Simulate 100 nodes and a million rollouts at one driver: the real plan, leases, dispatch and journal.

Only the nodes are simulated: they answer every job after a random time with a prepared record of about 2 kB.
Measured are CPU time, messages and memory of the driver for each rollout, and so the rate at which a core saturates.
A node that is lost and one that joins in the middle are part of the run.

    python -m perf.scale --rollouts 1000000 --nodes 100
"""

import argparse
import asyncio
import json
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.rollouts.collect import InFlight, collect
from nemo_gym.rollouts.dispatch import LeaseDispatcher, LeaseOptions
from nemo_gym.rollouts.node_messages import SCORED, JobMessage, NodeOutcome
from nemo_gym.rollouts.outcome import Job, Outcome
from nemo_gym.rollouts.store import RolloutStore
from perf.collector import ANSWER

IN_FLIGHT_PER_NODE = 100
MEAN_SECONDS = 2.0
LINGER_SECONDS = 0.05
RECORD = orjson.dumps(ANSWER | {"_ng_seconds": MEAN_SECONDS})


class NodeKilled(Exception):
    """A simulated node was killed."""


class SimulatedNode:
    """A node that answers jobs after a random time, without running them."""

    def __init__(self, name: str, mean_seconds: float) -> None:
        self.name = name
        self.mean_seconds = mean_seconds
        self.is_dead = False
        self._outbox: list[NodeOutcome] = []
        self._has_outcome = asyncio.Event()

    async def submit(self, jobs: JobMessage, cancelled: Any) -> None:  # noqa: ARG002 - signature of `NodeLink`
        loop = asyncio.get_running_loop()
        # One timer for a message: the cost of simulating must not hide that of the driver.
        loop.call_later(random.expovariate(1 / self.mean_seconds), self._answer, [ticket for ticket, _ in jobs])

    def _answer(self, tickets: list[int]) -> None:
        self._outbox += [NodeOutcome(ticket, SCORED, RECORD) for ticket in tickets]
        self._has_outcome.set()

    async def fetch(self, seconds: float) -> list[NodeOutcome]:
        try:
            async with asyncio.timeout(seconds):
                await self._has_outcome.wait()
                await asyncio.sleep(LINGER_SECONDS)
        except TimeoutError:
            pass
        if self.is_dead:
            raise NodeKilled(f"{self.name} was killed")
        outcomes, self._outbox = self._outbox, []
        self._has_outcome.clear()
        return outcomes


def jobs(count: int) -> Any:
    for number in range(count):
        yield Job.of(
            {
                "responses_create_params": {"input": [{"role": "user", "content": f"what is {number} + {number}?"}]},
                "agent_ref": {"name": "agent"},
                "_ng_task_index": number,
                "_ng_rollout_index": 0,
            }
        )


async def simulate(rollouts: int, nodes: int, mean_seconds: float, folder: Path) -> dict[str, float]:
    """Run the simulation and return its figures."""
    concurrency = nodes * IN_FLIGHT_PER_NODE
    before = resource.getrusage(resource.RUSAGE_SELF)
    began_cpu, began = time.process_time(), time.monotonic()
    with RolloutStore(folder / "r.jsonl", sync_seconds=1.0) as store:
        store.begin(jobs(rollouts))
        store.open()
        planned_cpu = time.process_time()
        options = LeaseOptions(concurrency=concurrency, planned=rollouts, is_speculative=True)
        async with LeaseDispatcher(options, InFlight()) as dispatcher:
            simulated = [SimulatedNode(f"node-{number}", mean_seconds) for number in range(nodes)]
            for node in simulated:
                dispatcher.add_node(node)

            async def disturb() -> None:
                await half_stored.wait()
                simulated[0].is_dead = True
                dispatcher.add_node(SimulatedNode("node-joined", mean_seconds))

            half_stored = asyncio.Event()

            def write(outcome: Outcome) -> None:
                store.write(outcome)
                if dispatcher.table.offered > rollouts // 2:
                    half_stored.set()

            disturbance = asyncio.create_task(disturb())
            await collect(store.jobs(), None, [], concurrency=concurrency, store=write, attempt_job=dispatcher.attempt)  # type: ignore[arg-type]
            await disturbance
        cpu, seconds = time.process_time() - planned_cpu, time.monotonic() - began
        history = store.history()
        assert len(history.finished) == rollouts, "a rollout is missing"
        lines = sum(1 for _ in (folder / "r.jsonl").open("rb"))
        assert lines == rollouts, "a rollout is stored twice"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss
    return {
        "nodes": nodes,
        "rollouts": rollouts,
        "in_flight": concurrency,
        "plan_us_per_rollout": round(1e6 * (planned_cpu - began_cpu) / rollouts, 1),
        "driver_us_per_rollout": round(1e6 * cpu / rollouts, 1),
        "rollouts_per_s_at_saturation": round(rollouts / cpu, 1),
        "messages_per_rollout": round(dispatcher.messages / rollouts, 4),
        "peak_mb": round(peak / 1024, 1),
        "peak_kb_per_rollout_in_flight": round(peak / concurrency, 2),
        "re_leased": dispatcher.table.lost_leases,
        "copies": dispatcher.table.copies,
        "duplicates": dispatcher.table.duplicates,
        "wall_s": round(seconds, 1),
    }


def measure(rollouts: int = 1_000_000, nodes: int = 100, mean_seconds: float = MEAN_SECONDS) -> dict[str, float]:
    """Return the figures of one simulation."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(simulate(rollouts, nodes, mean_seconds, Path(folder)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=MEAN_SECONDS, help="mean duration of a rollout")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.rollouts, arguments.nodes, arguments.seconds), indent=2))
