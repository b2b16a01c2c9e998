"""Node leases: which node runs which rollout, without a clock, a socket or an event loop.

A ticket is an attempt of a rollout that the driver waits for. It is queued until a node with room takes a lease of it,
and open until its first outcome. The leases of a node end when the node is lost or has not been heard from for
`lease_seconds`; its open tickets are queued again, first in line. A ticket may have leases on several nodes (a late
node that returns, a speculative copy): the first outcome counts, every later one is reported as a duplicate.
"""

from collections import deque
from dataclasses import dataclass, field

LEASE_SECONDS = 60.0
"""Longest silence of a node. Nodes answer every few seconds, also while their rollouts take hours."""
MAX_LOSSES = 5
"""Number of nodes that may be lost with one ticket before it is given up: the rollout may be what ends them."""
SPECULATIVE_SHARE = 0.01
"""Share of a run's tickets, counted from the end, that may get a second lease."""


@dataclass
class NodeLeases:
    """The leases of one node."""

    name: str
    window: int
    """Maximum leases; back pressure: a node that answers slowly gets no more."""
    heard_at: float
    tickets: dict[int, float] = field(default_factory=dict)
    """Ticket -> time of its lease."""

    @property
    def room(self) -> int:
        return max(0, self.window - len(self.tickets))


@dataclass
class _OpenTicket:
    nodes: set[str] = field(default_factory=set)
    losses: int = 0
    is_queued: bool = True
    is_copied: bool = False
    """True if it has had a speculative lease: there is one at most."""


