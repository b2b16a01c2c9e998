"""What the tasks of one round of the event loop write goes out together, when the round is over.

A write to a socket most often wakes the process at its other end, which costs more than the write itself. That process
is done before our next task writes, goes to sleep, and is woken again. Written together, a dozen requests wake it once,
and its answers come back together as well.
"""

import asyncio
from typing import Any
from weakref import ref

from nemo_gym.net.per_loop import PerLoop

MOST_UNSENT = 64 * 1024
"""Bytes. More than that is written at once, so that whoever writes faster than the other end reads is held up."""


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


class Gathered:
    """A transport that writes when the round is over. In everything else it is the one it was made from."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._outbox = current_outbox()
        self._unsent: list[bytes] = []
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        chunk = data if type(data) is bytes else bytes(data)
        if not self._unsent:
            self._outbox.put(self._transport, self._unsent)
            self._size = 0
        self._unsent.append(chunk)
        self._size += len(chunk)
        if self._size > MOST_UNSENT:
            self._write_now()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        """Hang up; what was written before that still goes out."""
        self._write_now()
        self._transport.close()

    def _write_now(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


_outboxes = PerLoop(Outbox)


def current_outbox() -> Outbox:
    """The running loop's outbox."""
    return _outboxes.of(asyncio.get_running_loop())
