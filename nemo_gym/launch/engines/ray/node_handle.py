"""Start and end the node run in one place, and link the driver to its actor."""

import asyncio
import importlib
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from nemo_gym.errors import GymError
from nemo_gym.launch.engines.ray.connection import import_ray
from nemo_gym.launch.engines.ray.node_run import NodeReport, NodeRun, NodeSpec
from nemo_gym.wire.call_reply import Call, Reply
from nemo_gym.wire.stored_rollout import RolloutId

STOP_SECONDS = 20.0
"""Longest wait for the servers of a node to end; then its actor is killed, with which they end."""
SILENT_SECONDS = 60
"""Longest wait for the report of a node."""
MAX_CALLS = 1000
"""Calls of the driver that a node handles at the same time."""


class NodeFailed(GymError):
    """A node run ended, or its node is not reachable."""

    exit_status = 3


class PlaceOfRun(Protocol):
    """Where an actor is placed: in a bundle of a placement group, or on one node."""

    @property
    def strategy(self) -> Any:
        """The scheduling strategy of Ray."""
        ...


@dataclass(frozen=True)
class BundlePlace:
    """A bundle of a placement group. If its node ends, Ray moves the bundle to another node."""

    group: Any
    index: int

    @property
    def strategy(self) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        return strategies.PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.index)


@dataclass(frozen=True)
class NodePlace:
    """One node, which joined the cluster during the run."""

    node_id: str

    @property
    def strategy(self) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        return strategies.NodeAffinitySchedulingStrategy(self.node_id, soft=False)


class NodeHandle:
    """The driver's link to a running `NodeRun`."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        """Unique name: a node that is started again gets a new one."""
        self.actor = actor
        self.report = NodeReport()
        self.calls_in_flight = 0

    async def submit(self, jobs: Any, cancelled: Sequence[int]) -> None:
        await self._result(self.actor.submit.remote(jobs, list(cancelled)))

    async def fetch(self, seconds: float) -> Any:
        return await self._result(self.actor.fetch.remote(seconds))

    async def open_workload(self, factory: str, options: Mapping[str, Any], seconds: float) -> None:
        """Run a workload on the node.

        Raises:
            GymError: it cannot run there, or is not open in time.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._result(self.actor.open_workload.remote(factory, dict(options)))
        except TimeoutError:
            raise NodeFailed(f"its workload is not open after {seconds:g} s", where=f"node {self.name}") from None

    async def pending_calls(self, rollouts: Sequence[RolloutId]) -> Mapping[RolloutId, str]:
        calls: Mapping[RolloutId, str] = await self._result(self.actor.pending_calls.remote(list(rollouts)))
        return calls

    async def next_report(self, lost: asyncio.Event) -> NodeReport | None:
        """Fetch the report of the node; None if its link fails meanwhile: a node that hangs would not answer.

        Raises:
            NodeFailed: the node does not answer for SILENT_SECONDS; a time in which this process is stopped is not
                counted.
        """
        fetching = asyncio.ensure_future(self._result(self.actor.report.remote()))
        losing = asyncio.ensure_future(lost.wait())
        try:
            for _ in range(SILENT_SECONDS):
                await asyncio.wait({fetching, losing}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                if fetching.done():
                    self.report = await fetching
                    return self.report
                if losing.done():
                    return None
            raise NodeFailed(f"it does not answer for {SILENT_SECONDS} s", where=f"node {self.name}")
        finally:
            fetching.cancel()
            losing.cancel()
            await asyncio.gather(fetching, losing, return_exceptions=True)

    async def handle(self, instance: str, call: Call) -> Reply:
        """Send a call to a server of this node."""
        self.calls_in_flight += 1
        try:
            plain = Call(
                call.method,
                call.base_url,
                call.path,
                call.body_bytes(),
                call.headers,
                {name: call.cookie(name) or "" for name in call.cookies or ()},
                call.server,
                call.rollout,
                call.seconds,
            )
            reply: Reply = await self._result(self.actor.handle.remote(instance, plain))
            return reply
        finally:
            self.calls_in_flight -= 1

    async def _result(self, reference: Awaitable[Any]) -> Any:
        """Return the result of a call of the actor.

        Raises:
            NodeFailed: the actor, its process or its node has ended.
        """
        exceptions = import_ray().exceptions
        try:
            return await reference
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, GymError):
                raise error.cause from None
            raise NodeFailed(f"{type(error.cause).__name__}: {error.cause}", where=f"node {self.name}") from error
        except exceptions.RayError as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise NodeFailed(f"its process or machine ended ({reason})", where=f"node {self.name}") from error


async def start_node_run(
    place: PlaceOfRun, resources: Mapping[str, float], spec: NodeSpec, seconds: float
) -> NodeHandle:
    """Create the actor of a node run, start its servers, and return the link to it.

    Raises:
        NodeFailed: the node ended, or its servers are not ready in time.
        GymError: the node has other code, or a server does not start.
    """
    others = {key: amount for key, amount in resources.items() if key not in ("CPU", "GPU", "memory")}
    options = {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "resources": others or None,
        "max_concurrency": MAX_CALLS,
        "max_restarts": 0,  # the slot starts a new one: a restarted actor would have no servers
        "scheduling_strategy": place.strategy,
    }
    options |= {"memory": resources["memory"]} if "memory" in resources else {}
    actor = import_ray().remote(NodeRun).options(**options).remote()
    handle = NodeHandle(spec.name, actor)
    try:
        async with asyncio.timeout(seconds):
            handle.report = await handle._result(actor.start.remote(spec))
    except TimeoutError:
        await end_node_run(handle, 0.0)
        problem = f"its servers are not ready after {seconds:g} s"
        raise NodeFailed(
            problem, where=f"node {spec.name}", fix="allow more time: node_start_timeout_seconds"
        ) from None
    except BaseException:
        await end_node_run(handle, 0.0)
        raise
    return handle


async def end_node_run(handle: NodeHandle, seconds: float = STOP_SECONDS) -> None:
    """Stop the servers of a node within `seconds` and end its actor; its servers end with its process."""
    if seconds:
        with suppress(GymError, TimeoutError):
            async with asyncio.timeout(seconds):
                await handle._result(handle.actor.stop.remote())
    ray = import_ray()
    with suppress(ray.exceptions.RayError, ValueError):
        ray.kill(handle.actor, no_restart=True)
