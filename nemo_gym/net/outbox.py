"""What the tasks of one round of the event loop write goes out together, when the round is over.

A write to a socket most often wakes the process at its other end, which costs more than the write itself. That process
is done before our next task writes, goes to sleep, and is woken again. Written together, eight requests wake it once,
and its answers come back together as well.
"""

import asyncio
from weakref import ref

from nemo_gym.net.per_loop import PerLoop


class Outbox:
    """Writes of one loop, in the order in which they were put."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._waiting: list[tuple[asyncio.Transport, list[bytes]]] = []

    def put(self, transport: asyncio.Transport, data: list[bytes]) -> None:
        """Write to a transport when this round is over; `data` may grow until then, and is emptied."""
        if not self._waiting:
            loop = self._loop()
            assert loop is not None  # it is running: it called us
            loop.call_soon(self._send)
        self._waiting.append((transport, data))

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if data and not transport.is_closing():
                transport.write(data[0] if len(data) == 1 else b"".join(data))
            data.clear()


_outboxes = PerLoop(Outbox)


def current_outbox() -> Outbox:
    """The running loop's outbox."""
    return _outboxes.of(asyncio.get_running_loop())
