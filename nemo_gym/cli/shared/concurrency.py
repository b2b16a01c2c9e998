"""Threads, interrupts and cancellation for commands."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from nemo_gym.cli.terminal import output
from nemo_gym.errors import GymError

T = TypeVar("T")

CLEANUP_SECONDS = 5.0
"""Time for a cancelled coroutine to clean up."""


class CommandInterrupted(GymError):
    """The command was interrupted by Ctrl-C or SIGTERM."""

    exit_status = 130


async def cancel_on(
    stop: asyncio.Event, work: Coroutine[Any, Any, T], *, grace: Callable[[], float] = lambda: 0.0
) -> T:
    """Return the result of `work`; if `stop` is set first, cancel it after `grace()` seconds and wait for its cleanup.

    Raises:
        CommandInterrupted: the work was cancelled.
    """
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait({working}, timeout=grace())
    finally:
        stopping.cancel()
        working.cancel()  # no effect on a finished task
        await asyncio.wait({working, stopping})
    if working.cancelled():
        raise CommandInterrupted("interrupted")
    return working.result()


@asynccontextmanager
async def interrupt_event() -> AsyncIterator[asyncio.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; a second signal ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def handle_signal() -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        output.notify("finishing; interrupt again to stop at once")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle_signal)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, so that unfinished files are removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run blocking code on a daemon thread so that it cannot block the event loop or delay exit.

    Cancelling this coroutine abandons the thread.
    """
    return await asyncio.shield(asyncio.wrap_future(_start_thread(work)))


async def run_in_own_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Run the coroutine `work()` on a thread with its own event loop.

    Cancelling this coroutine cancels it there and waits a few seconds for its cleanup.
    """
    import uvloop

    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await work()

    def run_loop() -> T:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    result = asyncio.wrap_future(_start_thread(run_loop))
    try:
        return await asyncio.shield(result)
    except asyncio.CancelledError:
        if started.done():
            loop, task = started.result()
            with suppress(RuntimeError):  # the loop ended meanwhile
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait({result}, timeout=CLEANUP_SECONDS)
        if result.done() and not result.cancelled():
            result.exception()  # marks it as retrieved, so that asyncio does not report it
        raise


def _start_thread(work: Callable[[], T]) -> "Future[T]":
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # the boundary of a thread: the awaiting side raises it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="run_in_thread", daemon=True).start()
    return future
