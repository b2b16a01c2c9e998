"""A small HTTP/1.1 client with a connection pool, for model endpoints without TLS.

Most calls of a run go to such endpoints and need no cookies, redirects, proxies, compression or streaming. With aiohttp
a rollout costs 40 % more CPU. `can_send` selects the requests for this client; aiohttp sends all other requests. Errors
are raised as exceptions of aiohttp, so that callers handle both clients in the same way.
"""

import asyncio
import logging
import socket
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, cast

import httptools
from aiohttp import ClientConnectorError, ClientPayloadError, ConnectionTimeoutError, ServerDisconnectedError
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from nemo_gym.transport.client_response import LocalResponse
from nemo_gym.transport.event_loop import SlotQueue, current_wake_up_queue, current_write_batch
from nemo_gym.transport.large_bodies import LARGE_BYTES, Decompressor, current_memory, limits, too_long
from nemo_gym.transport.response_errors import raise_named_error
from nemo_gym.wire.call_reply import Call, Reply

logger = logging.getLogger("nemo_gym.transport")

Address = tuple[str, int]
Configure = Callable[[socket.socket], None]

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
DNS_CACHE_SECONDS = 10.0
MAX_CONNECTING = 256
"""Maximum connections opened concurrently per host. More could overflow the accept queue of the server."""

POOL_IS_FULL = "all %d connections to %s:%d are in use; further calls wait for one. If the endpoint can handle more, %s"

_UNSUPPORTED_HEADERS = frozenset({"expect", "transfer-encoding", "connection", "upgrade", "content-length", "host"})
_SUPPORTED_OPTIONS = frozenset({"data", "headers"})


def can_send(method: str, url: URL, options: Mapping[str, Any]) -> bool:
    """Return True if this client supports a request: GET or POST, `http`, a body of bytes, no options but headers."""
    return (
        options.keys() <= _SUPPORTED_OPTIONS
        and isinstance(options.get("data", b""), bytes)
        and _is_supported(method, url, tuple(options.get("headers") or ()))
    )


@lru_cache(maxsize=1024)
def _is_supported(method: str, url: URL, header_names: tuple[str, ...]) -> bool:
    return (
        method in ("POST", "GET")
        and url.scheme == "http"
        and url.raw_user is None
        and _UNSUPPORTED_HEADERS.isdisjoint(name.lower() for name in header_names)
    )


def encode_request(
    method: str, url: URL, headers: Mapping[str, str], body: bytes, varying_headers: Mapping[str, str] = NO_HEADERS
) -> bytes:
    """Return the bytes of a request. All headers except `varying_headers` are cached in encoded form.

    Raises:
        ValueError: a header contains a line break or a null byte.
    """
    head = _encode_head(method, url, tuple(headers.items()))
    for name, value in varying_headers.items():
        head += f"\r\n{_header_line(name, value)}".encode()
    return b"%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


