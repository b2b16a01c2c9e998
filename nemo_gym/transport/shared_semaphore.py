"""A semaphore shared by several processes, which limits their concurrent calls in total.

When a process crashes, its parent releases the slots that the process held (`release_holder`).
"""

import asyncio
import mmap
import os
from typing import Self

from nemo_gym.transport.event_loop import SlotQueue

WORD = 8
"""Bytes of one number in the shared page."""


class SharedSemaphore:
    """An eventfd that counts the free slots, and a shared page with the number of slots held by each process.

    The page also contains the end of the current pause (monotonic clock), before which no process may send a call.
    """

    def __init__(self, counter: int, ledger: int, holder: int) -> None:
        """Open the semaphore with file descriptors made by `create`.

        `counter` is the eventfd, `ledger` the shared page, `holder` the number of this process in the page.
        """
        self.counter = counter
        self.ledger = ledger
        self._holder = holder
        page = memoryview(mmap.mmap(ledger, 0))
        self._pause_end, self._held = page[:WORD].cast("d"), page[WORD:].cast("q")
        self._queue = SlotQueue()

    @classmethod
    def create(cls, slots: int, holders: int) -> Self:
        """Create a semaphore with `slots` free slots for `holders` processes; this process has number 0."""
        ledger = os.memfd_create("nemo-gym-semaphore")
        os.ftruncate(ledger, WORD * (1 + holders))
        return cls(os.eventfd(slots, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC), ledger, 0)

    @property
    def pause_ends(self) -> float:
        """End of the pause on the monotonic clock; 0 or a past time if calls are not paused."""
        return self._pause_end[0]

    def pause_until(self, moment: float) -> None:
        """Pause the calls of all processes until `moment`; never shortens a pause."""
        self._pause_end[0] = max(self._pause_end[0], moment)

    def try_acquire(self) -> bool:
        """Acquire a free slot without waiting; False if no slot is free or other calls of this process wait for one."""
        return not self._queue and self._take()

    async def acquire(self) -> None:
        """Wait for a free slot; calls of this process are served in order."""
        if self.try_acquire():
            return
        if not self._queue:
            asyncio.get_running_loop().add_reader(self.counter, self._grant)
        await self._queue.wait(self.release)

    def release(self) -> None:
        """Release a slot."""
        self._held[self._holder] -= 1
        os.eventfd_write(self.counter, 1)

    def release_holder(self, holder: int) -> int:
        """Release the slots that the exited process `holder` held; return their number."""
        slots, self._held[holder] = self._held[holder], 0
        if slots > 0:
            os.eventfd_write(self.counter, slots)
        return slots

    def close(self) -> None:
        """Close the file descriptors. Only the creating process may call this."""
        os.close(self.counter)
        os.close(self.ledger)

    def _take(self) -> bool:
        """Decrement the eventfd; False if no slot is free."""
        try:
            os.eventfd_read(self.counter)
        except BlockingIOError:
            return False
        self._held[self._holder] += 1
        return True

    def _grant(self) -> None:
        """Grant free slots to the waiting calls; called when the eventfd is readable."""
        while self._queue:
            if not self._take():
                return
            if not self._queue.grant():  # all waiting calls were cancelled
                self.release()
        asyncio.get_running_loop().remove_reader(self.counter)


_semaphores: dict[str, list[SharedSemaphore]] = {}


def adopt_semaphores(name: str, semaphores: list[SharedSemaphore]) -> None:
    """Set the semaphores for the clients of server `name`, in the order in which the clients will be created."""
    _semaphores[name] = semaphores


def claim_semaphore(name: str) -> SharedSemaphore | None:
    """Remove and return the semaphore for the next client of server `name`; None if the limit is not shared."""
    unclaimed = _semaphores.get(name)
    return unclaimed.pop(0) if unclaimed else None