class LeaseTable:
    """The open tickets and the leases of all nodes. A lease costs a look at every node, all else constant time."""

    def __init__(self, *, lease_seconds: float = LEASE_SECONDS, max_losses: int = MAX_LOSSES) -> None:
        self._lease_seconds = lease_seconds
        self._max_losses = max_losses
        self._queue: deque[int] = deque()
        self._open: dict[int, _OpenTicket] = {}
        self.nodes: dict[str, NodeLeases] = {}
        self.offered = 0
        """Tickets offered so far."""
        self.duplicates = 0
        """Outcomes of tickets that had an outcome already."""
        self.lost_leases = 0
        """Leases that ended with their node or by silence."""
        self.copies = 0
        """Speculative leases."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def queue_length(self) -> int:
        """Number of open tickets without a lease."""
        return sum(ticket in self._open and self._open[ticket].is_queued for ticket in self._queue)

    def offer(self, ticket: int) -> None:
        """Queue a new ticket."""
        if ticket in self._open:
            raise ValueError(f"ticket {ticket} is open already")
        self._open[ticket] = _OpenTicket()
        self._queue.append(ticket)
        self.offered += 1

    def add_node(self, name: str, window: int, now: float) -> None:
        """Let a node take leases. A node that returns after a loss has a new name."""
        if name in self.nodes:
            raise ValueError(f"node {name} has leases already")
        self.nodes[name] = NodeLeases(name, window, now)

    def hear(self, name: str, now: float) -> None:
        """Note a sign of life, which renews the leases of a node."""
        node = self.nodes.get(name)
        if node is not None:
            node.heard_at = now

    def extend(self, seconds: float, now: float) -> None:
        """Renew all leases by a time in which this process did not run: no node could be heard."""
        for node in self.nodes.values():
            node.heard_at = min(now, node.heard_at + seconds)

    def grant(self, now: float) -> dict[str, list[int]]:
        """Lease queued tickets to the nodes with the fewest leases, and return the new leases by node."""
        grants: dict[str, list[int]] = {}
        while self._queue:
            ticket = self._queue[0]
            state = self._open.get(ticket)
            if state is None or not state.is_queued:  # withdrawn, or finished by a node that was given up
                self._queue.popleft()
                continue
            node = self._least_loaded(state.nodes)
            if node is None:
                break
            self._queue.popleft()
            self._lease(ticket, node, now)
            grants.setdefault(node.name, []).append(ticket)
        return grants

    def _least_loaded(self, other_than: set[str]) -> NodeLeases | None:
        nodes = [node for node in self.nodes.values() if node.room and node.name not in other_than]
        return min(nodes, key=lambda node: len(node.tickets), default=None)

    def _lease(self, ticket: int, node: NodeLeases, now: float) -> None:
        state = self._open[ticket]
        state.is_queued = False
        state.nodes.add(node.name)
        node.tickets[ticket] = now

    def finish(self, ticket: int, node: str) -> tuple[bool, list[str]]:
        """Record an outcome; return whether it is the first one, and the other nodes that still run the ticket."""
        holder = self.nodes.get(node)
        if holder is not None:
            holder.tickets.pop(ticket, None)
        state = self._open.pop(ticket, None)
        if state is None:
            self.duplicates += 1
            return False, []
        return True, self._release(ticket, state.nodes - {node})

    def drop_copy(self, ticket: int, node: str) -> bool:
        """End the lease of a node that failed, if another node still runs the ticket; return whether one does."""
        state, holder = self._open.get(ticket), self.nodes.get(node)
        if state is None or holder is None or not state.nodes - {node}:
            return False
        holder.tickets.pop(ticket, None)
        state.nodes.discard(node)
        return True

    def withdraw(self, ticket: int) -> list[str]:
        """Close a ticket whose outcome is not needed; return the nodes that run it."""
        state = self._open.pop(ticket, None)
        return [] if state is None else self._release(ticket, state.nodes)

    def _release(self, ticket: int, names: set[str]) -> list[str]:
        """End the leases of a closed ticket; return the nodes that had one."""
        holders = [self.nodes[name] for name in sorted(names) if name in self.nodes]
        return [node.name for node in holders if node.tickets.pop(ticket, None) is not None]

    def lose_node(self, name: str) -> list[int]:
        """End all leases of a node and queue its tickets again, first in line; return the tickets that are given up.

        A ticket that was lost with `max_losses` nodes is closed: its rollout may be what ends them.
        """
        node = self.nodes.pop(name, None)
        given_up = []
        for ticket in reversed(node.tickets if node is not None else {}):
            state = self._open[ticket]
            self.lost_leases += 1
            state.nodes.discard(name)
            state.losses += 1
            if state.nodes:  # a copy runs elsewhere
                continue
            if state.losses >= self._max_losses:
                del self._open[ticket]
                given_up.append(ticket)
                continue
            state.is_queued = True
            self._queue.appendleft(ticket)
        return given_up

    def silent_nodes(self, now: float) -> list[str]:
        """Return the nodes whose leases have expired."""
        return [node.name for node in self.nodes.values() if now - node.heard_at > self._lease_seconds]

    def copy_late(self, now: float, planned: int) -> dict[str, list[int]]:
        """Lease the last tickets of a run a second time, the oldest first, and return the new leases by node.

        `planned` is the number of tickets of the run. Only nodes without a lease of a ticket take a copy of it, and
        only if they have fewer leases than the node that runs it.
        """
        allowed = max(1, int(planned * SPECULATIVE_SHARE))
        if self._queue or self.offered < planned or len(self._open) > allowed:
            return {}
        grants: dict[str, list[int]] = {}
        late = [(one, ticket) for ticket, one in self._open.items() if len(one.nodes) == 1 and not one.is_copied]
        single = [(self.nodes[min(one.nodes)], ticket) for one, ticket in late]
        for holder, ticket in sorted(single, key=lambda pair: pair[0].tickets[pair[1]]):
            node = self._least_loaded({holder.name})
            if node is None or len(node.tickets) >= len(holder.tickets):
                continue
            self._lease(ticket, node, now)
            self._open[ticket].is_copied = True
            self.copies += 1
            grants.setdefault(node.name, []).append(ticket)
        return grants
