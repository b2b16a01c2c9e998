"""A cell: many server instances on one event loop, each on its own port, calling each other in memory."""

import asyncio
import importlib
import inspect
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import uvloop
from omegaconf import DictConfig
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.errors import ConfigError
from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.launch.hosting import Instance
from nemo_gym.launch.http_server import HttpServer, close_servers
from nemo_gym.serve import gc_tuning, webserver
from nemo_gym.serve.blocked_loop import LoopWatch
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.session import (
    CELL_ENV_VAR,
    SessionCodec,
    cell_of,
    cookie_name,
    cookie_values,
    session_secret,
)
from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, ServerClient, SimpleServer, server_config
from nemo_gym.transport import http_sessions, in_process
from nemo_gym.transport.cell_link import WAITING_CALLS, CellLink, CellListener, RemoteInstance, waiting_calls_app

GRACE_SECONDS = 5.0


def server_class(module: ModuleType) -> type[SimpleServer]:
    """Return the most derived concrete `SimpleServer` that a module defines.

    Raises:
        ConfigError: the module defines no such class, or more than one.
    """
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, SimpleServer)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]
    leaves = [cls for cls in classes if not any(other is not cls and issubclass(other, cls) for other in classes)]
    if len(leaves) != 1:
        names = ", ".join(cls.__name__ for cls in leaves) or "none"
        raise ConfigError(
            f"defines {len(leaves)} server classes ({names}); a cell needs exactly one",
            where=str(module.__file__),
            fix="set `hosting: process` for this instance",
        )
    return leaves[0]


class ServerImportError(ConfigError):
    """The module of a server cannot be imported."""


def import_server_module(instance: Instance) -> ModuleType:
    """Import the instance's module from its folder, even if the package was loaded from another search root first.

    Raises:
        ServerImportError: the import fails.
        ConfigError: another module of that name is loaded.
    """
    source = instance.folder / instance.entrypoint
    try:
        package = importlib.import_module(instance.kind)
        package_folder = str(instance.folder.parent)
        if package_folder not in list(package.__path__):
            package.__path__ = [package_folder, *package.__path__]
        module = importlib.import_module(instance.module)
    except Exception as error:  # a server module may raise anything
        raise ServerImportError(
            f"{source} cannot be imported: {type(error).__name__}: {error}", where=instance.name
        ) from error
    if Path(str(module.__file__)).resolve() != source:
        raise ConfigError(
            f"{instance.module} is already loaded from {module.__file__}",
            where=instance.name,
            fix="set `hosting: process` for this instance",
        )
    return module


@dataclass(frozen=True)
class CellSockets:
    """The number of a cell, its sockets, and the link addresses of all cells of the run."""

    number: int
    listeners: Mapping[str, socket.socket]
    link_listener: socket.socket
    link_addresses: Sequence[str]
    token: str


class SessionRouter:
    """Serves requests of this cell's sessions and forwards requests of other sessions to their cells.

    Cells share their ports, so any cell may accept a connection. A session is stored in the cell that created it; the
    session id in the signed cookie starts with the number of that cell.
    """

    def __init__(self, app: ASGIApp, server: SimpleServer, cell: int, links: Sequence[CellLink]) -> None:
        self._app = app
        self._cell = cell
        key = server.get_session_middleware_key()
        self._cookie = cookie_name(key)
        self._codec = SessionCodec(session_secret(), key)
        name = server.config.name
        self._forwarders = [FailureMiddleware(RemoteInstance(name, [link]), server_name=name) for link in links]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = self._owner(scope) if scope["type"] == "http" else self._cell
        await (self._app if owner == self._cell else self._forwarders[owner])(scope, receive, send)

    def _owner(self, scope: Scope) -> int:
        """Return the number of the cell that stores the request's session; this cell if there is no session yet."""
        owner = self._cell
        for cookie in cookie_values(scope, self._cookie):
            session: dict[str, Any] = self._codec.decode(cookie) or {}
            cell = cell_of(session.get(SESSION_ID_KEY, ""))
            owner = cell if cell is not None and cell < len(self._forwarders) else owner
        return owner


class Cell:
    """The servers of one cell: `build`, `open` and `close` them in this order."""

    def __init__(self, config: DictConfig, hosted: Sequence[Instance], sockets: CellSockets) -> None:
        self._config = config
        self._hosted = hosted
        self._sockets = sockets
        self._http_servers: list[HttpServer] = []
        self._servers: dict[str, SimpleServer] = {}
        self._apps: dict[str, ASGIApp] = {WAITING_CALLS: waiting_calls_app}
        self._cell_listener = CellListener(self._apps, sockets.token)
        self._link_server: asyncio.Server | None = None
        self._links = [
            CellLink(address, sockets.token, f"cell {n}") for n, address in enumerate(sockets.link_addresses)
        ]

    def build(self) -> None:
        """Construct every server and make it reachable from within the process."""
        http_sessions.configure(GlobalAIOHTTPAsyncClientConfig.from_global_config(self._config))
        client = ServerClient(
            head_server_config=ServerClient.load_head_server_config(), global_config_dict=self._config
        )
        for instance in self._hosted:
            cls = server_class(import_server_module(instance))
            server = cls(config=server_config(cls, self._config, instance.name), server_client=client)
            app = server.prepare_webserver(self._config)
            self._servers[instance.name], self._apps[instance.name] = server, app
            in_process.mount(instance.host, instance.port, app)

    async def open(self) -> None:
        """Accept requests on every port and on the link listener."""
        options = webserver.uvicorn_options(self._config)
        for instance in self._hosted:
            app = self._apps[instance.name]
            if len(self._links) > 1:
                app = SessionRouter(app, self._servers[instance.name], self._sockets.number, self._links)
            http_server = HttpServer(app, self._sockets.listeners[instance.name], options)
            await http_server.open()
            self._http_servers.append(http_server)
        loop = asyncio.get_running_loop()
        self._link_server = await loop.create_unix_server(
            self._cell_listener.protocol, sock=self._sockets.link_listener
        )

    async def close(self) -> None:
        """Let calls in flight finish within GRACE_SECONDS, then close every server, link and session."""
        await close_servers(self._http_servers, GRACE_SECONDS)
        if self._link_server is not None:
            self._link_server.close()
        await self._cell_listener.close()
        for link in self._links:
            link.close()
        for instance in self._hosted:
            in_process.unmount(instance.host, instance.port)
        await http_sessions.close_current_session()


async def _serve(config: DictConfig, hosted: Sequence[Instance], sockets: CellSockets, ready: int) -> None:
    """Serve until a signal; report to the descriptor `ready` when all servers accept requests."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cell = Cell(config, hosted, sockets)
    cell.build()
    await cell.open()
    gc_tuning.freeze()
    watch, gc_threshold = LoopWatch(), gc_tuning.AdaptiveThreshold()
    watch.start()
    gc_threshold.start()
    webserver.report_ready(ready)
    await stop.wait()
    gc_threshold.close()
    watch.close()
    await cell.close()


def run_cell(config: DictConfig, hosted: Sequence[Instance], sockets: CellSockets, ready: int) -> None:
    """Serve every hosted instance in this process until a signal ends it."""
    os.environ[CELL_ENV_VAR] = str(sockets.number)
    webserver.start_logging(verbose=bool(config.get("verbose")))
    webserver.raise_open_files_limit()
    sys.argv = ["gym"]
    uvloop.run(_serve(config, hosted, sockets, ready))
