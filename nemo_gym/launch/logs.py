"""Output of server processes: whole lines for the terminal, everything in one file per process."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

TAIL_LINES = 40
MAX_LINE_BYTES = 64 * 1024

LineCallback = Callable[[str, str], None]
"""Called with the name of a process and a line it printed."""


class ProcessLog(asyncio.Protocol):
    """The output of one process: written to a file, passed on by line, and its end kept for error messages."""

    def __init__(self, name: str, path: Path | None, on_line: LineCallback | None = None) -> None:
        self.name = name
        self.path = path
        self._file: BinaryIO | None = path.open("ab") if path else None
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._rest = b""
        self._closed: asyncio.Future[None] | None = None

    async def follow(self, fd: int) -> "asyncio.Future[None]":
        """Read a pipe; the future is done when its last writer closes it."""
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        await loop.connect_read_pipe(lambda: self, os.fdopen(fd, "rb", 0))
        return self._closed

    def data_received(self, data: bytes) -> None:
        if self._file:
            self._file.write(data)
            self._file.flush()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self._tail.append(text)
        if self._on_line:
            self._on_line(self.name, text)

    def tail(self, lines: int = 15) -> str:
        """Return the last lines, for an error message."""
        return "\n".join(list(self._tail)[-lines:])

    def connection_lost(self, exc: Exception | None = None) -> None:  # noqa: ARG002 - the protocol's signature
        if self._rest:
            self._add_line(self._rest)
            self._rest = b""
        if self._file:
            self._file.close()
            self._file = None
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
