"""Writes of one round of the loop: together, in order, and only to who is still there."""

import asyncio
from typing import Any, cast

import pytest

from nemo_gym.net.outbox import Outbox, current_outbox


class Written:
    """Stands for a transport: notes what it is given to write."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.chunks.append(data)


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
