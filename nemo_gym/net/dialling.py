"""A socket connected to a host: names resolved once for all who ask, addresses tried in their order."""

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from typing import Any

DNS_SECONDS = 10.0
"""How long a resolved name is remembered."""

Address = tuple[str, int]
Configure = Callable[[socket.socket], None]


class Dialling:
    """Makes connections for one event loop; `configure` is applied to each new socket."""

    def __init__(self, configure: Configure) -> None:
        self._configure = configure
        self._resolved: dict[Address, tuple[float, asyncio.Future[list[Any]]]] = {}

    async def dial(self, address: Address) -> socket.socket:
        """A socket connected to the first of the host's addresses that answers.

        Raises:
            OSError: none does, or the name is not known.
        """
        problem: OSError | None = None
        for family, kind, protocol, _, numeric in await self._addresses(address):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._configure(connection)
                await _connect(connection, numeric)
                return connection
            except OSError as error:
                connection.close()
                problem = error
            except BaseException:
                connection.close()
                raise
        raise problem or OSError(f"no address for {address[0]}")

    async def _addresses(self, address: Address) -> list[Any]:
        """The numeric addresses of a host; one question for all who ask at the same time."""
        known = self._resolved.get(address)
        now = time.monotonic()
        if known is None or now - known[0] > DNS_SECONDS or (known[1].done() and known[1].exception()):
            asking = asyncio.ensure_future(asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM))
            known = self._resolved[address] = (now, asking)
        return known[1].result() if known[1].done() else await asyncio.shield(known[1])

    def close(self) -> None:
        """Stop asking for addresses."""
        for _, asking in self._resolved.values():
            asking.cancel()
        self._resolved.clear()


async def _connect(connection: socket.socket, numeric: Any) -> None:
    """Connect a socket. To an endpoint on this machine that is done before we could begin to wait for it."""
    if connection.connect_ex(numeric) in (0, errno.EINPROGRESS):
        try:
            connection.getpeername()
            return
        except OSError:
            pass  # under way
    try:
        await asyncio.get_running_loop().sock_connect(connection, numeric)
    except OSError as error:
        if error.errno != errno.EISCONN:  # it was done in between
            raise
