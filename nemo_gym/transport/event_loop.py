"""Event-loop helpers: one object per loop, exceptions as results, slots, coalesced writes, limited wake-ups.

A round is one iteration of the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

Item = TypeVar("Item")

MAX_BUFFERED_BYTES = 64 * 1024
"""Above this many unsent bytes a connection is written immediately, so that backpressure still works."""

WAKE_UPS_PER_ROUND = 24
"""Maximum wake-ups per round. Each causes 0.5 to 2 ms of work, so a round takes less than 50 ms."""


class PerLoop(Generic[Item]):
    """One object per event loop: `of(loop)` creates it on first use; it is discarded with the loop."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], Item]) -> None:
        self._make = make
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Item] = WeakKeyDictionary()
        self._last: tuple[Callable[[], Any], Item] | None = None  # fast path: most processes have one loop

    def of(self, loop: asyncio.AbstractEventLoop) -> Item:
        last = self._last
        if last is not None and last[0]() is loop:
            return last[1]
        item = self._by_loop.get(loop)
        if item is None:
            item = self._by_loop[loop] = self._make(loop)
        self._last = (ref(loop), item)
        return item


def is_cancelled() -> bool:
    """Return True if the running task is being cancelled. If not, a `CancelledError` comes from the code it runs."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def result_or_error(work: Awaitable[Item]) -> Item | BaseException:
    """Return the result of a handler, or the exception of any class that it raised (see `handler_error`)."""
    try:
        return await work
    except BaseException as error:
        return await handler_error(error)


async def handler_error(error: BaseException) -> BaseException:
    """Return an exception caught from a handler. If other code cancels the running task, raise `CancelledError`.

    If the handler cancels the task, the wait lets `run_handler` (`serve.process_status`) find out, and the error is
    returned. The caller must return the error at once. A returned `GeneratorExit` then comes from the handler: closing
    the caller also closes its awaiter, so that no code receives the returned value.
    """
    if isinstance(error, asyncio.CancelledError) and is_cancelled():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if is_cancelled():
            raise error
    return error


class SlotQueue:
    """The tasks that wait for a slot (of a limit or a connection pool), first come, first served."""

    def __init__(self) -> None:
        self._waits: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waits)

    async def wait(self, give_back: Callable[[], object]) -> None:
        """Wait until `grant` gives this task a slot. If the task is cancelled just after that, call `give_back`."""
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                give_back()
            raise

    def grant(self) -> bool:
        """Give a slot to the first task that still waits; False if no task does."""
        while self._waits:
            slot = self._waits.popleft()
            if not slot.done():
                slot.set_result(None)
                return True
        return False


class WriteBatch:
    """Collects the socket writes of one loop and performs them, in order, at the end of the current round.

    A write to a socket usually wakes the receiving process, which costs more than the write itself. Several requests
    written together wake it once, and its answers arrive together as well.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._writes: list[tuple[asyncio.Transport, list[bytes]]] = []

    def put(self, transport: asyncio.Transport, data: list[bytes]) -> None:
        """Write `data` to a transport at the end of this round. The caller may append to `data` until it is emptied."""
        if not self._writes:
            loop = self._loop()
            assert loop is not None  # the loop is running, because it called this method
            loop.call_soon(self._send)
        self._writes.append((transport, data))

    def _send(self) -> None:
        writes, self._writes = self._writes, []
        for transport, data in writes:
            if data and not transport.is_closing():
                transport.write(data[0] if len(data) == 1 else b"".join(data))
            data.clear()


class CoalescingTransport:
    """A transport that combines the writes of one round into one; other methods are those of the wrapped transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._batch = current_write_batch()
        self._unsent: list[bytes] = []
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Buffer `data` until the end of the round, or write at once if more than `MAX_BUFFERED_BYTES` are buffered."""
        chunk = data if type(data) is bytes else bytes(data)
        if not self._unsent:
            self._batch.put(self._transport, self._unsent)
            self._size = 0
        self._unsent.append(chunk)
        self._size += len(chunk)
        if self._size > MAX_BUFFERED_BYTES:
            self._write_now()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        """Write the buffered data and close the connection."""
        self._write_now()
        self._transport.close()

    def _write_now(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class WakeUpQueue:
    """Run callbacks in order, at most `WAKE_UPS_PER_ROUND` in each round of one loop.

    If a thousand answers arrive together and all their tasks resume in one round, no timer fires and no other server
    of the cell answers until every task has run.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._count = 0  # callbacks that ran in this round
        self._callbacks: deque[Callable[[], object]] = deque()

    def put(self, callback: Callable[[], object]) -> None:
        """Run `callback` now or in a later round. It must be short, for example set the result of a future."""
        if self._callbacks or self._count >= WAKE_UPS_PER_ROUND:
            self._callbacks.append(callback)
            return
        if not self._count:
            self._schedule_round()
        self._count += 1
        callback()

    def _run_round(self) -> None:
        """Run the callbacks of this round; if any ran, schedule a round that resets the count."""
        self._count = 0
        try:
            while self._callbacks and self._count < WAKE_UPS_PER_ROUND:
                self._count += 1
                self._callbacks.popleft()()
        finally:  # also after an exception, or the other callbacks would never run
            if self._count:
                self._schedule_round()

    def _schedule_round(self) -> None:
        loop = self._loop()
        if loop is not None:
            loop.call_soon(self._run_round)


_write_batches = PerLoop(WriteBatch)
_wake_up_queues = PerLoop(WakeUpQueue)


def current_write_batch() -> WriteBatch:
    return _write_batches.of(asyncio.get_running_loop())


def current_wake_up_queue() -> WakeUpQueue:
    return _wake_up_queues.of(asyncio.get_running_loop())
