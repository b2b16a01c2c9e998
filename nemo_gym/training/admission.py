"""`Admission`: when a session may start another rollout, by pauses and by the staleness bound."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from nemo_gym.training.types import Rollout

STALE = "stale"


class Admission:
    """The current weight version, and how many rollouts may be started with it.

    Staleness is the number of weight updates between the oldest token of a rollout and its delivery. If the trainer
    uses `batch_size` rollouts for each update, rollouts started beyond `(max_staleness + updates + 1) * batch_size`
    would be delivered too late, so they wait for the next update.
    """

    def __init__(self, version: int, batch_size: int | None) -> None:
        self.version = version
        self._first_version = version
        self._batch_size = batch_size
        self._issued = 0
        self._pauses = 0
        self._changed = asyncio.Event()

    def capacity(self, max_staleness: int | None, *, unit: int = 1) -> int | None:
        """Return how many rollouts may be started now; None if staleness or the batch size is not limited.

        Batches are raised to a multiple of `unit`, the rollouts that a trainer gets at once: a batch that ends within a
        group would otherwise wait for the rest of the group, and the group for the update after the batch.
        """
        limit = self.limit(max_staleness, self.version - self._first_version, unit=unit)
        return None if limit is None else max(0, limit - self._issued)

    def limit(self, max_staleness: int | None, updates: int = 0, *, unit: int = 1) -> int | None:
        """Return how many rollouts may be started in all before update number `updates + 1`; None if not limited."""
        if max_staleness is None or self._batch_size is None:
            return None
        return (max_staleness + updates + 1) * math.ceil(self._batch_size / unit) * unit

    async def admit(self, max_staleness: int | None, is_wanted: Callable[[], bool], *, unit: int = 1) -> bool:
        """Wait until a rollout may be started, and count it; return False if it is no longer needed.

        Call `notify` when `is_wanted` changes.
        """
        while is_wanted():
            if not self._pauses and self.capacity(max_staleness, unit=unit) != 0:
                self._issued += 1
                return True
            await self._changed.wait()
        return False

    def release(self) -> None:
        """Allow another rollout in place of one that cannot be used."""
        self._issued -= 1
        self.notify()

    def pause(self) -> None:
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        self.notify()

    def set_version(self, version: int) -> None:
        self.version = version
        self.notify()

    def is_stale(self, version: int, max_staleness: int | None) -> bool:
        """Return whether tokens of `version` may not be used any more."""
        return max_staleness is not None and self.version - version > max_staleness

    def check_staleness(self, rollout: Rollout, start_version: int, max_staleness: int | None) -> Rollout:
        """Return the rollout; not trainable if it has become stale. The engine's versions count, if it reports them."""
        version = rollout.weight_version[0] if rollout.weight_version else start_version
        if not rollout.trainable or not self.is_stale(version, max_staleness):
            return rollout
        why_not = f"{STALE}: version {version} at version {self.version}, more than {max_staleness} behind"
        return replace(rollout, trainable=False, why_not=why_not)

    def notify(self) -> None:
        """Let the rollouts that wait check again whether they may be started."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
