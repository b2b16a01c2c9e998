"""Serve ASGI apps on listening sockets, any number of apps on one event loop."""

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from nemo_gym.errors import ConfigError
from nemo_gym.serve.access import AccessPolicy, policies
from nemo_gym.transport.event_loop import CoalescingTransport

logger = logging.getLogger(__name__)

PROCESS_OPTIONS = ("loop", "timeout_worker_healthcheck")
"""uvicorn options that apply to a whole process and not to one server."""


def coalescing_protocol(protocol: Any) -> Any:
    """Return a subclass of a uvicorn protocol that sends the head and body of a response in one write."""

    class CoalescingProtocol(protocol):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(CoalescingTransport(transport))

    return CoalescingProtocol


class AppListener:
    """One app served on one listening socket. `policy` replaces the access policy of this process."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        options: Mapping[str, Any],
        *,
        lifespan: bool = True,
        policy: AccessPolicy | None = None,
    ) -> None:
        app_options = {key: value for key, value in options.items() if key not in PROCESS_OPTIONS}
        self._config = uvicorn.Config(app, log_config=None, lifespan="auto" if lifespan else "off", **app_options)
        self._config.load()
        if policy is not None:
            policies[self._config] = policy
        self._lifespan = self._config.lifespan_class(self._config)
        self._state = ServerState()
        self._listener = listener
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Run the app's start-up code, then accept connections.

        Raises:
            ConfigError: the start-up code failed.
        """
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise ConfigError("the server's start-up code failed", where=str(self._listener.getsockname()))
        protocol = coalescing_protocol(self._config.http_protocol_class)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: protocol(config=self._config, server_state=self._state, app_state=self._lifespan.state),
            sock=self._listener,
        )

    def stop_accepting(self) -> None:
        """Stop accepting connections; close idle connections now and busy ones after their reply."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    @property
    def is_idle(self) -> bool:
        """True if no connection is open."""
        return not self._state.connections

    async def close(self) -> None:
        """Run the app's shut-down code."""
        await self._lifespan.shutdown()


async def close_listeners(listeners: list[AppListener], grace: float) -> None:
    """Stop accepting connections, wait up to `grace` seconds until all are closed, then shut down the apps."""
    for listener in listeners:
        listener.stop_accepting()
    try:
        async with asyncio.timeout(grace):
            while not all(one.is_idle for one in listeners):  # noqa: ASYNC110 - uvicorn has no event for closed connections
                await asyncio.sleep(0.02)
    except TimeoutError:
        busy = sum(not listener.is_idle for listener in listeners)
        logger.warning("%d servers still have open connections and are shut down", busy)
    await asyncio.gather(*(listener.close() for listener in listeners))
