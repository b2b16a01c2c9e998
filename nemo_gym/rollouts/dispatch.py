"""Run the attempts of a collection on several nodes: lease them, wait for outcomes, lease those of lost nodes again.

The driver keeps plan, journal and report. `LeaseDispatcher.attempt` has the interface of `collect.attempt`: it returns
when the outcome of a job has arrived from some node. A node is anything with the methods of `NodeLink`.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from nemo_gym.metrics.latency import LatencyHistogram
from nemo_gym.rollouts.collect import InFlight, Observer
from nemo_gym.rollouts.leases import LEASE_SECONDS, LeaseTable
from nemo_gym.rollouts.node_messages import FAILED, JobMessage, NodeOutcome, encode_jobs
from nemo_gym.rollouts.outcome import CancelledRollout, FailedRollout, Failure, FailureKind, Job, Outcome, Phase

logger = logging.getLogger("nemo_gym.rollouts")

NODE_WORKLOAD = "nemo_gym.rollouts.node_collector:create_workload"
"""What each node runs beside its servers."""
POLL_SECONDS = 5.0
"""Longest wait of a node for an outcome before it answers without one, which renews its leases."""
TICK_SECONDS = 1.0
"""Interval between checks for expired leases and for late rollouts."""
WINDOW_FACTOR = 2
"""Leases of a node at most, as a multiple of its share of the concurrency: fast nodes take what slow ones leave."""


class NodeLink(Protocol):
    """The driver's end of a node collector. A method raises an exception when the node is lost."""

    @property
    def name(self) -> str:
        """A name that no earlier run of the node has used."""
        ...

    async def submit(self, jobs: JobMessage, cancelled: Sequence[int]) -> None:
        """Start jobs, and cancel those whose outcome is not needed."""
        ...

    async def fetch(self, seconds: float) -> Sequence[NodeOutcome]:
        """Return the outcomes since the last call; wait up to `seconds` for the first one."""
        ...


@dataclass
class NodeStatistics:
    """What the report says about a node."""

    name: str
    outcomes: int = 0
    lost_rollouts: int = 0
    """Rollouts that were in flight when the node was lost, and ran elsewhere."""
    loss: str | None = None
    """Why the node was lost; None if it was not."""
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    in_flight: int = 0


class WorkloadPool(Protocol):
    """The nodes of a run that can run a workload (an engine's `ServerPool`)."""

    async def open_workload(
        self,
        factory: str,
        options: Mapping[str, Any],
        on_join: Callable[[NodeLink], None],
        on_end: Callable[[Exception], None],
    ) -> None: ...

    def report_loss(self, name: str, reason: str) -> None: ...


class _Node:
    """A node with the messages that wait to be sent to it."""

    def __init__(self, link: NodeLink) -> None:
        self.link = link
        self.granted: list[int] = []
        self.cancelled: list[int] = []
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


@dataclass(frozen=True, kw_only=True)
class LeaseOptions:
    """The options of one collection on several nodes."""

    concurrency: int
    planned: int = 0
    """Number of rollouts of the run."""
    is_speculative: bool = False
    """Run the last rollouts also on an idle node."""
    lease_seconds: float = LEASE_SECONDS
    limits: Mapping[str, Any] = field(default_factory=dict)
    """The fields of `LimitOptions`, by which nodes send and classify rollouts."""


