"""What servers print: whole lines, prefixed on the terminal, complete in one file per process."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

TAIL_LINES = 40
LONGEST_LINE = 64 * 1024


class Log:
    """The output of one process: a file, a short memory of its end, and whoever else wants its lines."""

    def __init__(self, name: str, path: Path | None, watch: Callable[[str, str], None] | None = None) -> None:
        self.name = name
        self.path = path
        self._file: BinaryIO | None = path.open("ab") if path else None
        self._watch = watch
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Take bytes as they come; pass on whole lines only."""
        if self._file:
            self._file.write(chunk)
            self._file.flush()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._pass_on(line)

    def _pass_on(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self._tail.append(text)
        if self._watch:
            self._watch(self.name, text)

    def tail(self, lines: int = 15) -> str:
        """The last lines, for an error message."""
        return "\n".join(list(self._tail)[-lines:])

    def close(self) -> None:
        if self._rest:
            self._pass_on(self._rest)
            self._rest = b""
        if self._file:
            self._file.close()
            self._file = None


class _Feeder(asyncio.Protocol):
    def __init__(self, log: Log) -> None:
        self._log = log
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._log.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._log.close()
        if not self.finished.done():
            self.finished.set_result(None)


async def follow(log: Log, fd: int) -> "asyncio.Future[None]":
    """Feed `log` from a pipe until its last writer closes it; the future is done then."""
    pipe = os.fdopen(fd, "rb", 0)
    _, protocol = await asyncio.get_running_loop().connect_read_pipe(lambda: _Feeder(log), pipe)
    return protocol.finished
