"""Writes of one round of the loop: together, in order, and only to who is still there."""

import asyncio
from typing import Any, cast

import pytest

from nemo_gym.net.outbox import MOST_UNSENT, Gathered, Outbox, current_outbox


class Written:
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
    return [Written(), Written()]


async def test_what_the_tasks_of_one_round_write_goes_out_when_all_of_them_have_run(transports: list[Any]) -> None:
    seen: list[int] = []

    async def write(number: int) -> None:
        current_outbox().put(transports[number % 2], [b"%d" % number])
        seen.append(len(transports[0].chunks) + len(transports[1].chunks))

    await asyncio.gather(*(write(number) for number in range(4)))
    await asyncio.sleep(0)

    assert seen == [0, 0, 0, 0]
    assert [transport.chunks for transport in transports] == [[b"0", b"2"], [b"1", b"3"]]


async def test_data_may_grow_until_it_goes_out_and_is_then_empty(transports: list[Any]) -> None:
    data = [b"a"]
    current_outbox().put(transports[0], data)
    data += [b"b", b"c"]
    await asyncio.sleep(0)

    assert transports[0].chunks == [b"abc"]
    assert data == []


async def test_nothing_is_written_to_one_that_hung_up_in_between(transports: list[Any]) -> None:
    for transport in transports:
        current_outbox().put(transport, [b"x"])
    transports[0].closing = True
    await asyncio.sleep(0)

    assert [transport.chunks for transport in transports] == [[], [b"x"]]


async def test_the_next_round_has_writes_of_its_own(transports: list[Any]) -> None:
    for number in range(3):
        current_outbox().put(transports[0], [b"%d" % number])
        await asyncio.sleep(0)

    assert transports[0].chunks == [b"0", b"1", b"2"]


async def test_every_loop_has_one() -> None:
    assert current_outbox() is current_outbox()

    def other() -> Outbox:
        async def ask() -> Outbox:
            return current_outbox()

        return asyncio.run(ask())

    assert cast("object", await asyncio.to_thread(other)) is not current_outbox()


async def test_a_transport_that_gathers_writes_when_the_round_is_over(transports: list[Any]) -> None:
    """And what was given may be changed afterwards: it is what it was then that is written."""
    gathered, changing = Gathered(transports[0]), bytearray(b"head ")
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
    gathered = Gathered(transports[0])
    gathered.write(b"last words")
    gathered.close()
    gathered.write(b"too late")
    await asyncio.sleep(0)

    assert transports[0].chunks == [b"last words"]
    assert gathered.is_closing()


async def test_who_writes_much_is_written_at_once(transports: list[Any]) -> None:
    """Otherwise a stream that never waits would be gathered whole, however slowly it is read."""
    gathered = Gathered(transports[0])
    gathered.write(b"x" * MOST_UNSENT)
    assert transports[0].chunks == []
    gathered.write(b"y")
    assert transports[0].chunks == [b"x" * MOST_UNSENT + b"y"]
    gathered.write(b"z")
    await asyncio.sleep(0)
    assert transports[0].chunks[1:] == [b"z"]


def test_it_is_otherwise_the_transport_it_was_made_from() -> None:
    async def ask() -> str:
        return str(Gathered(Written()).get_extra_info("peer"))  # type: ignore[arg-type]

    assert asyncio.run(ask()) == "the peer"