class LeaseDispatcher:
    """Leases attempts to nodes. Use it as an asynchronous context, on one event loop."""

    def __init__(
        self,
        options: LeaseOptions,
        in_flight: InFlight | None = None,
        *,
        on_lost: Callable[[str, str], None] = lambda _name, _reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_lost` is called with the name of a lost node and the reason."""
        self.table = LeaseTable(lease_seconds=options.lease_seconds)
        self.statistics: dict[str, NodeStatistics] = {}
        self.messages = 0
        """Messages sent to nodes, and answers with outcomes."""
        self._options = options
        self._in_flight = in_flight if in_flight is not None else InFlight()
        self._on_lost, self._clock = on_lost, clock
        self._nodes: dict[str, _Node] = {}
        self._waiting: dict[int, tuple[Job, asyncio.Future[Outcome]]] = {}
        self._next_ticket = 0
        self._is_grant_due = False
        self._problem: Exception | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [self._ticking, *(node.task for node in self._nodes.values())]
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)
        self._nodes.clear()

    def add_node(self, link: NodeLink) -> None:
        """Lease jobs to a node from now on."""
        node = self._nodes[link.name] = _Node(link)
        self.table.add_node(link.name, 1, self._clock())
        self.statistics[link.name] = NodeStatistics(link.name)
        self._share_concurrency()
        node.task = asyncio.create_task(self._serve(node))
        self._grant_soon()

    def lose_node(self, name: str, reason: str) -> None:
        """Lease the jobs of a node to others; do nothing if the node is not known."""
        node = self._nodes.pop(name, None)
        if node is None:
            return
        statistics = self.statistics[name]
        statistics.loss, statistics.lost_rollouts = reason, len(self.table.nodes[name].tickets)
        given_up = self.table.lose_node(name)
        logger.warning("node %s is lost: %s; %d rollouts run again elsewhere", name, reason, statistics.lost_rollouts)
        for ticket in given_up:
            self._give_up(ticket, name, reason)
        if node.task is not None and node.task is not asyncio.current_task():
            node.task.cancel()
        self._share_concurrency()
        self._grant_soon()
        self._on_lost(name, reason)

    def fail(self, problem: Exception) -> None:
        """End every attempt, also future ones, with an error: no node is left."""
        self._problem = problem
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(problem)

    def current_statistics(self) -> list[NodeStatistics]:
        """Return the statistics of every node, with the number of rollouts in flight there."""
        for name, statistics in self.statistics.items():
            leases = self.table.nodes.get(name)
            statistics.in_flight = len(leases.tickets) if leases is not None else 0
        return list(self.statistics.values())

    async def attempt(self, job: Job, on_cancel: Iterable[Observer] = ()) -> Outcome:
        """Run a job on some node and return its outcome, like `collect.attempt`."""
        ticket = self._next_ticket
        self._next_ticket += 1
        try:
            self._in_flight.begin(job)
            try:
                if self._problem is not None:
                    raise self._problem
                future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
                self._waiting[ticket] = (job, future)
                self.table.offer(ticket)
                self._grant_soon()
                return await future
            finally:
                self._in_flight.end(job)
        except asyncio.CancelledError:
            for name in self.table.withdraw(ticket):
                self._cancel_at(name, ticket)
            for observer in on_cancel:
                observer(CancelledRollout(job))
            raise
        finally:
            self._waiting.pop(ticket, None)

    def _share_concurrency(self) -> None:
        window = max(1, math.ceil(WINDOW_FACTOR * self._options.concurrency / max(1, len(self.table.nodes))))
        for leases in self.table.nodes.values():
            leases.window = window

    def _grant_soon(self) -> None:
        """Lease queued tickets when the callbacks that are due have run, so that they travel in one message."""
        if not self._is_grant_due:
            self._is_grant_due = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._is_grant_due = False
        self._send(self.table.grant(self._clock()))

    def _send(self, grants: dict[str, list[int]]) -> None:
        for name, tickets in grants.items():
            node = self._nodes[name]
            node.granted += tickets
            node.wake.set()

    def _cancel_at(self, name: str, ticket: int) -> None:
        node = self._nodes.get(name)
        if node is not None:
            node.cancelled.append(ticket)
            node.wake.set()

    async def _serve(self, node: _Node) -> None:
        """Exchange messages with a node until it is lost."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._submit_jobs(node))
                tasks.create_task(self._fetch_outcomes(node))
        except* Exception as group:  # the boundary of a node: it may fail in any way
            self.lose_node(node.link.name, str(group.exceptions[0]) or repr(group.exceptions[0]))

    async def _submit_jobs(self, node: _Node) -> None:
        while True:
            await node.wake.wait()
            node.wake.clear()
            granted, cancelled, node.granted, node.cancelled = node.granted, node.cancelled, [], []
            needed = [ticket for ticket in granted if ticket in self._waiting and ticket not in cancelled]
            jobs = [(ticket, self._waiting[ticket][0]) for ticket in needed]
            if jobs or cancelled:
                self.messages += 1
                await node.link.submit(encode_jobs(jobs), cancelled)

    async def _fetch_outcomes(self, node: _Node) -> None:
        while True:
            outcomes = await node.link.fetch(POLL_SECONDS)
            self.messages += bool(outcomes)
            self.table.hear(node.link.name, self._clock())
            for outcome in outcomes:
                self._finish(node.link.name, outcome)
            if outcomes:
                self._grant_soon()

    def _finish(self, name: str, outcome: NodeOutcome) -> None:
        """Answer the attempt of a ticket, unless another node was first."""
        statistics, leases = self.statistics[name], self.table.nodes.get(name)
        leased_at = leases.tickets.get(outcome.ticket) if leases is not None else None
        if outcome.kind == FAILED and self.table.drop_copy(outcome.ticket, name):
            return  # of two copies, one that fails must not end the other
        is_first, others = self.table.finish(outcome.ticket, name)
        for other in others:
            self._cancel_at(other, outcome.ticket)
        waiting = self._waiting.get(outcome.ticket)
        if not is_first or waiting is None or waiting[1].done():
            return
        statistics.outcomes += 1
        if leased_at is not None:
            statistics.latency.add(self._clock() - leased_at)
        job, future = waiting
        try:
            future.set_result(outcome.outcome_of(job))
        except (ValueError, KeyError, TypeError) as error:  # a record that this version cannot read
            message = f"node {name} sent an outcome that cannot be read: {error}"
            failure = Failure(FailureKind.INTERNAL, Phase.DISPATCH, message, job.agent)
            future.set_result(FailedRollout(job, failure))

    def _give_up(self, ticket: int, name: str, reason: str) -> None:
        """Answer the attempt of a ticket that was lost with too many nodes."""
        waiting = self._waiting.get(ticket)
        if waiting is not None and not waiting[1].done():
            job, future = waiting
            message = f"every node that ran it was lost, at last {name}: {reason}"
            failure = Failure(FailureKind.SERVER_DIED, Phase.DISPATCH, message, job.agent)
            future.set_result(FailedRollout(job, failure))

    async def _tick(self) -> None:
        """Periodically end expired leases, and copy late rollouts to idle nodes."""
        before = self._clock()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock()
            self.table.extend(max(0.0, now - before - TICK_SECONDS), now)  # this process was stopped, or too busy
            before = now
            for name in self.table.silent_nodes(now):
                self.lose_node(name, "no answer within the time of its leases")
            if self._options.is_speculative:
                with suppress(KeyError):  # a node was lost meanwhile
                    self._send(self.table.copy_late(now, self._options.planned))


@asynccontextmanager
async def dispatching(
    pool: WorkloadPool | None, options: LeaseOptions, in_flight: InFlight
) -> AsyncIterator[LeaseDispatcher | None]:
    """Yield the dispatcher for the nodes of a pool, which run node collectors; None without a pool."""
    if pool is None:
        yield None
        return
    async with LeaseDispatcher(options, in_flight, on_lost=pool.report_loss) as dispatcher:
        await pool.open_workload(NODE_WORKLOAD, {"limits": options.limits}, dispatcher.add_node, dispatcher.fail)
        yield dispatcher
