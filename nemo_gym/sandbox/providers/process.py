"""Run an engine's command line: bounded in time and output, killed as a group."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

KILL_GRACE_S = 5.0
"""How long to wait for the pipes of a killed group to close before leaving them."""

_CHUNK = 1 << 16


class Sink(Protocol):
    """Where a stream of bytes goes; `full` once it would take no more."""

    full: bool

    def feed(self, chunk: bytes) -> None: ...


class Kept:
    """The first `limit` bytes, in memory; the rest is read and thrown away so the writer is not blocked."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.full = False
        self.data = bytearray()

    def feed(self, chunk: bytes) -> None:
        room = self.limit - len(self.data)
        self.full = self.full or len(chunk) > room
        self.data += chunk[:room]

    def text(self) -> str:
        """The bytes as text; what is not UTF-8 is shown as a replacement character."""
        return self.data.decode("utf-8", errors="replace")


class Saved:
    """At most `limit` bytes, written to an open file."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self.file = file
        self.limit = limit
        self.full = False
        self.size = 0

    def feed(self, chunk: bytes) -> None:
        room = self.limit - self.size
        self.full = self.full or len(chunk) > room
        self.size += self.file.write(chunk[:room])


@dataclass(frozen=True)
class Ended:
    """How a process ended. `return_code` is None when its clock ran out."""

    return_code: int | None
    stdout: str
    stderr: str
    cut: bool

    @property
    def timed_out(self) -> bool:
        return self.return_code is None


async def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    max_output_bytes: int,
    stdin: IO[bytes] | None = None,
    stdout: Sink | None = None,
    stderr: Kept | None = None,
    environ: Mapping[str, str] | None = None,
) -> Ended:
    """Run `argv` in a process group of its own and say how it ended.

    When the clock runs out, or this call is cancelled, the whole group is killed. A `stderr` that is passed in can
    still be read then.

    Raises:
        OSError: the program cannot be started.
        ValueError: an argument or a variable holds a zero byte.
    """
    out = stdout if stdout is not None else Kept(max_output_bytes)
    err = stderr if stderr is not None else Kept(max_output_bytes)
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=stdin if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=None if environ is None else dict(environ),
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    readers = asyncio.gather(_drain(process.stdout, out), _drain(process.stderr, err))
    ended = False
    try:
        async with asyncio.timeout(timeout_s):
            await readers
            await process.wait()
            ended = True
    except TimeoutError:
        pass  # said by `return_code` below
    finally:
        if not ended:
            await _kill(process, readers)
    return Ended(
        return_code=process.returncode if ended else None,
        stdout=out.text() if isinstance(out, Kept) else "",
        stderr=err.text(),
        cut=out.full or err.full,
    )


async def _drain(stream: asyncio.StreamReader, sink: Sink) -> None:
    while chunk := await stream.read(_CHUNK):
        sink.feed(chunk)


async def _kill(process: asyncio.subprocess.Process, readers: "asyncio.Future[tuple[None, None]]") -> None:
    """Kill the group, reap its leader and let go of the pipes, in bounded time."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    readers.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await readers
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), KILL_GRACE_S)
    # A grandchild that left the group may hold the pipes open; closing our ends frees the loop of them.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
