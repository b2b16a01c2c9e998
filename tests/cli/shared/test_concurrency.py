"""Threads, interrupts and cancellation for commands."""

import asyncio
import signal
import threading
import time

import pytest

from nemo_gym.cli.shared.concurrency import (
    CommandInterrupted,
    cancel_on,
    run_in_own_loop,
    run_in_thread,
    sigterm_as_interrupt,
)


async def wait_for_ever(started: asyncio.Event, cleaned: asyncio.Event) -> None:
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        cleaned.set()


async def test_work_that_ends_returns_its_result() -> None:
    """Without an interrupt, cancel_on changes nothing."""

    async def work() -> int:
        return 7

    assert await cancel_on(asyncio.Event(), work()) == 7


async def test_an_interrupt_cancels_the_work_and_waits_for_its_cleanup() -> None:
    """Ctrl-C while an environment is being built must not wait for the build."""
    stop, cleaned = asyncio.Event(), asyncio.Event()

    with pytest.raises(CommandInterrupted) as raised:
        await cancel_on(stop, wait_for_ever(stop, cleaned))

    assert cleaned.is_set()
    assert raised.value.exit_status == 130


async def test_work_that_ends_within_the_grace_period_returns_its_result() -> None:
    """Rollouts in flight finish after Ctrl-C, and their results count."""
    stop, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        stop.set()
        await may_end.wait()
        return "finished"

    def grace() -> float:
        may_end.set()
        return 60.0

    assert await cancel_on(stop, work(), grace=grace) == "finished"


async def test_the_grace_period_ends() -> None:
    """A rollout that never ends must not keep the command from ending."""
    stop, cleaned = asyncio.Event(), asyncio.Event()

    with pytest.raises(CommandInterrupted):
        await cancel_on(stop, wait_for_ever(stop, cleaned), grace=lambda: 0.01)

    assert cleaned.is_set()


async def test_an_error_of_the_work_is_raised() -> None:
    """A full disk is not an interrupt."""

    async def work() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await cancel_on(asyncio.Event(), work())


async def test_cancelling_the_caller_cancels_the_work() -> None:
    """A second Ctrl-C ends everything at once, and nothing keeps running."""
    started, cleaned = asyncio.Event(), asyncio.Event()
    waiting = asyncio.create_task(cancel_on(asyncio.Event(), wait_for_ever(started, cleaned), grace=lambda: 60.0))
    await started.wait()

    waiting.cancel()
    await asyncio.wait({waiting})

    assert waiting.cancelled()
    assert cleaned.is_set()


async def test_a_coroutine_in_its_own_loop_returns_and_raises_as_usual() -> None:
    """The caller does not notice the other loop."""

    async def succeed() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("as it was")

    assert await run_in_own_loop(succeed) == 7
    with pytest.raises(ValueError, match="as it was"):
        await run_in_own_loop(fail)


async def test_a_coroutine_in_its_own_loop_does_not_block_the_caller_s_loop() -> None:
    """A driver that reads from the head server with a blocking call needs the loop that serves it."""
    event = threading.Event()

    async def block() -> bool:
        return event.wait(20)

    asyncio.get_running_loop().call_later(0.05, event.set)

    assert await run_in_own_loop(block)


async def test_cancelling_reaches_the_coroutine_in_its_own_loop() -> None:
    """Ctrl-C reaches a driver too, and it can clean up."""
    started, cleaned = threading.Event(), threading.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    task = asyncio.create_task(run_in_own_loop(wait))
    deadline = time.monotonic() + 20
    while not started.is_set() and time.monotonic() < deadline:  # noqa: ASYNC110 - set by another thread
        await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert cleaned.wait(20)


async def test_a_thread_that_hangs_is_abandoned() -> None:
    """A tracker that does not answer must not keep a finished command from ending."""
    release = threading.Event()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run_in_thread(release.wait), 0.05)
    release.set()

    assert await run_in_thread(lambda: 7) == 7


def test_sigterm_ends_a_block_like_ctrl_c() -> None:
    """Unfinished files are removed; after the block SIGTERM acts as before."""
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_do_not_handle_signals() -> None:
    """Python allows signal handlers on the main thread only."""
    entered = []

    def work() -> None:
        with sigterm_as_interrupt():
            entered.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert entered == [True]
