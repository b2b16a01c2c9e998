"""Run blocking code from async handlers, on a bounded number of daemon threads and with a deadline."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.transport import deadlines, http_sessions
from nemo_gym.transport.event_loop import PerLoop, SlotQueue

MAX_THREADS = 256
"""Threads of one event loop that run blocking functions, also those whose callers gave up."""

ResultT = TypeVar("ResultT")


class BlockingThreads:
    """The threads of one event loop; a function waits while `MAX_THREADS` run."""

    def __init__(self, _loop: asyncio.AbstractEventLoop) -> None:
        self._running = 0
        self._queue = SlotQueue()

    async def acquire(self) -> None:
        while self._running >= MAX_THREADS:
            await self._queue.wait(self._queue.grant)
        self._running += 1

    def release(self) -> None:
        self._running -= 1
        self._queue.grant()


_threads = PerLoop(BlockingThreads)


async def run_blocking(
    function: Callable[..., ResultT],
    *args: Any,
    timeout: float | None = None,  # noqa: ASYNC109 - the limit of a thread, which a cancellation does not end
    **kwargs: Any,
) -> ResultT:
    """Run a blocking function on a thread, until `timeout` (seconds) or the deadline of the call, whichever is first.

    While `MAX_THREADS` functions run, further ones wait. A function that is still running at its timeout cannot be
    ended: its thread goes on in the background, its result is dropped, and it does not delay the end of the process.

    Raises:
        DeadlineExceeded: the function took too long, or no thread became free.
    """
    loop = asyncio.get_running_loop()
    threads = _threads.of(loop)
    seconds = deadlines.shorter_of(timeout, deadlines.seconds_left())
    is_started = False
    try:
        wait = http_sessions.settings().request_timeout_seconds if seconds is None else seconds
        async with asyncio.timeout(wait) as limit:
            await threads.acquire()
            is_started = True
            result = _start_thread(loop, threads, function, args, kwargs)
            if seconds is None:
                limit.reschedule(None)
            return await result
    except TimeoutError:
        if not limit.expired():  # raised by the function itself
            raise
        name = _name_of(function)
        if is_started:
            raise DeadlineExceeded(f"{name} did not end within {seconds:g} s") from None
        problem = f"{name} was not started: {MAX_THREADS} blocking functions still run, perhaps after their timeout"
        raise DeadlineExceeded(problem, fix="find out why they do not end, or make fewer calls at once") from None


def _start_thread(
    loop: asyncio.AbstractEventLoop,
    threads: BlockingThreads,
    function: Callable[..., ResultT],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> "asyncio.Future[ResultT]":
    """Start a thread that calls the function; return its result as a future of the loop."""
    result: asyncio.Future[ResultT] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(value: Any, error: BaseException | None) -> None:
        threads.release()
        if not result.done():
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(function, *args, **kwargs)
        except BaseException as problem:  # a thread boundary: the caller gets every error
            # A future refuses StopIteration, and SystemExit would end the loop instead of the call.
            error = problem if isinstance(problem, Exception) and not isinstance(problem, StopIteration) else None
            error = error or RuntimeError(f"{_name_of(function)} raised {type(problem).__name__}: {problem}")
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, value, error)

    try:
        threading.Thread(target=run, name=f"blocking-{_name_of(function)}", daemon=True).start()
    except RuntimeError:  # the system has no more threads
        threads.release()
        raise
    return result


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
