"""Blocking code runs on threads that can neither block the loop nor outlive the deadline of the call."""

import asyncio
import threading
import time
from contextvars import ContextVar

import pytest

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.serve import blocking
from nemo_gym.serve.blocking import run_blocking
from nemo_gym.transport import deadlines

request_name: ContextVar[str] = ContextVar("request_name", default="none")


async def test_the_result_and_the_error_reach_the_caller() -> None:
    """A blocking environment behaves as if it were called directly."""
    assert await run_blocking(sorted, [2, 1], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        await run_blocking(lambda: 1 / 0)


@pytest.mark.parametrize("error", [StopIteration("end"), SystemExit(3), KeyboardInterrupt()])
async def test_an_error_that_a_future_cannot_hold_is_an_error_of_the_call(error: BaseException) -> None:
    """A package that calls sys.exit() must not leave its caller waiting."""

    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        await run_blocking(fail)


async def test_the_loop_runs_meanwhile_and_the_context_is_the_callers() -> None:
    """Other rollouts go on; calls made by the function carry the rollout and the deadline of the caller."""
    started, released = threading.Event(), threading.Event()
    request_name.set("ada")

    def block() -> str:
        started.set()
        assert released.wait(10)
        return request_name.get()

    work = asyncio.create_task(run_blocking(block))
    assert await asyncio.to_thread(started.wait, 10)
    released.set()

    assert await work == "ada"


async def test_a_function_that_hangs_ends_its_call_at_the_timeout() -> None:
    """Threads cannot be ended; the call must end nevertheless, and the thread must not hold up the process."""
    released = threading.Event()
    start = time.monotonic()
    try:
        with pytest.raises(DeadlineExceeded, match=r"did not end within 0\.05 s"):
            await run_blocking(released.wait, 30, timeout=0.05)
        with deadlines.time_limit(0.05), pytest.raises(DeadlineExceeded):
            await run_blocking(released.wait, 30, timeout=20)
        assert time.monotonic() - start < 10
        assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("blocking-"))
    finally:
        released.set()


async def test_a_timeout_of_the_function_itself_is_passed_on() -> None:
    """`TimeoutError` is also what sockets raise."""

    def fail() -> None:
        raise TimeoutError("the socket")

    with pytest.raises(TimeoutError, match="the socket"):
        await run_blocking(fail, timeout=5)


async def test_functions_that_never_end_cannot_use_up_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging tool left one thread for every call, until the machine had none; further calls must say why."""
    monkeypatch.setattr(blocking, "MAX_THREADS", 3)
    released = threading.Event()
    try:
        hanging = [run_blocking(released.wait, 30, timeout=0.05) for _ in range(3)]
        assert [type(one) for one in await asyncio.gather(*hanging, return_exceptions=True)] == [DeadlineExceeded] * 3
        before = threading.active_count()
        with pytest.raises(DeadlineExceeded, match="was not started: 3 blocking functions still run"):
            await run_blocking(sorted, [], timeout=0.05)
        assert threading.active_count() == before
        waiting = asyncio.create_task(run_blocking(sorted, [2, 1], timeout=10))
        await asyncio.sleep(0)
    finally:
        released.set()

    assert await waiting == [1, 2]  # it waits for a free thread, and others follow
    assert await asyncio.gather(*(run_blocking(abs, -n) for n in range(20))) == list(range(20))
