"""Output of server processes: written to one file per process and passed line by line to a callback."""

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
    """The output of one process: writes it to a file, passes each line on, and keeps the last lines for errors."""

    def __init__(self, name: str, path: Path | None, on_line: LineCallback | None = None) -> None:
        self.name = name
        self.path = path
        self._file: BinaryIO | None = path.open("ab") if path else None
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._incomplete_line = b""
        self._closed: asyncio.Future[None] | None = None

    async def follow(self, fd: int) -> "asyncio.Future[None]":
        """Start reading a pipe; the returned future is done when the pipe is closed by its last writer."""
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        await loop.connect_read_pipe(lambda: self, os.fdopen(fd, "rb", 0))
        return self._closed

    def data_received(self, data: bytes) -> None:
        if self._file:
            self._file.write(data)
            self._file.flush()
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        if len(self._incomplete_line) > MAX_LINE_BYTES:
            lines, self._incomplete_line = [*lines, self._incomplete_line], b""
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
        if self._incomplete_line:
            self._add_line(self._incomplete_line)
            self._incomplete_line = b""
        if self._file:
            self._file.close()
            self._file = None
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
