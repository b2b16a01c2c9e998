"""A cell: many server instances on one event loop, each on its own port, calling each other in memory."""

import asyncio
import importlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from omegaconf import DictConfig
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.config.component_imports import first_on_path
from nemo_gym.config.keys import value_of
from nemo_gym.config.search_roots import _augment_sys_path
from nemo_gym.errors import ConfigError
from nemo_gym.keys import MCP_SESSION_TOKEN_HEADER, SESSION_ID_KEY
from nemo_gym.launch.app_listener import AppListener, close_listeners
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.serve import gc_tuning, rollout_budgets, webserver
from nemo_gym.serve.addresses import adopt_run_token
from nemo_gym.serve.blocked_loop import LoopWatch
from nemo_gym.serve.cancellation import CANCELLED_ROLLOUTS, cancel_here, set_other_cells
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.mcp import TokenSigner
from nemo_gym.serve.server_loop import ignore_cancellation, run_server_loop
from nemo_gym.serve.session import CELL_ENV_VAR, SessionCodec, cell_of, cookie_name, cookie_values, session_secret
from nemo_gym.server_utils import (
    GlobalAIOHTTPAsyncClientConfig,
    ServerClient,
    SimpleServer,
    find_server_class,
    server_config,
)
from nemo_gym.transport import http_sessions, in_process
from nemo_gym.transport.cell_link import WAITING_CALLS, CellLink, CellListener, RemoteInstance, waiting_calls_app
from nemo_gym.transport.run_token import RUN_TOKEN_ENV_VAR


class ServerImportError(ConfigError):
    """The module of a server cannot be imported."""


def load_server_class(instance: Instance) -> type[SimpleServer]:
    """Import the instance's module from its folder, even if another tree on `sys.path` has a folder of that name.

    Raises:
        ServerImportError: the import fails.
        ConfigError: another module of that name is loaded, or the module does not define exactly one server class.
    """
    source = instance.folder / instance.entrypoint
    fix = "set `hosting: process` for this instance"
    _augment_sys_path()
    try:
        with first_on_path(importlib.import_module(instance.kind), instance.folder.parent):
            module = importlib.import_module(instance.module)
    except Exception as error:  # a server module may raise anything
        raise ServerImportError(
            f"{source} cannot be imported: {type(error).__name__}: {error}", where=instance.name
        ) from error
    if Path(str(module.__file__)).resolve() != source:
        problem = f"{instance.module} is already loaded from {module.__file__}"
        raise ConfigError(problem, where=instance.name, fix=fix)
    server_class: type[SimpleServer] = find_server_class(module, SimpleServer, fix=fix)
    return server_class


_TOKEN_HEADER = MCP_SESSION_TOKEN_HEADER.lower().encode("ascii")


@dataclass(frozen=True)
class CellSockets:
    """The number of a cell, its sockets, and the addresses and the token of the links to all cells of the run."""

    number: int
    listeners: Mapping[str, socket.socket]
    link_listener: socket.socket
    link_addresses: Sequence[str]
    token: str
    is_shared: bool
    """True if other cells listen on the same ports."""


class SessionRouter:
    """Serves requests of this cell's sessions and forwards requests of other sessions to their cells.

    Cells share their ports, so any cell may accept a connection. A session is stored in the cell that created it; the
    session id, in the signed cookie or the token of an MCP client, starts with the number of that cell.
    """

    def __init__(self, app: ASGIApp, server: SimpleServer, cell: int, links: Sequence[CellLink]) -> None:
        self._app = app
        self._cell = cell
        key = server.get_session_middleware_key()
        self._cookie = cookie_name(key)
        self._codec = SessionCodec(session_secret(), key)
        self._tokens = TokenSigner(key)
        name = server.config.name
        # By cell number, as `links` are.
        self._forwarders = [FailureMiddleware(RemoteInstance(name, [link]), server_name=name) for link in links]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = self._owner(scope) if scope["type"] == "http" else self._cell
        await (self._app if owner == self._cell else self._forwarders[owner])(scope, receive, send)

    def _owner(self, scope: Scope) -> int:
        """Return the number of the cell of the last valid session of a request; that of this cell without one."""
        owner = self._cell
        for session_id in self._session_ids(scope):
            number = cell_of(session_id)
            if number is not None and number < len(self._forwarders):
                owner = number
        return owner

    def _session_ids(self, scope: Scope) -> Iterator[str]:
        """Yield the session ids in the valid cookies of a request and, for MCP, in its token."""
        for cookie in cookie_values(scope, self._cookie):
            session: dict[str, Any] = self._codec.decode(cookie) or {}
            yield session.get(SESSION_ID_KEY, "")
        for name, value in scope["headers"]:
            grant = self._tokens.verify(value.decode("latin-1")) if name == _TOKEN_HEADER else None
            if grant is not None:
                yield grant.session_id


