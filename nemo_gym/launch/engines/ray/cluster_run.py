"""The driver's side of a run on a Ray cluster: place a node run on every node, and start lost ones again.

The rest of the package sees servers (`ServerRun`) and a pool of nodes (`ServerPool`). Calls of this process to a server
are sent to the node with the fewest calls in flight, through its actor; so no node opens a port for them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from omegaconf import open_dict

from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.errors import DeadlineExceeded, GymError, ServerUnreachable
from nemo_gym.launch.app_listener import AppListener, close_listeners
from nemo_gym.launch.engines.base import Notify, Placement
from nemo_gym.launch.engines.component_archive import archive_paths, code_versions, digest_of, pack_components
from nemo_gym.launch.engines.ray import connection
from nemo_gym.launch.engines.ray.cluster_options import RayOptions
from nemo_gym.launch.engines.ray.connection import (
    CALL_SECONDS,
    ClusterNode,
    ClusterUnreachable,
)
from nemo_gym.launch.engines.ray.node_handle import (
    BundlePlace,
    NodeHandle,
    NodePlace,
    PlaceOfRun,
    end_node_run,
    start_node_run,
)
from nemo_gym.launch.engines.ray.node_run import NodeSpec, limited_instances, share_limits
from nemo_gym.launch.engines.ray.reservation import NodeReservation
from nemo_gym.launch.hosted_instances import Instance, find_instances
from nemo_gym.launch.ports import listen_for_head
from nemo_gym.serve.access import AccessPolicy
from nemo_gym.serve.addresses import adopt_run_token, base_url, run_addresses
from nemo_gym.serve.blocking import run_blocking
from nemo_gym.serve.head import NodeState, head_app
from nemo_gym.serve.process_status import Crash, RunningHandler
from nemo_gym.serve.run_counts import run_metrics
from nemo_gym.serve.webserver import uvicorn_options
from nemo_gym.transport import deadlines, in_process, run_token
from nemo_gym.wire.call_reply import Call, Reply
from nemo_gym.wire.stored_rollout import RolloutId

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 2.0
"""Interval between two reports of a node, and between two looks for nodes that joined."""
MAX_FAILED_STARTS = 3
"""Failed starts, or losses of servers, after which a place is given up."""
STABLE_SECONDS = 600.0
"""Life of a node run after which the failures of its place are forgotten."""
FIRST_PAUSE = 1.0


@dataclass
class _Slot:
    """A place of a node run through all its starts."""

    number: int
    place: PlaceOfRun
    starts: int = 0
    failures: int = 0
    handle: NodeHandle | None = None
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    is_given_up: bool = False

    @property
    def next_name(self) -> str:
        return f"node-{self.number}" if self.starts == 1 else f"node-{self.number}.{self.starts}"


class NodeInstance:
    """A server instance on every node, as this process calls it (`transport.in_process`)."""

    def __init__(self, instance: str, run: "ClusterRun") -> None:
        self._instance = instance
        self._run = run

    async def handle(self, call: Call, alarm: deadlines.Alarm | None = None) -> Reply:  # noqa: ARG002 - signature of `Handle`
        """Send a call to the node with the fewest calls in flight."""
        handle = self._run.least_loaded()
        try:
            return await handle.handle(self._instance, call)
        except GymError as error:
            problem = f"{handle.name} did not answer: {error}"
            raise ServerUnreachable(problem, where=self._instance) from error


class ClusterRun:
    """The servers of a configuration on every node of a cluster; `async with` starts and stops them."""

    def __init__(self, placement: Placement, options: RayOptions) -> None:
        self.config = placement.config
        self.instances: list[Instance] = []
        self.lost_instances: set[str] = set()
        self._placement, self._options = placement, options
        self._node_config = as_dict(placement.config)
        self._token = run_token.choose_token()
        self._slots: list[_Slot] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._reservation = NodeReservation(options)
        self._is_connected_here = False
        self._head: AppListener | None = None
        self._workload: tuple[str, Mapping[str, Any], Callable[[NodeHandle], None]] | None = None
        self._on_end: Callable[[Exception], None] = lambda _: None
        self._empty_since: float | None = None
        self._start_time = time.time()
        self._is_published = False

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        """Connect, reserve a place on every node, and start the servers everywhere."""
        self._spec = await asyncio.to_thread(self._make_spec)
        self._is_connected_here = await connection.connect_in_time(self._options.address)
        await self._reservation.reserve()
        count = self._reservation.count
        self._placement.notify(f"starting the servers on {count} node{'s' if count > 1 else ''}")
        self._slots = [_Slot(number + 1, BundlePlace(self._reservation.group, number)) for number in range(count)]
        starts = [asyncio.create_task(self._start_slot(slot)) for slot in self._slots]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
        await self._open_head()
        for slot in self._slots:
            self._spawn(self._keep_slot(slot))
        self._spawn(self._watch())

    def _make_spec(self) -> NodeSpec:
        """Find the component folders and return what every node is started with."""
        config, roots = self._node_config, self._placement.roots
        self.instances = find_instances(config, roots)
        paths = archive_paths(self.instances, self._options.files, Path.cwd())
        shared = self._options.shared_path
        return NodeSpec(
            name="",
            config=config,
            token=self._token,
            cells=self._placement.cells,
            versions=code_versions(),
            digest=digest_of(paths),
            archive=pack_components(paths) if shared is None else None,
            shared_path=shared,
            paths=tuple(paths),
            is_public=self._placement.is_public,
        )

    async def _start_slot(self, slot: _Slot) -> NodeHandle:
        """Start the node run of a slot."""
        slot.starts += 1
        slot.lost.clear()
        seconds = self._options.start_seconds
        config = share_limits(self._node_config, self.instances, slot.number - 1, self._reservation.count)
        spec = replace(self._spec, name=slot.next_name, config=config)
        slot.handle = await start_node_run(slot.place, self._options.resources, spec, seconds)
        return slot.handle

    async def _start_again(self, slot: _Slot) -> NodeHandle:
        handle = await self._start_slot(slot)
        self._publish()
        self._placement.notify(f"{handle.name} ({handle.report.host}) joined")
        return handle

    async def _keep_slot(self, slot: _Slot) -> None:
        """Watch the node run of a slot, and start it again after a loss, until it is given up."""
        while not slot.is_given_up:
            try:
                handle = slot.handle or await self._start_again(slot)
            except GymError as error:
                await self._record_failure(slot, str(error))
                continue
            has_joined, joined_at = False, time.monotonic()
            try:
                await self._join(handle)
                has_joined = True
                await self._watch_handle(slot, handle)
            except GymError as error:
                slot.reason = str(error)
            slot.handle = None
            if time.monotonic() - joined_at > STABLE_SECONDS:
                slot.failures = 0
            self._publish()
            await end_node_run(handle, 0.0)
            self._placement.notify(f"{handle.name} ({handle.report.host}) is lost: {slot.reason}")
            if handle.report.is_lost or not has_joined:
                await self._record_failure(slot, slot.reason)

    async def _record_failure(self, slot: _Slot, reason: str) -> None:
        slot.reason = reason
        slot.failures += 1
        slot.is_given_up = slot.failures >= MAX_FAILED_STARTS
        if slot.is_given_up:
            self._placement.notify(f"node-{slot.number} is given up: {reason}")
        await asyncio.sleep(FIRST_PAUSE * slot.failures)

    async def _join(self, handle: NodeHandle) -> None:
        """Let a node take part in the workload, if there is one."""
        if self._workload is not None:
            factory, options, on_join = self._workload
            await handle.open_workload(factory, options, self._options.start_seconds)
            on_join(handle)

    async def _watch_handle(self, slot: _Slot, handle: NodeHandle) -> None:
        """Refresh the report of a node until its link fails, or its servers have ended."""
        while not slot.lost.is_set():
            report = await handle.next_report(slot.lost)
            if report is None:
                return
            for name, line in report.lines if self._placement.watch is not None else ():
                self._placement.watch(f"{handle.name}: {name}", line)  # type: ignore[misc]
            if report.is_lost:
                slot.reason = f"its servers ended: {', '.join(report.lost_processes)}"
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(slot.lost.wait(), REFRESH_SECONDS)

    async def _watch(self) -> None:
        """Use nodes that join, and end the workload if no node is left and none returns in time."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            if self._options.num_nodes is None and not limited_instances(self._node_config, self.instances):
                with suppress(Exception):  # the boundary to Ray: its head may be restarting
                    self._use_new_nodes(await connection.living_nodes_in_time())
            is_empty = not self.handles
            now = time.monotonic()
            self._empty_since = (self._empty_since or now) if is_empty else None
            seconds = now - self._empty_since if self._empty_since is not None else 0.0
            if is_empty and (all(slot.is_given_up for slot in self._slots) or seconds > self._options.start_seconds):
                reasons = "; ".join(f"node-{slot.number}: {slot.reason}" for slot in self._slots)
                problem = f"no node is left ({reasons})"
                self._on_end(ClusterUnreachable(problem, where="Ray cluster", fix="continue with --resume"))
                return

    def _use_new_nodes(self, nodes: Sequence[ClusterNode]) -> None:
        """Start a node run on nodes that joined. Bundles of lost nodes move to new nodes first."""
        usable = [node for node in nodes if node.has(self._options.resources)]
        open_slots = [slot for slot in self._slots if not slot.is_given_up]
        places = {slot.place.node_id for slot in open_slots if isinstance(slot.place, NodePlace)}
        used = {handle.report.node_id for handle in self.handles} | places
        for node in usable:
            if node.node_id not in used and len(usable) > len(open_slots):
                slot = _Slot(len(self._slots) + 1, NodePlace(node.node_id))
                self._slots.append(slot)
                open_slots.append(slot)
                self._spawn(self._keep_slot(slot))

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_head(self) -> None:
        """Write the addresses of the first node into the configuration, and serve it from a head server here."""
        self._publish()
        for one in self.instances if not self._placement.is_public else ():
            in_process.mount_on_loop(one.host, one.port, NodeInstance(one.name, self))  # type: ignore[arg-type]
        head = self.config["head_server"]
        listener = listen_for_head(head["host"], head["port"])
        head["port"] = listener.getsockname()[1]
        adopt_run_token(self.config, self._token)
        app = head_app(
            lambda: self.config,
            self.server_instances,
            self.pending_calls,
            self.states,
            metrics=lambda: run_metrics({handle.name: handle.report.runs for handle in self.handles}),
        )
        policy = AccessPolicy.from_config(self.config, self._token)
        self._head = AppListener(app, listener, uvicorn_options(self.config), lifespan=False, policy=policy)
        await self._head.open()

    def _publish(self) -> None:
        """Write the addresses of a living node, and for public servers those of every node, into the configuration.

        Clients that know one address per server get a working one.
        """
        if not self.handles or (self._is_published and not self._placement.is_public):
            return
        self._is_published = True
        addresses = self.handles[0].report.addresses
        self.instances = [
            replace(one, host=addresses[one.name][0], port=addresses[one.name][1]) for one in self.instances
        ]
        for one in self.instances:
            block = self.config[one.name][one.kind][one.implementation]
            block["host"], block["port"] = one.host, one.port
        if self._placement.is_public:
            with open_dict(self.config):
                self.config["node_addresses"] = {
                    handle.name: {name: list(address) for name, address in handle.report.addresses.items()}
                    for handle in self.handles
                }

    @property
    def handles(self) -> list[NodeHandle]:
        """The links to the nodes that run."""
        return [slot.handle for slot in self._slots if slot.handle is not None]

    def least_loaded(self) -> NodeHandle:
        """Return the node with the fewest calls in flight.

        Raises:
            ServerUnreachable: no node runs.
        """
        handles = self.handles
        if not handles:
            raise ServerUnreachable("no node is left", where="Ray cluster", fix="read the lines above")
        return min(handles, key=lambda handle: handle.calls_in_flight + handle.report.in_flight)

    @property
    def pool(self) -> Self:
        """The nodes: this object."""
        return self

    async def open_workload(
        self,
        factory: str,
        options: Mapping[str, Any],
        on_join: Callable[[Any], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        """Run a workload on every node; see `ServerPool`."""
        self._workload, self._on_end = (factory, options, on_join), on_end
        handles = self.handles
        problems = list(filter(None, await asyncio.gather(*map(self._join_or_report, handles))))
        if problems and len(problems) == len(handles):
            raise problems[0]

    async def _join_or_report(self, handle: NodeHandle) -> GymError | None:
        """Join a node to the workload; if that fails, report its loss, which starts it again, and return the error."""
        try:
            await self._join(handle)
        except GymError as error:
            self.report_loss(handle.name, str(error))
            return error
        return None

    def report_loss(self, name: str, reason: str) -> None:
        """Start a node again whose link has failed."""
        for slot in self._slots:
            if slot.handle is not None and slot.handle.name == name:
                slot.reason = reason
                slot.lost.set()

    def states(self) -> list[NodeState]:
        """Return the nodes with their load."""
        return [
            NodeState(
                name=handle.name,
                address=handle.report.host,
                cells=handle.report.cells,
                in_flight=handle.report.in_flight,
                load=handle.report.load,
                servers={name: base_url(*address) for name, address in handle.report.addresses.items()},
            )
            for handle in self.handles
        ]

    def server_instances(self) -> list[dict[str, Any]]:
        """Return every instance on every node as the head server lists it."""
        uptime = time.time() - self._start_time
        return [
            {
                "config_path": one.name,
                "dir_path": str(one.folder),
                "entrypoint": one.entrypoint,
                "host": host,
                "name": one.implementation,
                "pid": handle.report.pid,
                "port": port,
                "process_name": one.name,
                "server_type": one.kind,
                "start_time": self._start_time,
                "status": None,
                "uptime_seconds": uptime,
                "url": base_url(host, port),
                "node": handle.name,
            }
            for handle in self.handles
            for one in self.instances
            for host, port in [handle.report.addresses[one.name]]
        ]

    async def wait_for_endpoints(self, notify: Notify) -> None:
        """Do nothing: every node has waited for the model endpoints when its servers started."""

    async def pending_calls(self, rollouts: Sequence[RolloutId]) -> dict[RolloutId, str]:
        """Return the calls that these rollouts wait for, as the nodes report them."""
        replies = await asyncio.gather(*[one.pending_calls(rollouts) for one in self.handles], return_exceptions=True)
        return {key: call for reply in replies if isinstance(reply, Mapping) for key, call in reply.items()}

    @property
    def is_lost(self) -> bool:
        return all(slot.is_given_up for slot in self._slots)

    def lost_processes(self) -> list[str]:
        """Return the places that are given up."""
        return [f"node-{slot.number}" for slot in self._slots if slot.is_given_up]

    def blocking_handler(self, instance: str) -> RunningHandler | None:  # noqa: ARG002 - nodes attribute blocked servers
        return None

    def is_suspended(self, instance: str) -> bool:  # noqa: ARG002
        return False

    async def find_crashes(self, instance: str, since: float) -> list[Crash]:  # noqa: ARG002
        return []

    async def stop(self) -> None:
        """Stop the servers of every node and give back what was reserved. Idempotent."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self.instances:
            in_process.unmount(one.host, one.port)
        handles, self._slots = self.handles, []
        try:
            await asyncio.gather(*[end_node_run(handle) for handle in handles])
            if self._head is not None:
                await close_listeners([self._head], grace=0.5)
                self._head = None
                run_token.forget(run_addresses(self.config))
        finally:  # a second Ctrl-C must not leave the resources reserved in the cluster of a trainer
            await self._reservation.release()
            if self._is_connected_here:
                self._is_connected_here = False
                with suppress(DeadlineExceeded):  # the head of the cluster hangs
                    await run_blocking(connection.disconnect, timeout=CALL_SECONDS)
