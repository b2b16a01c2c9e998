"""Wait for other processes: they send no notice, so their state is polled."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0
PAUSE = 0.01


def is_gone(pid: int) -> bool:
    """Return True if a process has ended, even if its parent has not yet reaped it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends while being read
        return True


def eventually(condition: Callable[[], object], within: float = PATIENCE) -> bool:
    """Return True if a condition becomes true in time."""
    end = time.monotonic() + within
    while not (result := condition()) and time.monotonic() < end:
        time.sleep(PAUSE)
    return bool(result)


async def wait_until(condition: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait until a condition is true, without blocking the event loop.

    Raises:
        TimeoutError: it was not true in time.
    """
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - no event crosses from another process
            await asyncio.sleep(PAUSE)
