"""The collector of one node: run the jobs that the driver leases to it, and keep their outcomes until it fetches them.

It lives in the process that runs the servers of the node, so crashes of servers are attributed as on one machine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

from nemo_gym.errors import GymError
from nemo_gym.rollouts.attribution import needed_servers, server_types
from nemo_gym.rollouts.collect import AttemptRules, attempt
from nemo_gym.rollouts.crash_recovery import ServerMonitor
from nemo_gym.rollouts.limit_options import LimitOptions
from nemo_gym.rollouts.node_messages import JobMessage, NodeOutcome, decode_jobs, encode_outcome
from nemo_gym.rollouts.outcome import FailedRollout, Failure, FailureKind, Job, Outcome, Phase
from nemo_gym.rollouts.rollout_sender import rollout_sender
from nemo_gym.rollouts.scoring_rules import scoring_rules
from nemo_gym.rollouts.token_delivery import TokenDelivery
from nemo_gym.server_utils import ServerClient

LINGER_SECONDS = 0.005
"""Time that a reply waits for further outcomes. Rollouts that end together travel together."""
MAX_MESSAGE_BYTES = 16 * 2**20
"""Size from which a message takes no further outcome."""

AttemptJob = Callable[[Job], Awaitable[Outcome]]


class NodeCollector:
    """Runs leased jobs as tasks of the running event loop."""

    def __init__(self, attempt_job: AttemptJob) -> None:
        self._attempt = attempt_job
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._outbox: list[NodeOutcome] = []
        self._has_outcome = asyncio.Event()

    @property
    def running(self) -> int:
        """Number of jobs without an outcome."""
        return len(self._tasks)

    def submit(self, message: JobMessage) -> None:
        """Start the jobs of a message; a ticket that is running already is not started again."""
        for ticket, job in decode_jobs(message):
            if ticket not in self._tasks:
                self._tasks[ticket] = asyncio.create_task(self._run(ticket, job))

    def cancel(self, tickets: Iterable[int]) -> None:
        """Cancel jobs whose outcome is not needed any more, also at the servers."""
        for ticket in tickets:
            task = self._tasks.pop(ticket, None)
            if task is not None:
                task.cancel()

    async def _run(self, ticket: int, job: Job) -> None:
        try:
            outcome = await self._attempt(job)
            encoded = encode_outcome(ticket, outcome)
        except (Exception, asyncio.CancelledError) as error:  # the boundary of a job: the driver waits for its outcome
            if ticket not in self._tasks:
                raise  # `cancel` cancelled it, not something that the job awaited
            failure = Failure(FailureKind.INTERNAL, Phase.DISPATCH, f"the node failed: {error!r}", job.agent)
            encoded = encode_outcome(ticket, FailedRollout(job, failure))
        if self._tasks.pop(ticket, None) is not None:
            self._outbox.append(encoded)
            self._has_outcome.set()

    async def fetch(self, seconds: float) -> list[NodeOutcome]:
        """Return the outcomes since the last call, after at most `seconds`; waits for the first one."""
        if not self._outbox:
            try:
                async with asyncio.timeout(seconds):
                    await self._has_outcome.wait()
            except TimeoutError:
                return []
            if self._tasks:
                await asyncio.sleep(LINGER_SECONDS)
        size = count = 0
        for encoded in self._outbox:
            size += len(encoded.record)
            count += 1
            if size > MAX_MESSAGE_BYTES:
                break
        message = self._outbox[:count]
        del self._outbox[:count]
        if not self._outbox:
            self._has_outcome.clear()
        return message

    async def close(self) -> None:
        """Cancel every job and wait for the end of its task."""
        tasks = list(self._tasks.values())
        self.cancel(list(self._tasks))
        if tasks:
            await asyncio.wait(tasks)


class NodeWorkload:
    """The node collector of an evaluation with its client, limits and token delivery; an asynchronous context."""

    def __init__(self, client: ServerClient, monitor: ServerMonitor, options: Mapping[str, Any]) -> None:
        self._servers = client.global_config_dict
        self._limits = LimitOptions.model_validate(options["limits"])
        self._client = client
        self._monitor = monitor
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        tokens = TokenDelivery.from_config(self._servers)
        if tokens is not None:
            tokens.lock()
            self._stack.callback(tokens.unlock)
        # Captured tokens are delivered in the result and deleted at once: the driver stores results, not this node.
        send = rollout_sender(self._client, self._limits, self._servers, tokens, stored=False)
        rules = AttemptRules(
            server_type=server_types(self._servers),
            scoring=scoring_rules(self._servers),
            rollout_seconds=self._limits.rollout_timeout_seconds,
            max_steps=self._limits.max_steps_per_rollout,
            max_tokens=self._limits.max_tokens_per_rollout,
            needed_servers=needed_servers(self._servers),
            monitor=self._monitor,
        )
        self.collector = NodeCollector(partial(attempt, send=send, rules=rules))
        self._stack.push_async_callback(self.collector.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


def create_workload(client: ServerClient, monitor: ServerMonitor, options: Mapping[str, Any]) -> NodeWorkload:
    """Return the workload of a node; an engine calls this function by its name.

    Raises:
        GymError: the token capture cannot deliver.
    """
    try:
        return NodeWorkload(client, monitor, options)
    except KeyError as error:
        raise GymError(f"the workload has no {error}") from None
