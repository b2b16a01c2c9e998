"""Leases hold what the driver promises: every ticket ends once, whatever the nodes do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.rollouts.leases import LeaseTable


def table_with(*names, window=4, **options):
    table = LeaseTable(**options)
    for name in names:
        table.add_node(name, window, 0.0)
    return table


def test_tickets_go_to_the_least_loaded_node():
    """A slow node keeps its leases, so it gets fewer new ones."""
    table = table_with("a", "b")
    for ticket in range(4):
        table.offer(ticket)

    assert {name: len(tickets) for name, tickets in table.grant(0.0).items()} == {"a": 2, "b": 2}

    table.finish(table.grant(0.0).get("a", [0])[0], "a")
    table.offer(10)
    assert list(table.grant(1.0)) == ["a"]


def test_a_full_node_gets_no_more():
    """Back pressure ends at the driver: what no node takes stays queued."""
    table = table_with("a", window=2)
    for ticket in range(5):
        table.offer(ticket)

    assert table.grant(0.0) == {"a": [0, 1]}
    assert table.grant(0.0) == {}
    assert table.queue_length == 3


def test_tickets_of_a_lost_node_come_first():
    """They are the oldest of the run; in their old order."""
    table = table_with("a", "b", window=2)
    for ticket in range(6):
        table.offer(ticket)
    leases = table.grant(0.0)

    assert table.lose_node("a") == []
    table.add_node("a#2", 2, 1.0)

    assert table.grant(1.0) == {"a#2": leases["a"]}


def test_silence_ends_leases_and_a_sign_of_life_renews_them():
    """A node that is cut off must not keep its rollouts."""
    table = table_with("a", "b", lease_seconds=10)
    table.hear("a", 5.0)

    assert table.silent_nodes(12.0) == ["b"]
    assert table.silent_nodes(16.0) == ["a", "b"]


def test_an_outcome_of_a_node_that_was_given_up_counts_once():
    """The node was only slow: its work is not thrown away, and the second outcome changes nothing."""
    table = table_with("a", "b", window=1)
    table.offer(1)
    assert table.grant(0.0) == {"a": [1]}
    table.lose_node("a")
    assert table.grant(0.0) == {"b": [1]}

    assert table.finish(1, "a") == (True, ["b"])
    assert table.finish(1, "b") == (False, [])
    assert (len(table), table.duplicates) == (0, 1)


def test_a_ticket_that_is_lost_with_every_node_is_given_up():
    """A rollout that ends its node must not end all of them, again and again."""
    table = LeaseTable(max_losses=3)
    table.offer(1)
    for number in range(3):
        table.add_node(f"n{number}", 1, 0.0)
        assert table.grant(0.0) == {f"n{number}": [1]}
        assert table.lose_node(f"n{number}") == ([1] if number == 2 else [])
    assert len(table) == 0


def test_the_last_tickets_get_a_copy_on_an_idle_node():
    """The end of a run waits for its slowest node."""
    table = table_with("a", window=200)
    for ticket in range(100):
        table.offer(ticket)
    table.grant(0.0)
    table.add_node("b", 200, 1.0)
    for ticket in range(99):
        table.finish(ticket, "a")

    assert table.copy_late(2.0, planned=101) == {}, "a ticket is still to come"
    assert table.copy_late(2.0, planned=100) == {"b": [99]}
    assert table.copy_late(2.0, planned=100) == {}, "one copy is enough"
    assert table.finish(99, "b") == (True, ["a"])


def test_misuse_is_an_error():
    """A ticket offered twice would be run twice."""
    table = table_with("a")
    table.offer(1)
    with pytest.raises(ValueError, match="open already"):
        table.offer(1)
    with pytest.raises(ValueError, match="leases already"):
        table.add_node("a", 1, 0.0)


class LeasedWorld:
    """A lease table with the processes that run jobs, also on nodes that the table has given up."""

    def __init__(self):
        self.table = LeaseTable(max_losses=1000)
        self.running = set()
        self.ended, self.withdrawn = [], set()
        self.offered = self.born = 0

    def offer(self, _):
        self.table.offer(self.offered)
        self.offered += 1

    def grant(self, _):
        self.begin(self.table.grant(0.0))

    def copy(self, _):
        self.begin(self.table.copy_late(0.0, self.offered))

    def begin(self, grants):
        for name, tickets in grants.items():
            for ticket in tickets:
                assert (name, ticket) not in self.running
                self.running.add((name, ticket))

    def answer(self, number, *, again=False):
        if self.running:
            name, ticket = sorted(self.running)[number % len(self.running)]
            if not again:
                self.running.discard((name, ticket))
            is_first, others = self.table.finish(ticket, name)
            self.ended += [ticket] if is_first else []
            self.running -= {(other, ticket) for other in others}

    def repeat(self, number):
        self.answer(number, again=True)

    def withdraw(self, number):
        if self.offered:
            ticket = number % self.offered
            self.withdrawn |= {ticket} - set(self.ended)
            self.running -= {(name, ticket) for name in self.table.withdraw(ticket)}

    def join(self, number):
        self.table.add_node(f"n{self.born}", 1 + number % 6, 0.0)
        self.born += 1

    def cut_off(self, number):
        """The table gives up a node that runs on and answers later."""
        if self.table.nodes:
            name = sorted(self.table.nodes)[number % len(self.table.nodes)]
            assert self.table.lose_node(name) == []
            return name
        return None

    def kill(self, number):
        name = self.cut_off(number)
        self.running = {pair for pair in self.running if pair[0] != name}


STEPS = ("offer", "offer", "grant", "copy", "answer", "repeat", "withdraw", "join", "cut_off", "kill")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 200)), max_size=120))
def test_every_ticket_ends_exactly_once_in_any_order_of_events(steps):
    """Death, return, late answers, duplicates and copies in any order: nothing is lost and nothing counts twice."""
    world = LeasedWorld()
    table = world.table
    for name, number in steps:
        getattr(world, name)(number)
        for node in table.nodes.values():
            assert len(node.tickets) <= node.window
            assert {(node.name, ticket) for ticket in node.tickets} <= world.running

    table.add_node("last", 10_000, 0.0)
    for name in [name for name in table.nodes if name != "last"]:
        table.lose_node(name)
    for ticket in table.grant(0.0).get("last", []):
        assert table.finish(ticket, "last")[0]
        world.ended.append(ticket)

    assert sorted(world.ended) == sorted(set(range(world.offered)) - world.withdrawn)
    assert len(table) == table.queue_length == 0