def _build_servers(config: DictConfig, hosted: Sequence[Instance]) -> dict[str, tuple[SimpleServer, ASGIApp]]:
    """Construct the hosted servers and their apps; mount the apps, so that servers call each other in memory."""
    http_sessions.configure(GlobalAIOHTTPAsyncClientConfig.from_global_config(config))
    adopt_run_token(config, os.environ.get(RUN_TOKEN_ENV_VAR))
    client = ServerClient(head_server_config=ServerClient.load_head_server_config(), global_config_dict=config)
    servers: dict[str, tuple[SimpleServer, ASGIApp]] = {}
    for instance in hosted:
        cls = load_server_class(instance)
        server = cls(config=server_config(cls, config, instance.name), server_client=client)
        app = server.prepare_webserver(config)
        servers[instance.name] = server, app
        in_process.mount(instance.host, instance.port, app)
    return servers


async def _serve(
    config: DictConfig,
    hosted: Sequence[Instance],
    sockets: CellSockets,
    ready_fd: int,
    elsewhere: Sequence[tuple[Instance, int]],
) -> None:
    """Serve until a signal; report to the descriptor `ready_fd` when all servers accept requests.

    `elsewhere` are instances in quarantine: they crashed or blocked their cell repeatedly and have a separate cell,
    whose number is given; calls to them are forwarded. At the end, let calls in flight finish within a third of
    `shutdown_timeout_seconds`, then close every server, link and session.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    servers = _build_servers(config, hosted)
    links = [CellLink(address, sockets.token, f"cell {n}") for n, address in enumerate(sockets.link_addresses)]
    set_other_cells([link for number, link in enumerate(links) if number != sockets.number])
    rollout_budgets.set_cells(links)
    apps: dict[str, ASGIApp] = {
        WAITING_CALLS: waiting_calls_app,
        CANCELLED_ROLLOUTS: cancel_here,
        rollout_budgets.ROLLOUT_BUDGETS: rollout_budgets.count_here,
    }
    apps |= {name: app for name, (_, app) in servers.items()}
    for instance, cell in elsewhere:
        link = links[cell] = CellLink(sockets.link_addresses[cell], sockets.token, instance.name)
        apps[instance.name] = RemoteInstance(instance.name, [link])  # forwards calls that still arrive here
        in_process.mount(instance.host, instance.port, apps[instance.name])
    options = webserver.uvicorn_options(config)
    app_listeners = []
    for name, (server, app) in servers.items():
        routed = SessionRouter(app, server, sockets.number, links) if sockets.is_shared else app
        app_listeners.append(AppListener(routed, sockets.listeners[name], options))
        await app_listeners[-1].open()
    cell_listener = CellListener(apps, sockets.token)
    link_server = await loop.create_unix_server(cell_listener.protocol, sock=sockets.link_listener)
    gc_tuning.freeze()
    watch, gc_threshold = LoopWatch(), gc_tuning.AdaptiveThreshold()
    watch.start()
    gc_threshold.start()
    webserver.report_ready(ready_fd)
    await ignore_cancellation(stop.wait)
    gc_threshold.close()
    watch.close()
    await close_listeners(app_listeners, float(value_of(config, "shutdown_timeout_seconds")) / 3)
    link_server.close()
    await cell_listener.close()
    for link in links:
        link.close()
    await http_sessions.close_current_session()


def run_cell(
    config: DictConfig,
    hosted: Sequence[Instance],
    sockets: CellSockets,
    ready_fd: int,
    elsewhere: Sequence[tuple[Instance, int]] = (),
) -> None:
    """Serve the `hosted` instances in this process until a signal; call the instances `elsewhere` over links."""
    os.environ[CELL_ENV_VAR] = str(sockets.number)
    webserver.start_logging(verbose=bool(config.get("verbose")))
    http_sessions.raise_open_files_limit()
    sys.argv = ["gym"]  # servers have no command-line arguments
    run_server_loop(_serve(config, hosted, sockets, ready_fd, elsewhere), uvloop.new_event_loop)
