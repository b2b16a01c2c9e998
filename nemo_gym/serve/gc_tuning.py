"""Thresholds of Python's cyclic garbage collector for processes that collect or serve rollouts.

A rollout makes thousands of short-lived objects and hardly a cycle; the default thresholds cost 7 % of its CPU. A
collection starts when the number of objects has grown by a threshold. A thousand rollouts that begin together reach it
although nothing of theirs is garbage: the collection scans all of it and stops the loop for tenths of a second. So the
threshold grows with the calls in flight.
"""

import asyncio
import gc

from nemo_gym.transport.deadlines import count_alarms

NEW_OBJECTS = 200_000
"""Growth in objects that starts a collection."""

OBJECTS_PER_CALL = 300
"""Objects held by a call that waits for a model, with its rollout's share; two calls of a rollout wait at a time."""

OLDER_GENERATIONS = (50, 50)
"""Collections before an older generation is scanned once."""

CHECK_SECONDS = 0.05


def freeze() -> None:
    """Exclude the objects loaded so far from collections, and make collections rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *OLDER_GENERATIONS)


class AdaptiveThreshold:
    """Adapt the threshold of the process to the calls that the running loop has in flight."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Adapt now and periodically."""
        target = NEW_OBJECTS + OBJECTS_PER_CALL * count_alarms(self._loop)
        current = gc.get_threshold()[0]
        if target > current or target < current // 2:  # not at every change
            gc.set_threshold(target, *OLDER_GENERATIONS)
        self._timer = self._loop.call_later(CHECK_SECONDS, self.start)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(NEW_OBJECTS, *OLDER_GENERATIONS)
