"""Places for calls that several processes hold together: among all of them never more than were made.

A process that dies takes its places along; whoever started it gives them back (`returned`), so that no crash makes the
limit smaller for the rest of a run.
"""

import asyncio
import mmap
import os
from collections import deque
from typing import Self

WORD = 8


class SharedPlaces:
    """A counter of free places that the kernel keeps, and a page that says who has how many.

    The page also holds until when nobody may call, as the monotonic clock of this machine counts.
    """

    def __init__(self, counter: int, ledger: int, holder: int) -> None:
        """`counter` and `ledger` are descriptors from `create`; `holder` is the number of this process."""
        self.counter = counter
        self.ledger = ledger
        self._holder = holder
        page = memoryview(mmap.mmap(ledger, 0))
        self._rest, self._held = page[:WORD].cast("d"), page[WORD:].cast("q")
        self._waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def create(cls, most: int, holders: int) -> Self:
        """`most` free places for `holders` processes."""
        ledger = os.memfd_create("nemo-gym-places")
        os.ftruncate(ledger, WORD * (1 + holders))
        return cls(os.eventfd(most, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC), ledger, 0)

    @property
    def rest_ends(self) -> float:
        """When calls may go on; 0 or past when they may now."""
        return self._rest[0]

    def rest_until(self, moment: float) -> None:
        """Nobody calls before `moment`, or before a later one that was said already."""
        self._rest[0] = max(self._rest[0], moment)

    def take_at_once(self) -> bool:
        """Take a free place, unless somebody here is waiting for one."""
        return not self._waiting and self._take()

    async def take(self) -> None:
        """Wait for a free place, first come first served within this process."""
        if self.take_at_once():
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.add_reader(self.counter, self._serve)
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the place came at the same moment
                self.give()
            raise

    def give(self) -> None:
        """Give a place back."""
        self._held[self._holder] -= 1
        os.eventfd_write(self.counter, 1)

    def returned(self, holder: int) -> int:
        """Give back what a process that has ended still had; how many places that were."""
        left, self._held[holder] = self._held[holder], 0
        if left > 0:
            os.eventfd_write(self.counter, left)
        return left

    def close(self) -> None:
        """Close the descriptors; for the process that made them."""
        os.close(self.counter)
        os.close(self.ledger)

    def _take(self) -> bool:
        try:
            os.eventfd_read(self.counter)
        except BlockingIOError:
            return False
        self._held[self._holder] += 1
        return True

    def _serve(self) -> None:
        """The counter may have places: give them to those who wait."""
        while self._waiting:
            if self._waiting[0].done():  # it gave up
                self._waiting.popleft()
            elif self._take():
                self._waiting.popleft().set_result(None)
            else:
                return
        asyncio.get_running_loop().remove_reader(self.counter)


_adopted: dict[str, list[SharedPlaces]] = {}


def adopt(name: str, places: list[SharedPlaces]) -> None:
    """What the clients of server `name` in this process share with other processes, in the order they are made."""
    _adopted[name] = places


def claimed(name: str) -> SharedPlaces | None:
    """The places for the next client of server `name`; None when this process has no others beside it."""
    left = _adopted.get(name)
    return left.pop(0) if left else None
