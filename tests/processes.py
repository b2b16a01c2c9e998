"""Waiting for what other processes do: they tell nobody, so they are looked at."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0
PAUSE = 0.01


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one whose parent has not asked yet how it ended has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second if it goes while it is read
        return True


def eventually(happened: Callable[[], object], within: float = PATIENCE) -> bool:
    """Whether something happens in time."""
    end = time.monotonic() + within
    while not (found := happened()) and time.monotonic() < end:
        time.sleep(PAUSE)
    return bool(found)


async def until(happened: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait for something, while the loop goes on.

    Raises:
        TimeoutError: it has not happened in time.
    """
    async with asyncio.timeout(within):
        while not happened():  # noqa: ASYNC110 - no event crosses from another process
            await asyncio.sleep(PAUSE)
