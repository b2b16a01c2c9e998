"""Threads, interrupts and cancellation for commands."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
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
    stop: asyncio.Event, coroutine: Coroutine[Any, Any, T], *, grace: Callable[[], float] = lambda: 0.0
) -> T:
    """Return the result of `coroutine`; if `stop` is set first, cancel it after `grace()` seconds and wait for its end.

    Raises:
        CommandInterrupted: the coroutine was cancelled.
    """
    task, stop_wait = asyncio.create_task(coroutine), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stop_wait}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=grace())
    finally:
        stop_wait.cancel()
        task.cancel()  # no effect on a finished task
        await asyncio.wait({task, stop_wait})
    if task.cancelled():
        raise CommandInterrupted("interrupted")
    return task.result()


@asynccontextmanager
async def interrupt_event() -> AsyncIterator[asyncio.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; a second signal raises KeyboardInterrupt."""
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
    """Raise KeyboardInterrupt on SIGTERM while the block runs, so that unfinished files are removed."""
    if threading.current_thread() is not threading.main_thread():  # only that thread can set signal handlers
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


async def run_in_thread(function: Callable[[], T]) -> T:
    """Run blocking code on a daemon thread so that it cannot block the event loop or delay exit.

    Cancelling the caller abandons the thread.
    """
    return await asyncio.shield(asyncio.wrap_future(_start_thread(function)))


async def run_in_own_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Run the coroutine `function()` on a thread with its own event loop.

    Cancelling the caller cancels that coroutine and waits up to CLEANUP_SECONDS for its end.
    """
    import uvloop

    loop_and_task: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop_and_task.set_result((asyncio.get_running_loop(), task))
        return await function()

    def run_loop() -> T:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    result = asyncio.wrap_future(_start_thread(run_loop))
    try:
        return await asyncio.shield(result)
    except asyncio.CancelledError:
        if loop_and_task.done():
            loop, task = loop_and_task.result()
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait({result}, timeout=CLEANUP_SECONDS)
        if result.done() and not result.cancelled():
            result.exception()  # marks the exception as retrieved, so that asyncio does not log it
        raise


def _start_thread(function: Callable[[], T]) -> "Future[T]":
    """Run `function` on a daemon thread and return the future of its result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # the boundary of a thread: the awaiting coroutine raises it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="run_in_thread", daemon=True).start()
    return future
