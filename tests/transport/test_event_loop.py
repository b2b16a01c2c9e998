"""Writes and wake-ups of one event loop: coalesced, in order, spread over rounds."""

import asyncio
import gc
import itertools
import weakref
from typing import Any, cast

import pytest

from nemo_gym.transport.event_loop import (
    MAX_BUFFERED_BYTES,
    WAKE_UPS_PER_ROUND,
    CoalescingTransport,
    PerLoop,
    WakeUpQueue,
    WriteBatch,
    current_wake_up_queue,
    current_write_batch,
)


class RecordingTransport:
    """Stands for a transport: notes what it is given to write."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.chunks.append(data)

    def close(self) -> None:
        self.closing = True

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


@pytest.fixture
def transports() -> list[Any]:
    return [RecordingTransport(), RecordingTransport()]


async def test_what_the_tasks_of_one_round_write_goes_out_when_all_of_them_have_run(transports: list[Any]) -> None:
    """One system call per message would limit how many rollouts a process can drive."""
    seen: list[int] = []

    async def write(number: int) -> None:
        current_write_batch().put(transports[number % 2], [b"%d" % number])
        seen.append(len(transports[0].chunks) + len(transports[1].chunks))

    await asyncio.gather(*(write(number) for number in range(4)))
    await asyncio.sleep(0)

    assert seen == [0, 0, 0, 0]
    assert [transport.chunks for transport in transports] == [[b"0", b"2"], [b"1", b"3"]]


async def test_data_may_grow_until_it_goes_out_and_is_then_empty(transports: list[Any]) -> None:
    """Data that is added late must be sent exactly once, in order."""
    data = [b"a"]
    current_write_batch().put(transports[0], data)
    data += [b"b", b"c"]
    await asyncio.sleep(0)

    assert transports[0].chunks == [b"abc"]
    assert data == []


async def test_nothing_is_written_to_one_that_hung_up_in_between(transports: list[Any]) -> None:
    """One lost connection must not break the writes of all others."""
    for transport in transports:
        current_write_batch().put(transport, [b"x"])
    transports[0].closing = True
    await asyncio.sleep(0)

    assert [transport.chunks for transport in transports] == [[], [b"x"]]


async def test_the_next_round_has_writes_of_its_own(transports: list[Any]) -> None:
    """A batch that is not renewed would lose every message after the first."""
    for number in range(3):
        current_write_batch().put(transports[0], [b"%d" % number])
        await asyncio.sleep(0)

    assert transports[0].chunks == [b"0", b"1", b"2"]


async def test_every_loop_has_one() -> None:
    """A batch shared by two threads would corrupt both of their connections."""
    assert current_write_batch() is current_write_batch()

    def other() -> WriteBatch:
        async def ask() -> WriteBatch:
            return current_write_batch()

        return asyncio.run(ask())

    assert cast("object", await asyncio.to_thread(other)) is not current_write_batch()


async def test_a_transport_that_gathers_writes_when_the_round_is_over(transports: list[Any]) -> None:
    """And what was given may be changed afterwards: it is what it was then that is written."""
    gathered, changing = CoalescingTransport(transports[0]), bytearray(b"head ")
    gathered.write(changing)
    gathered.write(b"body")
    changing[:] = b"-----"
    assert transports[0].chunks == []
    await asyncio.sleep(0)
    assert transports[0].chunks == [b"head body"]

    gathered.write(b"more")
    await asyncio.sleep(0)
    assert transports[0].chunks == [b"head body", b"more"]


async def test_it_writes_before_it_hangs_up_and_nothing_after(transports: list[Any]) -> None:
    """The last answer of a server would otherwise be lost at shutdown."""
    gathered = CoalescingTransport(transports[0])
    gathered.write(b"last words")
    gathered.close()
    gathered.write(b"too late")
    await asyncio.sleep(0)

    assert transports[0].chunks == [b"last words"]
    assert gathered.is_closing()


async def test_who_writes_much_is_written_at_once(transports: list[Any]) -> None:
    """Otherwise a stream that never waits would be gathered whole, however slowly it is read."""
    gathered = CoalescingTransport(transports[0])
    gathered.write(b"x" * MAX_BUFFERED_BYTES)
    assert transports[0].chunks == []
    gathered.write(b"y")
    assert transports[0].chunks == [b"x" * MAX_BUFFERED_BYTES + b"y"]
    gathered.write(b"z")
    await asyncio.sleep(0)
    assert transports[0].chunks[1:] == [b"z"]


def test_it_is_otherwise_the_transport_it_was_made_from() -> None:
    """Libraries read socket details from it and would fail without them."""

    async def ask() -> str:
        return str(CoalescingTransport(RecordingTransport()).get_extra_info("peer"))  # type: ignore[arg-type]

    assert asyncio.run(ask()) == "the peer"


async def test_a_burst_is_begun_in_order_a_few_in_each_round() -> None:
    """Timers and other servers get their turn in between: that is what keeps a loop from lagging."""
    turns = WakeUpQueue(asyncio.get_running_loop())
    begun: list[int] = []

    for number in range(3 * WAKE_UPS_PER_ROUND + 1):
        turns.put(lambda number=number: begun.append(number))  # type: ignore[misc]
    sizes = [len(begun)]
    while sizes[-1] < 3 * WAKE_UPS_PER_ROUND + 1:
        await asyncio.sleep(0)
        sizes.append(len(begun))

    assert begun == sorted(begun)
    assert sizes[0] == WAKE_UPS_PER_ROUND
    assert max(later - earlier for earlier, later in itertools.pairwise(sizes)) <= WAKE_UPS_PER_ROUND


async def test_who_comes_alone_does_not_wait() -> None:
    """A single rollout must not be slower for it."""
    begun: list[int] = []

    current_wake_up_queue().put(lambda: begun.append(1))

    assert begun == [1]


async def test_who_comes_later_does_not_overtake() -> None:
    """An unfair queue would let some rollouts starve until their deadline."""
    turns = WakeUpQueue(asyncio.get_running_loop())
    begun: list[str] = []
    for _ in range(WAKE_UPS_PER_ROUND + 1):
        turns.put(lambda: begun.append("first"))

    turns.put(lambda: begun.append("last"))
    for _ in range(3):
        await asyncio.sleep(0)

    assert begun == ["first"] * (WAKE_UPS_PER_ROUND + 1) + ["last"]


async def test_a_callback_that_fails_does_not_hold_back_the_others() -> None:
    """The others are replies to calls: without their turn, their callers would wait for the whole deadline."""
    loop = asyncio.get_running_loop()
    problems: list[object] = []
    loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))
    turns, done = WakeUpQueue(loop), asyncio.Event()
    for _ in range(WAKE_UPS_PER_ROUND):
        turns.put(lambda: None)

    turns.put(lambda: 1 // 0)
    turns.put(done.set)

    async with asyncio.timeout(10):
        await done.wait()
    assert isinstance(problems[0], ZeroDivisionError)


async def test_all_who_share_a_loop_share_its_turns() -> None:
    """Separate queues would together wake more tasks per round than the limit allows."""
    assert current_wake_up_queue() is current_wake_up_queue()


class Thing:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)


def test_each_loop_gets_its_own_and_always_the_same():
    """A session or lock of another loop raises errors that are hard to trace."""
    things = PerLoop(Thing)
    loops = [asyncio.new_event_loop() for _ in range(2)]

    made = [things.of(loop) for loop in (loops[0], loops[1], loops[0], loops[1], loops[1])]

    assert [thing.loop() for thing in made] == [loops[0], loops[1], loops[0], loops[1], loops[1]]
    assert len(set(map(id, made))) == 2
    for loop in loops:
        loop.close()


def test_a_loop_that_is_gone_takes_its_thing_with_it():
    """A trainer runs thousands of loops one after the other."""
    things = PerLoop(Thing)
    loop = asyncio.new_event_loop()
    thing = weakref.ref(things.of(loop))
    other = asyncio.new_event_loop()
    things.of(other)
    loop.close()

    del loop
    gc.collect()

    assert thing() is None
    other.close()