@lru_cache(maxsize=1024)
def _encode_head(method: str, url: URL, headers: tuple[tuple[str, str], ...]) -> bytes:
    first = f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\nAccept: */*"
    return "\r\n".join([first, *(_header_line(name, value) for name, value in headers)]).encode("utf-8")


def _header_line(name: str, value: str) -> str:
    if "\n" in value or "\r" in value or "\n" in name or "\r" in name or "\0" in value:
        raise ValueError("Newline, carriage return, or null byte detected in headers. Potential header injection.")
    return f"{name}: {value}"


class _Connection(asyncio.Protocol):
    """A connection that sends one request at a time and parses the answer."""

    def __init__(self, on_closed: Callable[["_Connection"], None]) -> None:
        self._on_closed = on_closed
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._wake_ups = current_wake_up_queue()
        self._write_batch = current_write_batch()
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self.reason = ""
        self.headers: list[tuple[str, str]] = []
        self._chunks: list[bytes] = []
        self._has_head = self._has_length = self._is_complete = self._is_kept_alive = self.is_compressed = False
        self._status = self._size = self._declared_size = 0
        self._failure: Exception | None = None
        self.release_memory: Callable[[], None] | None = None
        """Releases the memory that a large answer reserved; the owner of the answer calls it."""
        self.body_error: ClientPayloadError | None = None
        """The error that left the body incomplete; None for a complete body."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, max_bytes: int, *, reserves_memory: bool = False) -> tuple[int, bytes]:
        """Send a request and return the status and body. With `reserves_memory`, reserve the memory of a large body.

        `reason`, `headers`, `is_compressed`, `body_error` and `release_memory` describe the answer until the next
        request.

        Raises:
            ServerDisconnectedError: the server closed the connection before it answered.
            ClientPayloadError: the answer is not HTTP.
            ResponseTooLong: the body is longer than `max_bytes`.
        """
        assert self._transport is not None
        self._reset()
        self._max_bytes = max_bytes
        self._large_bytes = LARGE_BYTES if reserves_memory else max_bytes  # no body exceeds `max_bytes`
        self._answer = asyncio.get_running_loop().create_future()
        self._write_batch.put(self._transport, [request])
        try:
            await self._answer
            if not self._is_complete:
                await self._read_large()
        except BaseException:
            self.close()  # a late answer would be mistaken for the answer to the next request
            if self.release_memory is not None:
                self.release_memory()
            raise
        finally:
            self._answer = None
        if not self._is_kept_alive:
            self.close()
        elif self._size > self._large_bytes:
            self._transport.resume_reading()  # no effect unless the read that made the answer large also ended it
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        return self._status, body

    async def _read_large(self) -> None:
        """Reserve memory for an answer whose first part has been read, then read the rest."""
        assert self._transport is not None
        declared = 0 if self.is_compressed else self._declared_size
        self.release_memory = await current_memory().reserve(declared or self._max_bytes)
        self._answer = asyncio.get_running_loop().create_future()
        # Meanwhile the server may have closed the connection, which ends the answer.
        if self._failure is not None:
            raise self._failure
        if not self._is_complete:
            self._transport.resume_reading()
            await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; close the connection if they are unsolicited or not HTTP."""
        if self._answer is None:  # unsolicited bytes would be mistaken for an answer
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ClientPayloadError(f"the answer is not HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete an answer that ends with the connection, with `body_error` if truncated; fail a missing answer."""
        self._on_closed(self)
        if self._is_complete:
            return
        if self._has_head and not self._has_length and exc is None:
            self.on_message_complete()  # an answer without a length ends with the connection
        elif self._has_head:
            self.body_error = ClientPayloadError("the connection was closed in the middle of the answer")
            self.on_message_complete()
        else:
            self._fail(ServerDisconnectedError())

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise ValueError("a second answer to one request")

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; note whether the body has a length and whether it is compressed."""
        lowered = name.lower()
        if lowered in (b"content-length", b"transfer-encoding"):
            self._has_length = True  # chunks mark the end of the body as well as a length does
            self._declared_size = int(value) if value.isdigit() else 0
        elif lowered == b"content-encoding":
            self.is_compressed = value.lower() in (b"gzip", b"deflate")
        self.headers.append((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")))

    def on_headers_complete(self) -> None:
        self._has_head = True
        self._status = self._parser.get_status_code()
        self._is_kept_alive = self._parser.should_keep_alive()  # not available after the body was parsed
        if self._declared_size > self._max_bytes:
            self._refuse()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body. Refuse a body that is too long; stop reading one that must first reserve memory."""
        if self._failure is not None:
            return
        size = self._size
        self._size = new_size = size + len(body)
        if new_size > self._max_bytes:
            self._refuse()
            return
        self._chunks.append(body)
        if new_size > self._large_bytes >= size and self._transport is not None:
            self._transport.pause_reading()
            self._wake()

    def _refuse(self) -> None:
        """End the exchange with `ResponseTooLong`, without reading the rest of the answer."""
        self._chunks.clear()
        self._fail(too_long(self._max_bytes))
        self.close()

    def _wake(self) -> None:
        """Resume the task that waits for the answer."""
        answer = self._answer
        if answer is not None:
            self._wake_ups.put(lambda: None if answer.done() else answer.set_result(None))

    def on_message_complete(self) -> None:
        """Deliver the answer; discard an interim answer (status 1xx)."""
        if 100 <= self._status < 200:
            self._reset()
        elif self._answer is not None:
            self._is_complete = True
            self._wake()


class EndpointResponse(LocalResponse):
    """A complete answer of a model endpoint; reading a truncated body raises its error."""

    def __init__(
        self,
        method: str,
        url: URL,
        request_headers: tuple[Mapping[str, str], ...],
        status: int,
        content: bytes,
        connection: _Connection,
    ) -> None:
        self.reply = Reply(status, content, headers=connection.headers)
        self.status = status
        self._method = method
        self._url = url
        self._request_headers = request_headers
        self._reason = connection.reason
        self._body_error = connection.body_error
        self._release_memory = connection.release_memory

    @property
    def _call(self) -> Call:  # type: ignore[override]  # only errors need it
        headers = {name: value for part in self._request_headers for name, value in part.items()}
        return Call(self._method, "", "", headers=headers)

    @property
    def reason(self) -> str:
        return self._reason

    @property
    def url(self) -> URL:
        return self._url

    real_url = url

    async def read(self) -> bytes:
        if self._body_error is not None:
            raise_named_error(self._body_error, self)
            raise self._body_error
        return self.reply.body_bytes()

    async def decompress(self, max_bytes: int, *, reserves_memory: bool) -> None:
        """Decompress the body, a large one on a thread; raise `ResponseTooLong` if it is longer than `max_bytes`.

        A JSON object that is not compressed, although the header says so, stays as it is.
        """
        decompressor = Decompressor(self.reply.body_bytes(), max_bytes)
        try:
            if not decompressor.decode(LARGE_BYTES):
                if reserves_memory and self._release_memory is None:
                    self._release_memory = await current_memory().reserve(max_bytes)
                await asyncio.to_thread(decompressor.decode)
            self.reply.body = decompressor.body()
        except zlib.error as problem:
            if self.reply.body_bytes().startswith(b"{") and not decompressor.has_header:
                return
            self._body_error = self._body_error or ClientPayloadError(f"the answer cannot be decompressed: {problem}")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the memory that a large answer reserved."""
        if self._release_memory is not None:
            self._release_memory()


class _HostConnections:
    """The connections to one address, and the queue of requests that wait for a connection."""

    def __init__(self) -> None:
        self.idle: deque[_Connection] = deque()
        self.open = 0
        self.queue = SlotQueue()
        self.connecting = asyncio.Semaphore(MAX_CONNECTING)
        self.was_full = False

    def drop_connection(self) -> None:
        """Subtract a closed connection and give its slot to the first waiting request."""
        self.open -= 1
        self.queue.grant()


class ConnectionPool:
    """Connection pool of one event loop, with at most `per_host` connections to an address.

    Idle connections are reused for `idle_seconds`. `configure` is called with each new socket.
    """

    def __init__(
        self,
        *,
        per_host: int,
        idle_seconds: float,
        connect_seconds: float,
        configure: Configure,
        advice: str = "raise global_aiohttp_connector_limit_per_host",
    ) -> None:
        """Create an empty pool. `advice`, logged when the pool is full, says how to allow more connections."""
        self._advice = advice
        self._per_host = per_host
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._configure = configure
        self._resolutions: dict[Address, tuple[float, asyncio.Future[list[Any]]]] = {}
        self._hosts: dict[Address, _HostConnections] = {}
        self._connections: set[_Connection] = set()
        self.is_closed = False

    async def request(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes,
        *,
        varying_headers: Mapping[str, str] = NO_HEADERS,
        max_bytes: int | None = None,
    ) -> LocalResponse:
        """Send a request and return its complete answer of any status. Only opening a connection has a timeout here.

        A caller that passes `max_bytes` (default: `max_body_bytes`) must call `release` of the response when the body
        is no longer needed: a large body reserves memory.

        Raises:
            ClientConnectorError, ConnectionTimeoutError: the connection could not be established.
            ServerDisconnectedError, ClientPayloadError: the connection was lost, or the answer is not HTTP.
            ResponseTooLong: the answer is longer than `max_bytes`, compressed or decompressed.
        """
        request = encode_request(method, url, headers, body, varying_headers)
        address = (url.host or "", url.port or 80)
        host = self._hosts.get(address)
        if host is None:
            host = self._hosts[address] = _HostConnections()
        reserves_memory, max_bytes = max_bytes is not None, max_bytes or limits.body
        connection = await self._acquire(host, address, url)
        try:
            status, content = await connection.exchange(request, max_bytes, reserves_memory=reserves_memory)
            response = EndpointResponse(method, url, (headers, varying_headers), status, content, connection)
            is_compressed = connection.is_compressed
        finally:
            self._release(host, connection)
        if is_compressed:  # some servers compress although the request does not accept it
            await response.decompress(max_bytes, reserves_memory=reserves_memory)
        return response

    async def _acquire(self, host: _HostConnections, address: Address, url: URL) -> _Connection:
        """Return an idle connection or open a new one; wait if the limit per host is reached."""
        while True:
            while host.idle:
                connection = host.idle.pop()  # the most recently used connection, so that the others can expire
                if connection.is_open and time.monotonic() - connection.idle_since < self._idle_seconds:
                    return connection
                connection.close()
                host.open -= 1
            if host.open < self._per_host:
                break
            if not host.was_full:
                host.was_full = True
                logger.warning(POOL_IS_FULL, self._per_host, *address, self._advice)
            await host.queue.wait(host.queue.grant)
        host.open += 1
        try:
            async with host.connecting:
                return await self._connect(address, url)
        except BaseException:
            host.drop_connection()
            raise

    def _release(self, host: _HostConnections, connection: _Connection) -> None:
        """Return a connection to the pool, or count it as closed."""
        if connection.is_open:
            connection.idle_since = time.monotonic()
            host.idle.append(connection)
            host.queue.grant()
        else:
            host.drop_connection()

    async def _connect(self, address: Address, url: URL) -> _Connection:
        """Open a connection within the connect timeout; raise the exceptions of aiohttp."""
        try:
            async with asyncio.timeout(self._connect_seconds) as timer:
                open_socket = await self._open_socket(address)
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(self._new_connection, sock=open_socket)
                return connection
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise ConnectionTimeoutError(f"Connection timeout to host {url}") from error
        except OSError as error:
            key = ConnectionKey(address[0], address[1], False, True, None, None, None)
            raise ClientConnectorError(key, error) from error

    async def _open_socket(self, address: Address) -> socket.socket:
        """Return a socket connected to the first resolved address of the host that accepts a connection."""
        last_error = OSError(f"no address for {address[0]}")
        for family, kind, protocol, _, socket_address in await self._resolve(address):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._configure(connection)
                await asyncio.get_running_loop().sock_connect(connection, socket_address)
                return connection
            except OSError as error:
                connection.close()
                last_error = error
            except BaseException:
                connection.close()
                raise
        raise last_error

    async def _resolve(self, address: Address) -> list[Any]:
        """Resolve a host name. The result is cached; concurrent connections share one query."""
        resolved_at, resolution = self._resolutions.get(address, (0.0, None))
        now = time.monotonic()
        is_expired = now - resolved_at > DNS_CACHE_SECONDS
        if resolution is None or is_expired or (resolution.done() and resolution.exception()):
            query = asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)
            resolution = asyncio.ensure_future(query)
            self._resolutions[address] = (now, resolution)
        return await asyncio.shield(resolution)

    def _new_connection(self) -> _Connection:
        connection = _Connection(self._connections.discard)
        self._connections.add(connection)
        return connection

    def close(self) -> None:
        """Close every connection and cancel the resolution of host names."""
        self.is_closed = True
        for connection in list(self._connections):
            connection.close()
        for _, resolution in self._resolutions.values():
            resolution.cancel()
        self._hosts.clear()
