"""HTTP/1.1 to a model endpoint without TLS: one request at a time on each of many kept connections.

A run makes most of its calls to such endpoints, and a general client spends several times what these need: no cookies,
redirects, proxies, compression or streaming. `Pool.request` sends bytes and returns the complete answer. What it cannot
do (`suits` says what) is for aiohttp, whose exceptions are raised here too, so that callers need not care who called.
"""

import asyncio
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple, cast

import httptools
from aiohttp import ClientConnectorError, ClientPayloadError, ConnectionTimeoutError, ServerDisconnectedError
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.net.dialling import Address, Configure, Dialling
from nemo_gym.net.local_response import LocalResponse
from nemo_gym.net.outbox import current_outbox
from nemo_gym.net.plain_request import suits, written
from nemo_gym.net.turns import current_turns

logger = logging.getLogger("nemo_gym.net")

GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS

CONNECTING_AT_ONCE = 256
"""More than that and a server's queue of new connections may overflow; what falls out is tried again seconds later."""

FULL = (
    "all %d connections to %s:%d are in use; more calls at once wait for one. If the endpoint can take more, raise "
    "global_aiohttp_connector_limit_per_host"
)


class _Connection(asyncio.Protocol):
    """One connection; at most one request on it."""

    def __init__(self, gone: Callable[["_Connection"], None]) -> None:
        self._gone = gone
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._turns = current_turns()
        self._outbox = current_outbox()
        self.idle_since = 0.0
        self._begin()

    def _begin(self) -> None:
        self.reason = ""
        self.headers: list[tuple[str, str]] = []
        self._chunks: list[bytes] = []
        self._has_head = self._has_length = self._is_done = self._is_kept = self.is_packed = False
        self._status = 0
        self.broken: ClientPayloadError | None = None
        """Why there is less of the answer than there should be."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; the status and body of its answer. The public attributes tell the rest, until the next.

        Raises:
            ServerDisconnectedError: the other side hung up before it answered.
            ClientPayloadError: what it answered is no HTTP.
        """
        assert self._transport is not None
        self._begin()
        self._waiting = asyncio.get_running_loop().create_future()
        self._outbox.put(self._transport, [request])
        try:
            await self._waiting
        except BaseException:
            self.close()  # an answer that comes now would be taken for that of the next request
            raise
        finally:
            self._waiting = None
        if not self._is_kept:
            self.close()
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        return self._status, body

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # nobody asked: whatever this is, it must not be taken for an answer
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ClientPayloadError(f"the answer is not HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone(self)
        if self._is_done:
            return  # the answer is whole and only waits for its turn
        if self._has_head and not self._has_length and exc is None:
            self.on_message_complete()  # such an answer ends with the connection
        elif self._has_head:
            self.broken = ClientPayloadError("the connection was closed in the middle of the answer")
            self.on_message_complete()
        else:
            self._fail(ServerDisconnectedError())

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def on_message_begin(self) -> None:
        if self._is_done:
            raise ValueError("a second answer to one request")

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        elif lowered == b"content-encoding":
            self.is_packed = value.lower() in (b"gzip", b"deflate")
        self.headers.append((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")))

    def on_headers_complete(self) -> None:
        self._has_head = True
        self._status = self._parser.get_status_code()
        self._is_kept = self._parser.should_keep_alive()  # later it no longer knows

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        if 100 <= self._status < 200:  # not the answer yet
            self._begin()
        elif self._waiting is not None:
            self._is_done = True
            waiting = self._waiting
            self._turns.take(lambda: None if waiting.done() else waiting.set_result(None))


class _Exchanged(NamedTuple):
    """One request and its answer."""

    method: str
    url: URL
    asked: Mapping[str, str]
    status: int
    reason: str
    said: list[tuple[str, str]]
    body: bytes
    broken: ClientPayloadError | None


class PlainResponse(LocalResponse):
    """A complete answer. Its headers are sorted when somebody asks for them; who reads half a body is told then."""

    history = ()
    closed = False
    model = None
    _content = None
    _cookies = None

    def __init__(self, exchanged: _Exchanged) -> None:
        self._exchanged = exchanged
        self.status = exchanged.status
        self._bytes = exchanged.body

    @property
    def reason(self) -> str:  # type: ignore[override]
        return self._exchanged.reason

    @property
    def method(self) -> str:  # type: ignore[override]
        return self._exchanged.method

    @property
    def url(self) -> URL:  # type: ignore[override]
        return self._exchanged.url

    real_url = url

    @cached_property
    def headers(self) -> CIMultiDictProxy[str]:  # type: ignore[override]
        return CIMultiDictProxy(CIMultiDict(self._exchanged.said))

    @property
    def _request_headers(self) -> CIMultiDictProxy[str]:  # type: ignore[override]
        return CIMultiDictProxy(CIMultiDict(self._exchanged.asked))

    async def read(self) -> bytes:
        if self._exchanged.broken is not None:
            raise self._exchanged.broken
        return self._bytes


class _Host:
    """The connections to one address, and who waits for one."""

    def __init__(self) -> None:
        self.idle: deque[_Connection] = deque()
        self.open = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self.was_full = False


class Pool:
    """Connections of one event loop, at most `per_host` to an address; `configure` is applied to each new socket."""

    def __init__(self, *, per_host: int, keep_seconds: float, connect_seconds: float, configure: Configure) -> None:
        self._per_host = per_host
        self._keep_seconds = keep_seconds
        self._connect_seconds = connect_seconds
        self._dialling = Dialling(configure)
        self._hosts: dict[Address, _Host] = {}
        self._connections: set[_Connection] = set()
        self.is_closed = False

    async def request(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes, *, once: tuple[str, str] | None = None
    ) -> LocalResponse:
        """Send a request and return its whole answer, whatever the status. How long to wait is for the caller to say.

        `once` is one more header. It has another value each time, while the others are written once for many calls.

        Raises:
            ClientConnectorError, ConnectionTimeoutError: no connection.
            ServerDisconnectedError, ClientPayloadError: the connection was lost, or what came is no HTTP.
        """
        request = written(method, url, headers, body, once)
        address = (url.host or "", url.port or 80)
        host = self._hosts.get(address)
        if host is None:
            host = self._hosts[address] = _Host()
        connection = await self._take(host, address, url)
        try:
            status, content = await connection.exchange(request)
            reason, said, broken = connection.reason, connection.headers, connection.broken
            if connection.is_packed:  # nobody asked for that, but it happens
                content, broken = _unpacked(content, broken)
        finally:
            self._give_back(host, connection)
        asked = headers if once is None else {**headers, once[0]: once[1]}
        return PlainResponse(_Exchanged(method, url, asked, status, reason, said, content, broken))

    async def _take(self, host: _Host, address: Address, url: URL) -> _Connection:
        while True:
            while host.idle:
                connection = host.idle.pop()  # the one used last: the others may grow old and go
                if connection.is_open and time.monotonic() - connection.idle_since < self._keep_seconds:
                    return connection
                connection.close()
                host.open -= 1
            if host.open < self._per_host:
                break
            if not host.was_full:
                host.was_full = True
                logger.warning(FULL, self._per_host, *address)
            await _turn(host)
        host.open += 1
        try:
            async with host.connecting:
                return await self._connect(address, url)
        except BaseException:
            self._leave(host)
            raise

    def _give_back(self, host: _Host, connection: _Connection) -> None:
        if connection.is_open:
            connection.idle_since = time.monotonic()
            host.idle.append(connection)
            _wake(host)
        else:
            self._leave(host)

    def _leave(self, host: _Host) -> None:
        host.open -= 1
        _wake(host)

    async def _connect(self, address: Address, url: URL) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_seconds) as timer:
                connected = await self._dialling.dial(address)
                _, connection = await asyncio.get_running_loop().create_connection(self._connection, sock=connected)
                return connection
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise ConnectionTimeoutError(f"Connection timeout to host {url}") from error
        except OSError as error:
            key = ConnectionKey(address[0], address[1], False, True, None, None, None)
            raise ClientConnectorError(key, error) from error

    def _connection(self) -> _Connection:
        connection = _Connection(self._connections.discard)
        self._connections.add(connection)
        return connection

    def close(self) -> None:
        """Hang up everywhere."""
        self.is_closed = True
        for connection in list(self._connections):
            connection.close()
        self._dialling.close()
        self._hosts.clear()


def _unpacked(content: bytes, broken: ClientPayloadError | None) -> tuple[bytes, ClientPayloadError | None]:
    try:
        return zlib.decompress(content, wbits=GZIP_OR_ZLIB), broken
    except zlib.error as error:
        return content, broken or ClientPayloadError(f"the answer cannot be decompressed: {error}")


async def _turn(host: _Host) -> None:
    """Wait until a connection comes free or may be made."""
    turn = asyncio.get_running_loop().create_future()
    host.waiting.append(turn)
    try:
        await turn
    except asyncio.CancelledError:
        if turn.done() and not turn.cancelled():  # it came at the same moment: for the next one
            _wake(host)
        raise


def _wake(host: _Host) -> None:
    while host.waiting:
        turn = host.waiting.popleft()
        if not turn.done():
            turn.set_result(None)
            return


__all__ = ["PlainResponse", "Pool", "suits"]
