"""One aiohttp session and one connection pool per event loop, opened on first use and closed with the loop.

Also the settings of outgoing calls (`GlobalAIOHTTPAsyncClientConfig`). These sessions are HTTP client sessions; session
cookies of resources servers are in `serve.session`.
"""

import asyncio
import atexit
import logging
import os
import resource
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self
from weakref import WeakKeyDictionary

from aiohttp import AddrInfoType, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from pydantic import BaseModel, Field

from nemo_gym.config.keys import KEYS
from nemo_gym.transport.event_loop import PerLoop
from nemo_gym.transport.large_bodies import limits
from nemo_gym.transport.model_connections import ConnectionPool
from nemo_gym.transport.response_errors import ServerResponse

logger = logging.getLogger("nemo_gym.transport")

KEEPALIVE_SECONDS = 15.0
"""Shorter than the 30 s of our servers, so that the client closes an idle connection and not the server."""


PER_HOST_KEY = "global_aiohttp_connector_limit_per_host"
CONCURRENCY_KEY = "num_samples_in_parallel"

OPEN_FILES = 65535
"""Open files that a server process asks for."""
OTHER_OPEN_FILES = 256
"""Open files that a process keeps for other purposes than connections to one host."""
MAX_TRAINER_CONNECTIONS = 4096
"""Connections of a trainer to one server in another process: as many as wait in a listen queue of Linux by default."""


class GlobalAIOHTTPAsyncClientConfig(BaseModel):
    """The global configuration keys for outgoing calls; other keys are ignored."""

    global_aiohttp_connector_limit: int = Field(KEYS["global_aiohttp_connector_limit"].default, ge=1)
    global_aiohttp_connector_limit_per_host: int = Field(KEYS[PER_HOST_KEY].default, ge=1)
    global_aiohttp_client_request_debug: bool = KEYS["global_aiohttp_client_request_debug"].default
    global_aiohttp_tcp_keepalive_idle_seconds: int = Field(
        KEYS["global_aiohttp_tcp_keepalive_idle_seconds"].default, ge=1
    )
    global_aiohttp_tcp_keepalive_interval_seconds: int = Field(
        KEYS["global_aiohttp_tcp_keepalive_interval_seconds"].default, ge=1
    )
    global_aiohttp_tcp_keepalive_probes: int = Field(KEYS["global_aiohttp_tcp_keepalive_probes"].default, ge=1)
    request_timeout_seconds: float = Field(KEYS["request_timeout_seconds"].default, gt=0)
    """Deadline of a call whose caller has none."""
    connect_timeout_seconds: float = Field(KEYS["connect_timeout_seconds"].default, gt=0)
    unreachable_timeout_seconds: float = Field(KEYS["unreachable_timeout_seconds"].default, gt=0)
    """Seconds, for all calls together, until a model endpoint that accepts no connection is given up.

    The time counts from the first failed connection of any call. The timeout is ten times as long for an endpoint that
    answered before, because the endpoint may be restarting.
    """
    max_model_answer_bytes: int = Field(KEYS["max_model_answer_bytes"].default, ge=1)
    max_body_bytes: int = Field(KEYS["max_body_bytes"].default, ge=1)

    @classmethod
    def from_global_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the settings from a global configuration; missing keys have their default values.

        If more rollouts run concurrently than the default connection limit per host, that limit is raised to their
        number, unless the configuration sets it.
        """
        values = {name: config[name] for name in cls.model_fields if config.get(name) is not None}
        concurrency = config.get(CONCURRENCY_KEY)
        if isinstance(concurrency, int) and concurrency > KEYS[PER_HOST_KEY].default:
            values.setdefault(PER_HOST_KEY, concurrency)
        return cls.model_validate(values)


Entry = tuple[ClientSession, AsyncGenerator[ClientSession, None], ConnectionPool]
"""Session of a loop, the generator that owns (opens and closes) the session, and the connection pool."""


class _SessionRegistry:
    """The sessions of this process, and the settings for new sessions."""

    def __init__(self) -> None:
        self.settings: GlobalAIOHTTPAsyncClientConfig | None = None
        self.by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Entry] = WeakKeyDictionary()


_sessions = _SessionRegistry()
_pools: PerLoop[list[ConnectionPool]] = PerLoop(lambda _: [])
"""Cache of the pool of each loop (a list of zero or one items), because looking up the session is slower."""
_DEFAULTS = GlobalAIOHTTPAsyncClientConfig()


def configure(settings: GlobalAIOHTTPAsyncClientConfig | None) -> None:
    """Set the settings for new sessions and the limits on bodies; None restores the defaults."""
    _sessions.settings = settings
    values = settings or _DEFAULTS
    limits.answer, limits.body = values.max_model_answer_bytes, values.max_body_bytes


def configure_once(config: Mapping[str, Any]) -> None:
    """Set the settings of a trainer from a global configuration, unless this process has settings.

    Calls beyond the connections wait for one, so that a trainer may send all its rows at once.
    """
    if not is_configured():
        values = GlobalAIOHTTPAsyncClientConfig.from_global_config(config)
        limit = min(values.global_aiohttp_connector_limit_per_host, MAX_TRAINER_CONNECTIONS)
        configure(values.model_copy(update={PER_HOST_KEY: limit}))


def settings() -> GlobalAIOHTTPAsyncClientConfig:
    return _sessions.settings or _DEFAULTS


def is_configured() -> bool:
    return _sessions.settings is not None


def has_session() -> bool:
    """Return True if the running loop has an open session; outside a loop, if any loop has one."""
    try:
        entry = _sessions.by_loop.get(asyncio.get_running_loop())
    except RuntimeError:
        return any(not entry[0].closed for entry in _sessions.by_loop.values())
    return entry is not None and not entry[0].closed


def current_session() -> ClientSession:
    """Return the session of the running loop; opens it on first use. Must be called from a coroutine."""
    return _current_entry()[0]


def current_pool() -> ConnectionPool:
    """Return the connection pool of the running loop; opens it on first use. Must be called from a coroutine."""
    pool = _pools.of(asyncio.get_running_loop())
    if not pool or pool[0].is_closed:
        pool[:] = [_current_entry()[2]]
    return pool[0]


def _current_entry() -> Entry:
    """Return the session, its owner and the pool of the running loop; create them on first use."""
    loop = asyncio.get_running_loop()
    entry = _sessions.by_loop.get(loop)
    if entry is not None and not entry[0].closed:
        return entry
    _drop_closed_loops()
    options = settings()
    configured = max(1, options.global_aiohttp_connector_limit_per_host // _worker_count())
    raise_open_files_limit(configured + OTHER_OPEN_FILES)
    possible = max(1, open_files_limit() - OTHER_OPEN_FILES)
    advice = f"raise {PER_HOST_KEY}"
    if configured > possible:
        advice = f"raise the open-file limit (ulimit -n {configured + 1024})"
    pool = ConnectionPool(
        per_host=min(configured, possible),
        idle_seconds=KEEPALIVE_SECONDS,
        connect_seconds=options.connect_timeout_seconds,
        configure=lambda connection: _enable_keepalive(connection, options),
        advice=advice,
    )
    owner = _managed_session(options, pool)
    entry = _sessions.by_loop[loop] = (_run_to_first_yield(owner), owner, pool)
    return entry


def raise_open_files_limit(limit: int = OPEN_FILES) -> None:
    """Raise the open-file limit of this process to `limit`, or to the maximum that the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (ValueError, OSError) as error:
        logger.warning("the open-file limit remains %d (%s)", soft, error)


