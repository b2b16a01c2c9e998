"""Serving ASGI apps on sockets that already listen, any number of them on one event loop."""

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from nemo_gym.errors import ConfigError
from nemo_gym.net.outbox import Gathered

logger = logging.getLogger(__name__)

OF_THE_PROCESS = ("loop", "timeout_worker_healthcheck")
"""uvicorn options about the process; here the process is somebody else's business."""


def gathering(protocol: Any) -> Any:
    """A protocol of uvicorn, which writes head and body apart, with what a round writes sent together."""

    class Gathering(protocol):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(Gathered(transport))

    return Gathering


class Listening:
    """One app served on one listening socket."""

    def __init__(
        self, app: ASGIApp, listener: socket.socket, options: Mapping[str, Any], *, lifespan: bool = True
    ) -> None:
        chosen = {key: value for key, value in options.items() if key not in OF_THE_PROCESS}
        self._config = uvicorn.Config(app, log_config=None, lifespan="auto" if lifespan else "off", **chosen)
        self._config.load()
        self._lifespan = self._config.lifespan_class(self._config)
        self._state = ServerState()
        self._listener = listener
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Run the app's own start-up code, then accept connections."""
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise ConfigError("the server's own start-up code failed", where=str(self._listener.getsockname()))
        protocol = gathering(self._config.http_protocol_class)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: protocol(config=self._config, server_state=self._state, app_state=self._lifespan.state),
            sock=self._listener,
        )

    def stop_accepting(self) -> None:
        """Refuse new connections; idle ones are closed, busy ones end with their answer."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    @property
    def is_idle(self) -> bool:
        return not self._state.connections

    async def close(self) -> None:
        """Run the app's own shut-down code."""
        await self._lifespan.shutdown()


async def close_all(open_ones: list[Listening], grace: float) -> None:
    """Stop accepting everywhere, give what is under way `grace` seconds to end, then close."""
    for one in open_ones:
        one.stop_accepting()
    try:
        async with asyncio.timeout(grace):
            while not all(one.is_idle for one in open_ones):  # noqa: ASYNC110 - connections announce no end
                await asyncio.sleep(0.02)
    except TimeoutError:
        logger.warning(
            "%d servers still had open connections; they were cut", sum(not one.is_idle for one in open_ones)
        )
    for one in open_ones:
        await one.close()
