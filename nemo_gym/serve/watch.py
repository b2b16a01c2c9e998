"""Notices when a handler blocks the event loop, and says which server and route it is.

One blocking call in one tool stops every rollout of the process. A thread looks at a heartbeat of the loop; when it
stays out, the stack of the blocked thread names the culprit.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque
from types import FrameType

from nemo_gym.net.local_request import Sent
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.short import ShortWay

logger = logging.getLogger("nemo_gym.serve")

BEAT_SECONDS = 0.05
BLOCKED_SECONDS = 0.8
BEATS_KEPT = 6000
STACK_LINES = 6
NOBODY = "something outside any request"
PATIENCE_WITH_NOBODY = 5
"""So many times longer what is no request may block the loop before it is told: nobody can mend a library's loading."""


class LoopWatch:
    """Watches the running loop from a daemon thread until it is closed."""

    def __init__(self, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._blocked_seconds = blocked_seconds
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._beat = time.monotonic()
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._late: deque[float] = deque(maxlen=BEATS_KEPT)
        self._thread = threading.Thread(target=self._watch, name="nemo-gym-loop-watch", daemon=True)

    def start(self) -> None:
        self._pulse()
        self._thread.start()

    def close(self) -> None:
        """Stop watching. How late the beats were is said in the log of a verbose run."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        logger.debug("%s", self.summary())

    def summary(self) -> str:
        """How late the loop was, over the last ten minutes."""
        late = sorted(self._late)
        if not late:
            return "the event loop was not watched long enough to tell how late it was"
        most = late[min(len(late) - 1, int(0.99 * len(late)))]
        return f"the event loop was late by {1000 * most:.1f} ms (p99), {1000 * late[-1]:.1f} ms at most"

    def _pulse(self) -> None:
        now = time.monotonic()
        if self._timer is not None:
            self._late.append(max(0.0, now - self._beat - BEAT_SECONDS))
        self._beat = now
        if not self._stopped.is_set():
            self._timer = self._loop.call_later(BEAT_SECONDS, self._pulse)

    def _watch(self) -> None:
        told: float | None = None
        while not self._stopped.wait(BEAT_SECONDS):
            beat = self._beat
            late = time.monotonic() - beat
            if late > self._blocked_seconds and told != beat and self._tell(late):
                told = beat

    def _tell(self, late: float) -> bool:
        """Say who blocks the loop; False if that is nobody's request and may be over soon, as loading a model is."""
        frame = sys._current_frames().get(self._watched)
        if culprit(frame) == NOBODY and late < self._blocked_seconds * PATIENCE_WITH_NOBODY:
            return False
        where = "".join(traceback.format_stack(frame)[-STACK_LINES:]) if frame is not None else ""
        logger.warning(
            "%s has blocked the event loop for %.1f s; nothing else in this process moves. "
            "Move the work to a thread or process (asyncio.to_thread).\n%s",
            culprit(frame),
            late,
            where,
        )
        return True


def culprit(frame: FrameType | None) -> str:
    """The server and route whose handler is on the stack, innermost first."""
    while frame is not None:
        server, scope = frame.f_locals.get("self"), frame.f_locals.get("scope")
        if isinstance(server, FailureMiddleware) and isinstance(scope, dict):
            return f"{server.server_name}: {scope.get('method')} {scope.get('path')}"
        sent = frame.f_locals.get("sent")
        if isinstance(server, ShortWay) and isinstance(sent, Sent):
            return f"{server.server_name}: {sent.method} {sent.path}"
        frame = frame.f_back
    return NOBODY
