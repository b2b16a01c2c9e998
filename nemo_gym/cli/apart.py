"""Work on a thread of its own, so that what it blocks is not our event loop, and what hangs does not keep us here."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

import uvloop

T = TypeVar("T")

LAST_SECONDS = 5.0
"""How long a coroutine may take to clean up after it was cancelled."""


async def on_thread(work: Callable[[], T]) -> T:
    """What `work()` gives. Cancelling leaves it behind: its thread does not keep the process from ending."""
    return await asyncio.shield(asyncio.wrap_future(_begun(work)))


async def apart(work: Callable[[], Awaitable[T]]) -> T:
    """What the coroutine `work()` gives, on an event loop of its own.

    Cancelling cancels it there and waits for its end, but not for ever.
    """
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def inside() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await work()

    def on_a_loop() -> T:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(inside())

    ending = asyncio.wrap_future(_begun(on_a_loop))
    try:
        return await asyncio.shield(ending)
    except asyncio.CancelledError:
        if begun.done():
            loop, task = begun.result()
            with suppress(RuntimeError):  # it ended this moment
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait({ending}, timeout=LAST_SECONDS)
        if ending.done() and not ending.cancelled():
            ending.exception()  # looked at, so that nobody reports it as lost
        raise


def _begun(work: Callable[[], T]) -> "Future[T]":
    """The future of work that is being done on a thread that nobody has to wait for."""
    ended: Future[T] = Future()

    def thread() -> None:
        try:
            given = work()
        except BaseException as error:  # the boundary of a thread: whoever awaits gets it
            ended.set_exception(error)
        else:
            ended.set_result(given)

    threading.Thread(target=thread, name="apart", daemon=True).start()
    return ended
