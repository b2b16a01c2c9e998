"""A semaphore that several processes share, so that together they never exceed a limit of calls.

A process that dies keeps its slots; its parent releases them (`release_holder`), so that no crash makes the limit
smaller for the rest of a run.
"""

import asyncio
import mmap
import os
from collections import deque
from typing import Self

WORD = 8


class SharedSemaphore:
    """A kernel counter of free slots, and a shared page with the number of slots each process holds.

    The page also holds the moment, on the monotonic clock, before which no process may call.
    """

    def __init__(self, counter: int, ledger: int, holder: int) -> None:
        """Use the descriptors `counter` and `ledger` of `create` as process number `holder`."""
        self.counter = counter
        self.ledger = ledger
        self._holder = holder
        page = memoryview(mmap.mmap(ledger, 0))
        self._rest, self._held = page[:WORD].cast("d"), page[WORD:].cast("q")
        self._queue: deque[asyncio.Future[None]] = deque()

    @classmethod
    def create(cls, slots: int, holders: int) -> Self:
        """Create a semaphore with `slots` free slots for `holders` processes."""
        ledger = os.memfd_create("nemo-gym-semaphore")
        os.ftruncate(ledger, WORD * (1 + holders))
        return cls(os.eventfd(slots, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC), ledger, 0)

    @property
    def rest_ends(self) -> float:
        """Moment at which calls may continue; 0 or in the past when they may now."""
        return self._rest[0]

    def rest_until(self, moment: float) -> None:
        """Forbid calls of all processes before `moment`; a later moment that was set already stays."""
        self._rest[0] = max(self._rest[0], moment)

    def try_acquire(self) -> bool:
        """Take a free slot, unless another call of this process waits for one."""
        return not self._queue and self._take()

    async def acquire(self) -> None:
        """Wait for a free slot, first come first served within this process."""
        if self.try_acquire():
            return
        loop = asyncio.get_running_loop()
        slot = loop.create_future()
        if not self._queue:
            loop.add_reader(self.counter, self._grant)
        self._queue.append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():  # granted at the same moment
                self.release()
            raise

    def release(self) -> None:
        """Release a slot."""
        self._held[self._holder] -= 1
        os.eventfd_write(self.counter, 1)

    def release_holder(self, holder: int) -> int:
        """Release the slots that a process held when it ended; return their number."""
        left, self._held[holder] = self._held[holder], 0
        if left > 0:
            os.eventfd_write(self.counter, left)
        return left

    def close(self) -> None:
        """Close the descriptors; only for the process that created them."""
        os.close(self.counter)
        os.close(self.ledger)

    def _take(self) -> bool:
        try:
            os.eventfd_read(self.counter)
        except BlockingIOError:
            return False
        self._held[self._holder] += 1
        return True

    def _grant(self) -> None:
        """Grant free slots to the calls in the queue."""
        while self._queue:
            if self._queue[0].done():  # cancelled
                self._queue.popleft()
            elif self._take():
                self._queue.popleft().set_result(None)
            else:
                return
        asyncio.get_running_loop().remove_reader(self.counter)


_semaphores: dict[str, list[SharedSemaphore]] = {}


def adopt_semaphores(name: str, semaphores: list[SharedSemaphore]) -> None:
    """Set the semaphores that the clients of server `name` share with other processes, in order of their creation."""
    _semaphores[name] = semaphores


def claim_semaphore(name: str) -> SharedSemaphore | None:
    """Take the semaphore for the next client of server `name`; None if it is shared with no other process."""
    left = _semaphores.get(name)
    return left.pop(0) if left else None
