"""Somebody else's coroutine runs beside ours, whatever it does."""

import asyncio
import threading
import time

import pytest

from nemo_gym.cli.apart import apart, on_thread


async def test_what_it_gives_and_what_it_raises_arrive() -> None:
    """As if it had been awaited here."""

    async def works() -> int:
        return 7

    async def fails() -> None:
        raise ValueError("as it was")

    assert await apart(works) == 7
    with pytest.raises(ValueError, match="as it was"):
        await apart(fails)


async def test_what_it_blocks_is_not_our_loop() -> None:
    """A driver that reads from the head server with a blocking call must get its answer from our loop."""
    answered = threading.Event()

    async def blocks() -> bool:
        return answered.wait(20)

    asyncio.get_running_loop().call_later(0.05, answered.set)

    assert await apart(blocks)


async def test_cancelling_cancels_it_there() -> None:
    """Ctrl-C reaches a driver too, and it may clean up."""
    begun, cleaned = threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    task = asyncio.create_task(apart(waits))
    deadline = time.monotonic() + 20
    while not begun.is_set() and time.monotonic() < deadline:  # noqa: ASYNC110 - set by another thread
        await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert cleaned.wait(20)


async def test_what_hangs_on_a_thread_is_left_behind() -> None:
    """A tracker that does not answer must not keep a finished command from ending."""
    release = threading.Event()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(on_thread(release.wait), 0.05)
    release.set()

    assert await on_thread(lambda: 7) == 7
