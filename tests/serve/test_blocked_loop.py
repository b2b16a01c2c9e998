"""A handler that blocks the event loop is reported by name."""

import asyncio
import logging
import threading
import time

import pytest

from nemo_gym.serve.app import create_app
from nemo_gym.serve.blocked_loop import NO_HANDLER, LoopWatch
from nemo_gym.serve.failures import DeadlineMiddleware, FailureMiddleware
from nemo_gym.serve.process_status import own_status
from nemo_gym.transport import in_process


async def test_a_blocking_handler_is_reported_while_it_blocks(caplog: pytest.LogCaptureFixture) -> None:
    """Without a name people search for days; the stack shows the very line."""
    app = create_app()
    seen = threading.Event()

    @app.post("/slow_tool")
    async def slow_tool() -> dict[str, bool]:
        deadline = time.monotonic() + 10
        while not seen.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 - this is the offence under test
        return {"seen": seen.is_set()}

    app.add_middleware(FailureMiddleware, server_name="weather")

    class Notice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "blocked the event loop" in record.getMessage():
                self.message = record.getMessage()
                seen.set()

    notice = Notice()
    logging.getLogger("nemo_gym.serve").addHandler(notice)
    watch = LoopWatch(blocked_seconds=0.2)
    watch.start()
    try:
        with caplog.at_level(logging.WARNING, "nemo_gym.serve"):
            answer = await in_process.dispatch(app, "POST", "http://h:1/slow_tool", json={})
    finally:
        watch.close()
        logging.getLogger("nemo_gym.serve").removeHandler(notice)

    assert await answer.json() == {"seen": True}
    message = notice.message
    assert message.startswith("weather: POST /slow_tool has blocked the event loop")
    assert "in slow_tool" in message


@pytest.mark.parametrize("is_direct", [True, False])
async def test_the_innermost_handler_of_a_task_is_the_running_one(is_direct: bool) -> None:
    """A handler that calls another server in memory shares its task; the one that executes must be named."""
    app = create_app()
    running: list[str] = []

    def note() -> None:
        running.append(str(own_status.running_handler() or NO_HANDLER))

    @app.post("/inner")
    async def inner() -> None:
        note()

    @app.post("/outer")
    async def outer() -> None:
        await in_process.request(app, "POST", "http://h:1", "/inner", json={})
        note()

    app.add_middleware(DeadlineMiddleware)
    app.add_middleware(FailureMiddleware, server_name="weather")
    if not is_direct:
        app.router.middleware_stack = app.router.app

    await in_process.request(app, "POST", "http://h:1", "/outer", json={})
    note()

    assert running == ["weather: POST /inner", "weather: POST /outer", NO_HANDLER]


async def test_the_delay_of_the_loop_is_summed_up() -> None:
    """A loop that is always slightly late is slow without ever being blocked."""
    watch = LoopWatch(blocked_seconds=5)
    assert "not watched long enough" in watch.summary()
    watch.start()
    try:
        time.sleep(0.2)  # noqa: ASYNC251 - this is the offence under test
        async with asyncio.timeout(10):
            while "at most" not in watch.summary():  # noqa: ASYNC110 - a beat sets no event
                await asyncio.sleep(0.01)
    finally:
        watch.close()

    late = float(watch.summary().split("(p99), ")[1].split(" ms")[0])
    assert late >= 100


async def test_a_loop_that_only_waits_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Waiting for a model for a minute is not blocking."""
    watch = LoopWatch(blocked_seconds=0.15)
    watch.start()
    try:
        with caplog.at_level(logging.WARNING, "nemo_gym.serve"):
            await asyncio.sleep(0.3)
    finally:
        watch.close()

    assert not [record for record in caplog.records if "blocked" in record.getMessage()]


@pytest.mark.parametrize(("seconds", "is_reported"), [(0.3, False), (1.5, True)])
async def test_a_block_outside_any_request_is_reported_later(
    seconds: float, is_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An import holds everything up for a moment, and a new user cannot do anything about it."""
    watch = LoopWatch(blocked_seconds=0.2)
    watch.start()
    try:
        with caplog.at_level(logging.WARNING, "nemo_gym.serve"):
            await asyncio.sleep(0.1)  # the first beat
            time.sleep(seconds)  # noqa: ASYNC251 - this is the offence under test
            await asyncio.sleep(0)
    finally:
        watch.close()

    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith("something outside any request has blocked") for message in messages) == is_reported
