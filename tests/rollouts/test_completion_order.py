"""Results in the order they come in."""

import asyncio

import pytest

from nemo_gym.rollouts.completion_order import in_completion_order

pytestmark = pytest.mark.asyncio


def gates(count):
    return [asyncio.Event() for _ in range(count)]


async def test_results_come_in_the_order_they_are_finished():
    """A trainer starts with the first results instead of waiting for the slowest."""
    opened = gates(3)

    async def send(row):
        await opened[row["n"]].wait()
        return row["n"] * 10

    stream = in_completion_order([{"n": n} for n in range(3)], send, at_once=3)
    got = []
    for expected, awaitable in zip((2, 0, 1), stream, strict=False):
        opened[expected].set()
        row, result = await awaitable
        got.append((row["n"], result))

    assert got == [(2, 20), (0, 0), (1, 10)]


async def test_a_failure_is_raised_where_it_belongs_and_nowhere_else():
    """Trainers decide per row; one failed `/run` used to end the whole batch."""

    async def send(row):
        if row["n"] == 1:
            raise ConnectionError("no agent")
        return "fine"

    good, bad = [], []
    for awaitable in in_completion_order([{"n": n} for n in range(4)], send, at_once=2):
        try:
            row, _ = await awaitable
            good.append(row["n"])
        except ConnectionError as error:
            bad.append(str(error))

    assert (sorted(good), bad) == ([0, 2, 3], ["no agent"])


async def test_all_awaitables_can_be_taken_at_once():
    """`asyncio.gather(*helper.run_examples(...))` is a common idiom."""

    async def send(row):
        await asyncio.sleep(0)
        return row["n"]

    results = await asyncio.gather(*in_completion_order([{"n": n} for n in range(20)], send, at_once=3))

    assert sorted(result for _, result in results) == list(range(20))


async def test_no_more_rows_are_in_flight_than_allowed():
    """The model server decides how much load it takes."""
    flying = most = 0

    async def send(row):
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1

    for awaitable in in_completion_order([{}] * 30, send, at_once=4):
        await awaitable

    assert most == 4


async def test_leaving_early_cancels_what_is_in_flight():
    """A trainer that stops at its time limit must not leave requests running."""
    cancelled = asyncio.Event()

    async def send(row):
        if row["n"] == 0:
            return "first"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    stream = in_completion_order([{"n": n} for n in range(2)], send, at_once=2)
    await next(stream)
    await asyncio.sleep(0)
    stream.close()

    async with asyncio.timeout(5):
        await cancelled.wait()


async def test_the_result_of_a_cancelled_awaitable_goes_to_the_next():
    """A finished rollout must not be lost."""
    opened = gates(1)

    async def send(row):
        await opened[0].wait()
        return row["n"]

    stream = in_completion_order([{"n": n} for n in range(2)], send, at_once=2)
    given_up = next(stream)
    given_up.cancel()
    opened[0].set()
    _, result = await next(stream)

    assert result == 0


async def test_no_rows_give_no_awaitables():
    """An empty batch must not hang."""
    assert list(in_completion_order([], None, at_once=5)) == []
