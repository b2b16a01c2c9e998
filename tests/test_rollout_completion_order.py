"""Results in the order they come in."""

import asyncio

import pytest

from nemo_gym.rollouts.collect import in_completion_order

pytestmark = pytest.mark.asyncio


def stream_of(rows, send):
    async def send_one(row):
        return row, await send(row)

    return in_completion_order(map(send_one, rows))


def gates(count):
    return [asyncio.Event() for _ in range(count)]


async def test_results_come_in_the_order_they_are_finished():
    """A trainer starts with the first results instead of waiting for the slowest."""
    opened = gates(3)

    async def send(row):
        await opened[row["n"]].wait()
        return row["n"] * 10

    stream = stream_of([{"n": n} for n in range(3)], send)
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
    for awaitable in stream_of([{"n": n} for n in range(4)], send):
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

    results = await asyncio.gather(*stream_of([{"n": n} for n in range(20)], send))

    assert sorted(result for _, result in results) == list(range(20))


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

    stream = stream_of([{"n": n} for n in range(2)], send)
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

    stream = stream_of([{"n": n} for n in range(2)], send)
    given_up = asyncio.ensure_future(next(stream))
    given_up.cancel()
    opened[0].set()
    _, result = await next(stream)

    assert result == 0


async def test_no_rows_give_no_awaitables():
    """An empty batch must not hang."""
    assert list(in_completion_order([])) == []
