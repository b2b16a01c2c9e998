"""Thresholds of Python's cyclic garbage collector for processes that collect or serve rollouts.

A rollout creates thousands of short-lived objects and few cycles; with the default thresholds, collections cost 7 % of
its CPU. A collection starts when the number of objects has grown by a threshold. A thousand rollouts that start
together exceed it without any garbage, and the useless collection blocks the loop for tenths of a second. Therefore the
threshold grows with the calls in flight.
"""

import asyncio
import gc

from nemo_gym.transport.deadlines import count_alarms

NEW_OBJECTS = 200_000
"""Number of new objects that starts a collection."""

OBJECTS_PER_CALL = 300
"""Approximate number of live objects per pending call; a rollout usually has two pending calls."""

OLDER_GENERATIONS = (50, 50)
"""Number of collections of a generation before the next older generation is collected."""

CHECK_SECONDS = 0.05


def freeze() -> None:
    """Exclude the existing objects from collections and raise the thresholds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *OLDER_GENERATIONS)


class AdaptiveThreshold:
    """Adapts the threshold of the process to the number of pending calls of the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Set the threshold now and every `CHECK_SECONDS`."""
        target = NEW_OBJECTS + OBJECTS_PER_CALL * count_alarms(self._loop)
        current = gc.get_threshold()[0]
        if target > current or target < current // 2:  # ignore small changes
            gc.set_threshold(target, *OLDER_GENERATIONS)
        self._timer = self._loop.call_later(CHECK_SECONDS, self.start)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(NEW_OBJECTS, *OLDER_GENERATIONS)
