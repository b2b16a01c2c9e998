"""A tool that blocks the loop is named, not merely suffered."""

import asyncio
import logging
import sys
import threading
import time

import pytest

from nemo_gym.net import local
from nemo_gym.serve.app import create_app
from nemo_gym.serve.deadlines import DeadlineMiddleware
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.watch import LoopWatch, culprit


async def test_the_blocking_route_is_named_while_it_blocks(caplog: pytest.LogCaptureFixture) -> None:
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
                self.said = record.getMessage()
                seen.set()

    notice = Notice()
    logging.getLogger("nemo_gym.serve").addHandler(notice)
    watch = LoopWatch(blocked_seconds=0.2)
    watch.start()
    try:
        with caplog.at_level(logging.WARNING, "nemo_gym.serve"):
            answer = await local.dispatch(app, "POST", "http://h:1/slow_tool", json={})
    finally:
        watch.close()
        logging.getLogger("nemo_gym.serve").removeHandler(notice)

    assert await answer.json() == {"seen": True}
    message = notice.said
    assert message.startswith("weather: POST /slow_tool has blocked the event loop")
    assert "in slow_tool" in message


async def test_the_blocking_route_is_named_on_the_short_way_too() -> None:
    """Inside a cell most handlers are reached without the layers that used to name them."""
    app = create_app()
    found: list[str] = []

    @app.post("/slow_tool")
    async def slow_tool() -> None:
        found.append(culprit(sys._getframe()))

    app.add_middleware(DeadlineMiddleware)
    app.add_middleware(FailureMiddleware, server_name="weather")

    await local.call(app, "POST", "http://h:1", "/slow_tool", json={})

    assert found == ["weather: POST /slow_tool"]


async def test_how_late_the_loop_was_is_known_afterwards() -> None:
    """A loop that is always a little late is slow without ever being blocked."""
    watch = LoopWatch(blocked_seconds=5)
    assert "not watched long enough" in watch.summary()
    watch.start()
    try:
        time.sleep(0.2)  # noqa: ASYNC251 - this is the offence under test
        async with asyncio.timeout(10):
            while "at most" not in watch.summary():  # noqa: ASYNC110 - beats announce nothing
                await asyncio.sleep(0.01)
    finally:
        watch.close()

    late = float(watch.summary().split("(p99), ")[1].split(" ms")[0])
    assert late >= 100


async def test_a_loop_that_only_waits_is_not_accused(caplog: pytest.LogCaptureFixture) -> None:
    """Waiting for a model for a minute is not blocking."""
    watch = LoopWatch(blocked_seconds=0.3)
    watch.start()
    try:
        with caplog.at_level(logging.WARNING, "nemo_gym.serve"):
            await asyncio.sleep(0.6)
    finally:
        watch.close()

    assert not [record for record in caplog.records if "blocked" in record.getMessage()]


@pytest.mark.parametrize(("seconds", "told"), [(0.6, False), (3.0, True)])
async def test_what_is_no_request_is_given_more_time(
    seconds: float, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A library that is loaded holds everything up for a moment; a new user cannot do anything about it."""
    watch = LoopWatch(blocked_seconds=0.4)
    watch.start()
    try:
        with caplog.at_level(logging.WARNING, "nemo_gym.serve"):
            await asyncio.sleep(0.1)  # the first beat
            time.sleep(seconds)  # noqa: ASYNC251 - this is the offence under test
            await asyncio.sleep(0)
    finally:
        watch.close()

    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith("something outside any request has blocked") for message in messages) == told