def open_files_limit() -> int:
    """Return the maximum number of open files of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _worker_count() -> int:
    return max(1, int(os.environ.get("NEMO_GYM_FASTAPI_NUM_WORKERS") or 1))


async def _managed_session(
    options: GlobalAIOHTTPAsyncClientConfig, pool: ConnectionPool
) -> AsyncGenerator[ClientSession, None]:
    """Yield an open session; close the session and the pool when the generator is closed.

    `asyncio.run`, uvicorn and the test clients close all asynchronous generators of a loop before they close the loop,
    so the session is closed with its loop without an explicit hook.
    """
    connector = TCPConnector(
        limit=max(1, options.global_aiohttp_connector_limit // _worker_count()),
        limit_per_host=max(1, options.global_aiohttp_connector_limit_per_host // _worker_count()),
        keepalive_timeout=KEEPALIVE_SECONDS,
        socket_factory=lambda address: _keepalive_socket(address, options),
    )
    session = ClientSession(
        connector=connector,
        cookie_jar=DummyCookieJar(),
        timeout=ClientTimeout(total=None),
        response_class=ServerResponse,
    )
    try:
        yield session
    finally:
        pool.close()
        await session.close()


def _run_to_first_yield(owner: AsyncGenerator[ClientSession, None]) -> ClientSession:
    """Run the generator to its first yield and return the yielded session, which arrives as a `StopIteration`."""
    step = owner.__anext__()
    try:
        step.send(None)
    except StopIteration as yielded:
        session = yielded.value
        assert isinstance(session, ClientSession)
        return session
    raise RuntimeError("the session owner waited before its first yield")  # pragma: no cover


def _keepalive_socket(address: AddrInfoType, options: GlobalAIOHTTPAsyncClientConfig) -> socket.socket:
    """Open a socket with TCP keepalive, which detects a peer that disappeared without closing the connection."""
    family, socket_type, protocol, _, _ = address
    connection = socket.socket(family=family, type=socket_type, proto=protocol)
    _enable_keepalive(connection, options)
    return connection


def _enable_keepalive(connection: socket.socket, options: GlobalAIOHTTPAsyncClientConfig) -> None:
    """Enable TCP keepalive with the configured intervals."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", options.global_aiohttp_tcp_keepalive_idle_seconds),
        ("TCP_KEEPINTVL", options.global_aiohttp_tcp_keepalive_interval_seconds),
        ("TCP_KEEPCNT", options.global_aiohttp_tcp_keepalive_probes),
    ):
        if hasattr(socket, option):  # macOS has another name for TCP_KEEPIDLE
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _drop_closed_loops() -> None:
    """Close the sessions of loops that were closed without closing their asynchronous generators."""
    for loop in [loop for loop in _sessions.by_loop if loop.is_closed()]:
        _close_without_loop(_sessions.by_loop.pop(loop)[0])


def _close_without_loop(session: ClientSession) -> None:
    connector = session.connector
    session.detach()
    if connector is not None:
        connector._close()  # the public `close` must be awaited, but the loop is closed


async def close_current_session() -> None:
    """Close the session of the running loop; the next call opens a new session."""
    entry = _sessions.by_loop.pop(asyncio.get_running_loop(), None)
    if entry is not None:
        await entry[1].aclose()


def close_all() -> None:
    """Close every session whose loop is not running; called at exit."""
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
