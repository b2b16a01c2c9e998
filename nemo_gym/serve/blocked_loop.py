"""Report a handler that blocks the event loop, with its server and route.

One blocking call in one tool stops every rollout of the process. A thread checks a heartbeat of the loop; when it
stops, `handlers_by_task` names the handler of the running task.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any

logger = logging.getLogger("nemo_gym.serve")

BEAT_SECONDS = 0.05
BLOCKED_SECONDS = 0.8
BEATS_KEPT = 6000
STACK_LINES = 6
NO_HANDLER = "something outside any request"
PATIENCE_WITHOUT_HANDLER = 5
"""Factor of time before a block outside any request is reported: a library that loads cannot be fixed by the user."""

handlers_by_task: dict["asyncio.Task[Any] | None", tuple[str, str, str]] = {}
"""Server, method and path of the innermost handler in each task; written by `handle` and `FailureMiddleware`."""


class LoopWatch:
    """Watch the running loop from a daemon thread until closed."""

    def __init__(self, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._blocked_seconds = blocked_seconds
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._last_beat = time.monotonic()
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._delays: deque[float] = deque(maxlen=BEATS_KEPT)
        self._thread = threading.Thread(target=self._watch, name="nemo-gym-loop-watch", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """Stop watching, and log the delays of the heartbeat in a verbose run."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        logger.debug("%s", self.summary())

    def summary(self) -> str:
        """Describe how late the loop was over the last ten minutes."""
        delays = sorted(self._delays)
        if not delays:
            return "the event loop was not watched long enough to tell how late it was"
        p99 = delays[min(len(delays) - 1, int(0.99 * len(delays)))]
        return f"the event loop was late by {1000 * p99:.1f} ms (p99), {1000 * delays[-1]:.1f} ms at most"

    def _beat(self) -> None:
        now = time.monotonic()
        if self._timer is not None:
            self._delays.append(max(0.0, now - self._last_beat - BEAT_SECONDS))
        self._last_beat = now
        if not self._stopped.is_set():
            self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _watch(self) -> None:
        reported: float | None = None
        while not self._stopped.wait(BEAT_SECONDS):
            beat = self._last_beat
            late = time.monotonic() - beat
            if late > self._blocked_seconds and reported != beat and self._report(late):
                reported = beat

    def _report(self, late: float) -> bool:
        """Log the handler that blocks the loop; False if none does and the block may be short, like an import."""
        handler = running_handler(self._loop)
        if handler == NO_HANDLER and late < self._blocked_seconds * PATIENCE_WITHOUT_HANDLER:
            return False
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)[-STACK_LINES:]) if frame is not None else ""
        logger.warning(
            "%s has blocked the event loop for %.1f s; nothing else in this process moves. "
            "Move the work to a thread or process (asyncio.to_thread).\n%s",
            handler,
            late,
            stack,
        )
        return True


def running_handler(loop: asyncio.AbstractEventLoop) -> str:
    """Name the server and route of the handler that runs in a loop right now; callable from any thread."""
    handler = handlers_by_task.get(asyncio.current_task(loop))
    return NO_HANDLER if handler is None else f"{handler[0]}: {handler[1]} {handler[2]}"
