"""Run blocking code from async handlers, on daemon threads and with a deadline."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.transport import deadlines

ResultT = TypeVar("ResultT")


async def run_blocking(
    function: Callable[..., ResultT],
    *args: Any,
    timeout: float | None = None,  # noqa: ASYNC109 - the limit of a thread, which a cancellation does not end
    **kwargs: Any,
) -> ResultT:
    """Run a blocking function on a thread, until `timeout` (seconds) or the deadline of the call, whichever is first.

    A function that is still running then cannot be ended: its thread goes on in the background, its result is dropped,
    and it does not delay the end of the process.

    Raises:
        DeadlineExceeded: the function took too long.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[ResultT] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(value: Any, error: BaseException | None) -> None:
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

    threading.Thread(target=run, name=f"blocking-{_name_of(function)}", daemon=True).start()
    seconds = deadlines.shorter_of(timeout, deadlines.seconds_left())
    try:
        async with asyncio.timeout(seconds) as limit:
            return await result
    except TimeoutError:
        if not limit.expired():  # raised by the function itself
            raise
        raise DeadlineExceeded(f"{_name_of(function)} did not end within {seconds:g} s") from None


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
