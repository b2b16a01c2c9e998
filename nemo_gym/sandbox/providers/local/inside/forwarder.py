"""Run a command and forward ports of the box's loopback interface to Unix sockets.

    python forwarder.py PORT=SOCKET … -- COMMAND ARGUMENT …

The command inherits the standard streams. The status is that of the command, 128 and the signal if it was killed.
"""

# ruff: noqa: T201

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys

HOST = "127.0.0.1"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_CHUNK = 1 << 16


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes to the end of the stream, then close the other side for writing."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _forward(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect a client with the Unix socket at `path` until both sides have ended."""
    with contextlib.suppress(OSError), contextlib.closing(writer):
        server_reader, server_writer = await asyncio.open_unix_connection(path)
        with contextlib.closing(server_writer):
            await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))


async def _run(ports: dict[int, str], command: list[str]) -> int:
    """Listen at the ports and run the command; return its status."""
    for port, path in ports.items():
        await asyncio.start_server(functools.partial(_forward, path), HOST, port)
    try:
        process = await asyncio.create_subprocess_exec(*command)
    except FileNotFoundError:
        print(f"{command[0]}: not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE
    status = await process.wait()
    return status if status >= 0 else 128 - status


def main(arguments: list[str]) -> int:
    """Parse the arguments and run the command."""
    end = arguments.index("--")
    pairs = [argument.partition("=") for argument in arguments[:end]]
    return asyncio.run(_run({int(port): path for port, _, path in pairs}, arguments[end + 1 :]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
