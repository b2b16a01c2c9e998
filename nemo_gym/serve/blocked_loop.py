"""Detect a blocked event loop and log the handler that blocks it, with its server and route.

A blocking call in one tool stops every rollout of the process. A thread checks the heartbeat of the loop; when the
heartbeat stops, `process_status` identifies the running handler. The launcher watches the same heartbeat from outside.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque

from nemo_gym.serve.process_status import own_status

logger = logging.getLogger("nemo_gym.serve")

BEAT_SECONDS = 0.05
BLOCKED_SECONDS = 0.8
MAX_DELAYS = 6000
"""Heartbeat delays kept for `summary`: ten minutes."""
STACK_LINES = 6
NO_HANDLER = "something outside any request"
NO_HANDLER_FACTOR = 5
"""Factor on the threshold for blocks outside any request, which are often imports that users cannot avoid."""


class LoopWatch:
    """Monitor the running loop from a daemon thread until `close`."""

    def __init__(self, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._blocked_seconds = blocked_seconds
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._last_beat = time.monotonic()
        self._stop_event = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._delays: deque[float] = deque(maxlen=MAX_DELAYS)
        self._thread = threading.Thread(target=self._watch, name="nemo-gym-loop-watch", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """Stop monitoring and log the summary at level DEBUG."""
        self._stop_event.set()
        if self._timer is not None:
            self._timer.cancel()
        logger.debug("%s", self.summary())

    def summary(self) -> str:
        """Return a sentence with the p99 and maximum delay of the loop in the last ten minutes."""
        delays = sorted(self._delays)
        if not delays:
            return "the event loop was not watched long enough to measure its delay"
        p99 = delays[min(len(delays) - 1, int(0.99 * len(delays)))]
        return f"the event loop was delayed by {1000 * p99:.1f} ms (p99), {1000 * delays[-1]:.1f} ms at most"

    def _beat(self) -> None:
        """Record the heartbeat and its delay, and schedule the next one."""
        now = time.monotonic()
        if self._timer is not None:
            self._delays.append(max(0.0, now - self._last_beat - BEAT_SECONDS))
        self._last_beat = now
        own_status.beat()
        if not self._stop_event.is_set():
            self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _watch(self) -> None:
        """Check the heartbeat in the thread; report each block once."""
        reported_beat: float | None = None
        while not self._stop_event.wait(BEAT_SECONDS):
            beat = self._last_beat
            delay = time.monotonic() - beat
            if delay > self._blocked_seconds and reported_beat != beat and self._report(delay):
                reported_beat = beat

    def _report(self, delay: float) -> bool:
        """Log the handler that blocks the loop; return False without logging for a short block outside any request."""
        handler = own_status.running_handler()
        if handler is None and delay < self._blocked_seconds * NO_HANDLER_FACTOR:
            return False
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)[-STACK_LINES:]) if frame is not None else ""
        logger.warning(
            "%s has blocked the event loop for %.1f s; no other code of this process runs. "
            "Move the work to a thread or process (asyncio.to_thread).\n%s",
            handler or NO_HANDLER,
            delay,
            stack,
        )
        return True
