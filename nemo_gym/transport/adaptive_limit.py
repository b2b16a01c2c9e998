"""The number of concurrent calls to one model endpoint: halved by a rejection (429, 503), raised again by answers."""

import asyncio
import math
import random
import time
from collections.abc import Callable

from nemo_gym.transport.event_loop import SlotQueue
from nemo_gym.transport.shared_semaphore import SharedSemaphore

MAX_PAUSE_SECONDS = 60.0
"""Maximum seconds for which the `Retry-After` of one answer pauses the other calls."""


class AdaptiveLimit:
    """Adaptive concurrency limit for one endpoint: FIFO slots, at most `max_concurrent` (None: no maximum).

    A rejection (429 or 503) halves the limit. Rejections of calls sent before the last reduction do not reduce it
    again; `generation`, the number of reductions when a call was sent, identifies them. Below the safe limit each
    success adds a slot, so that an endpoint recovers quickly after a restart; above it, about as many successes as
    there are slots add one. An object serves one event loop at a time. With `shared`, processes share the slots and
    the `Retry-After` pause.
    """

    def __init__(
        self,
        max_concurrent: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        shared: SharedSemaphore | None = None,
    ) -> None:
        self._shared = shared
        self._max_limit = math.inf if max_concurrent is None else float(max_concurrent)
        self._current = self._max_limit
        self._safe_limit = self._max_limit  # the limit after the last reduction that followed a successful answer
        self._had_success = True  # since the last reduction
        self._clock = clock
        self._in_flight = 0
        self._generation = 0
        self._pause_ends = 0.0
        self._queue = SlotQueue()

    @property
    def current(self) -> float:
        """Current concurrency limit; infinite without a limit."""
        return self._current

    @property
    def is_reduced(self) -> bool:
        """True if a rejection lowered the limit and answers have not raised it to the maximum again."""
        return self._current < self._max_limit

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def try_enter(self) -> int | None:
        """Acquire a slot without waiting; return the generation for `record_rejection`, or None if no slot is free."""
        if self._in_flight >= self._current or self._queue or self._pause_ends:
            return None
        if self._shared and (self._shared.pause_ends > self._clock() or not self._shared.try_acquire()):
            return None
        self._in_flight += 1
        return self._generation

    async def enter(self) -> int:
        """Wait for a slot and the end of a pause; return the generation for `record_rejection`."""
        if self._in_flight < self._current and not self._queue:
            self._in_flight += 1
        else:
            await self._queue.wait(self._release_slot)
        if self._shared:
            try:
                await self._shared.acquire()
            except asyncio.CancelledError:
                self._release_slot()
                raise
        if self._pause_ends or self._shared:
            await self._wait_for_pause_end()
        return self._generation

    def leave(self) -> None:
        """Release the slot that `enter` or `try_enter` acquired."""
        if self._shared:
            self._shared.release()
        self._release_slot()

    def _release_slot(self) -> None:
        """Release a slot of this process, but not of the shared semaphore; grant free slots to waiting calls."""
        self._in_flight -= 1
        while self._in_flight < self._current and self._queue.grant():
            self._in_flight += 1

    def record_success(self) -> None:
        """Raise the limit after a successful answer: by 1 below the safe limit, by a fraction above it."""
        self._had_success = True
        if self._current < self._max_limit:
            step = 1.0 if self._current < self._safe_limit else 1.0 / self._current
            self._current = min(self._max_limit, self._current + step)

    def record_rejection(self, generation: int, retry_after: float | None = None) -> None:
        """Halve the limit after a rejection, unless it was reduced since the call of this `generation` was sent.

        If fewer calls are in flight than the limit allows, their number is halved. `retry_after` pauses all calls for
        that many seconds.
        """
        if generation == self._generation:
            self._generation += 1
            self._current = max(1.0, min(self._current, float(self._in_flight)) / 2)
            if self._had_success:
                self._safe_limit = self._current
            self._had_success = False
        if retry_after:
            self._pause_ends = max(self._pause_ends, self._clock() + min(retry_after, MAX_PAUSE_SECONDS))
            if self._shared:
                self._shared.pause_until(self._pause_ends)

    async def _wait_for_pause_end(self) -> None:
        """Wait until the pauses of this process and of the processes that share the semaphore end."""
        try:
            while (left := self._pause_seconds_left()) > 0:  # noqa: ASYNC110 - a pause has an end time, not an event
                # Jitter keeps the calls from resuming simultaneously.
                await asyncio.sleep(left * random.uniform(1.0, 1.1))
        except asyncio.CancelledError:
            self.leave()
            raise
        self._pause_ends = 0.0

    def _pause_seconds_left(self) -> float:
        return max(self._pause_ends, self._shared.pause_ends if self._shared else 0.0) - self._clock()
