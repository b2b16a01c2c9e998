"""Collecting until the end, or until somebody asks to stop."""

import asyncio

import pytest

from nemo_gym.cli.eval_session import until_stopped


async def test_work_that_ends_is_not_interrupted() -> None:
    """The usual case."""

    async def work() -> int:
        return 7

    assert await until_stopped(work(), asyncio.Event(), lambda: None, 1.0) == (False, 7)


async def test_an_interrupt_lets_the_work_land() -> None:
    """What is in flight finishes, and its result counts."""
    stop, landing = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        stop.set()
        await landing.wait()
        return "landed"

    assert await until_stopped(work(), stop, landing.set, 60.0) == (True, "landed")


async def test_the_grace_period_has_an_end() -> None:
    """A rollout that never ends must not keep the command from ending."""
    stop, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    assert await until_stopped(work(), stop, lambda: None, 0.01) == (True, None)
    assert cleaned.is_set()


async def test_what_the_work_raises_is_raised() -> None:
    """A full disk is not an interrupt."""

    async def work() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await until_stopped(work(), asyncio.Event(), lambda: None, 1.0)


async def test_being_cancelled_cancels_the_work() -> None:
    """A second Ctrl-C ends everything at once, and nothing is left running."""
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    waiting = asyncio.create_task(until_stopped(work(), asyncio.Event(), lambda: None, 60.0))
    await begun.wait()
    waiting.cancel()
    await asyncio.wait({waiting})

    assert waiting.cancelled()
    assert cleaned.is_set()
