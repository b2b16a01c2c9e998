"""One aiohttp session and one connection pool per event loop, made on first use and closed with the loop."""

import asyncio
import atexit
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self
from weakref import WeakKeyDictionary

from aiohttp import AddrInfoType, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from pydantic import BaseModel, Field

from nemo_gym.transport.event_loop import PerLoop
from nemo_gym.transport.model_connections import ConnectionPool

KEEPALIVE_SECONDS = 15.0
"""Shorter than our servers' 30 s, so that the client, not the server, ends an idle connection."""


DEFAULT_PER_HOST = 1024
PER_HOST_KEY = "global_aiohttp_connector_limit_per_host"
AT_ONCE_KEY = "num_samples_in_parallel"


class GlobalAIOHTTPAsyncClientConfig(BaseModel):
    """The global configuration keys that shape outgoing calls; other keys are ignored."""

    global_aiohttp_connector_limit: int = Field(default=100 * 1024, ge=1)
    global_aiohttp_connector_limit_per_host: int = Field(default=DEFAULT_PER_HOST, ge=1)
    global_aiohttp_client_request_debug: bool = False
    global_aiohttp_tcp_keepalive_idle_seconds: int = Field(default=60, ge=1)
    global_aiohttp_tcp_keepalive_interval_seconds: int = Field(default=10, ge=1)
    global_aiohttp_tcp_keepalive_probes: int = Field(default=3, ge=1)
    request_timeout_seconds: float = Field(default=3600.0, gt=0)
    """Deadline of a call whose caller has none."""
    connect_timeout_seconds: float = Field(default=30.0, gt=0)
    unreachable_timeout_seconds: float = Field(default=30.0, gt=0)
    """Seconds, for all calls together, until a model endpoint that accepts no connection is given up.

    An endpoint that has answered before may be restarting and gets ten times as long.
    """

    @classmethod
    def from_global_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the settings of a global configuration; the others keep their defaults.

        A run with more rollouts in flight than the default gets a connection for each, unless it sets the limit.
        """
        values = {name: config[name] for name in cls.model_fields if config.get(name) is not None}
        at_once = config.get(AT_ONCE_KEY)
        if isinstance(at_once, int) and at_once > DEFAULT_PER_HOST:
            values.setdefault(PER_HOST_KEY, at_once)
        return cls.model_validate(values)


Entry = tuple[ClientSession, AsyncGenerator[ClientSession, None], ConnectionPool]


class _SessionRegistry:
    """The sessions of this process and the settings for new ones."""

    def __init__(self) -> None:
        self.settings: GlobalAIOHTTPAsyncClientConfig | None = None
        self.by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Entry] = WeakKeyDictionary()


_sessions = _SessionRegistry()
_pools: PerLoop[list[ConnectionPool]] = PerLoop(lambda _: [])
"""The pool of each loop once it has one, because looking up the session costs more."""
_DEFAULTS = GlobalAIOHTTPAsyncClientConfig()


def configure(settings: GlobalAIOHTTPAsyncClientConfig | None) -> None:
    """Use these settings for sessions made from now on; None goes back to the defaults."""
    _sessions.settings = settings


def settings() -> GlobalAIOHTTPAsyncClientConfig:
    return _sessions.settings or _DEFAULTS


def is_configured() -> bool:
    return _sessions.settings is not None


def has_session() -> bool:
    """Return whether the running loop has an open session; outside a loop, whether any loop has."""
    try:
        entry = _sessions.by_loop.get(asyncio.get_running_loop())
    except RuntimeError:
        return any(not entry[0].closed for entry in _sessions.by_loop.values())
    return entry is not None and not entry[0].closed


def current_session() -> ClientSession:
    """Return the session of the running loop. Call it from a coroutine."""
    return _current_entry()[0]


def current_pool() -> ConnectionPool:
    """Return the connection pool of the running loop, closed with its session. Call it from a coroutine."""
    pool = _pools.of(asyncio.get_running_loop())
    if not pool or pool[0].is_closed:
        pool[:] = [_current_entry()[2]]
    return pool[0]


def _current_entry() -> Entry:
    loop = asyncio.get_running_loop()
    entry = _sessions.by_loop.get(loop)
    if entry is not None and not entry[0].closed:
        return entry
    _drop_closed_loops()
    options = settings()
    pool = ConnectionPool(
        per_host=max(1, options.global_aiohttp_connector_limit_per_host // _workers()),
        keep_seconds=KEEPALIVE_SECONDS,
        connect_seconds=options.connect_timeout_seconds,
        configure=lambda connection: _keep_alive(connection, options),
    )
    owner = _own_session(options, pool)
    entry = _sessions.by_loop[loop] = (_first_value(owner), owner, pool)
    return entry


def _workers() -> int:
    return max(1, int(os.environ.get("NEMO_GYM_FASTAPI_NUM_WORKERS") or 1))


async def _own_session(
    options: GlobalAIOHTTPAsyncClientConfig, pool: ConnectionPool
) -> AsyncGenerator[ClientSession, None]:
    """Yield an open session; close it and the pool when the generator is closed.

    An event loop closes its asynchronous generators just before it closes (`asyncio.run`, uvicorn and the test
    clients all do), so a generator is closed with its loop without any hook.
    """
    connector = TCPConnector(
        limit=max(1, options.global_aiohttp_connector_limit // _workers()),
        limit_per_host=max(1, options.global_aiohttp_connector_limit_per_host // _workers()),
        keepalive_timeout=KEEPALIVE_SECONDS,
        socket_factory=lambda address: _keepalive_socket(address, options),
    )
    session = ClientSession(connector=connector, cookie_jar=DummyCookieJar(), timeout=ClientTimeout(total=None))
    try:
        yield session
    finally:
        pool.close()
        await session.close()


def _first_value(owner: AsyncGenerator[ClientSession, None]) -> ClientSession:
    """Run the generator to its first yield without awaiting; nothing before it waits."""
    step = owner.__anext__()
    try:
        step.send(None)
    except StopIteration as yielded:
        session = yielded.value
        assert isinstance(session, ClientSession)
        return session
    raise RuntimeError("the session owner waited before its first yield")  # pragma: no cover


def _keepalive_socket(address: AddrInfoType, options: GlobalAIOHTTPAsyncClientConfig) -> socket.socket:
    """Open a socket that notices a peer which vanished without closing the connection."""
    family, kind, protocol, _, _ = address
    connection = socket.socket(family=family, type=kind, proto=protocol)
    _keep_alive(connection, options)
    return connection


def _keep_alive(connection: socket.socket, options: GlobalAIOHTTPAsyncClientConfig) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", options.global_aiohttp_tcp_keepalive_idle_seconds),
        ("TCP_KEEPINTVL", options.global_aiohttp_tcp_keepalive_interval_seconds),
        ("TCP_KEEPCNT", options.global_aiohttp_tcp_keepalive_probes),
    ):
        if hasattr(socket, option):  # macOS names the first one differently
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _drop_closed_loops() -> None:
    """Drop the sessions of loops that were closed without shutting their generators down."""
    for loop in [loop for loop in _sessions.by_loop if loop.is_closed()]:
        _close_without_loop(_sessions.by_loop.pop(loop)[0])


def _close_without_loop(session: ClientSession) -> None:
    connector = session.connector
    session.detach()
    if connector is not None:
        connector._close()  # the public form must be awaited; with its loop closed only bookkeeping is left


async def close_current_session() -> None:
    """Close the running loop's session; the next call opens a new one."""
    entry = _sessions.by_loop.pop(asyncio.get_running_loop(), None)
    if entry is not None:
        await entry[1].aclose()


def close_all() -> None:
    """Close every session from outside their loops (at exit)."""
    for loop in list(_sessions.by_loop):
        entry = _sessions.by_loop.get(loop)
        if entry is None or loop.is_running():
            continue
        del _sessions.by_loop[loop]
        if loop.is_closed():
            _close_without_loop(entry[0])
        else:
            loop.run_until_complete(entry[1].aclose())


atexit.register(close_all)
