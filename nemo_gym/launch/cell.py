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

import uvloop
from omegaconf import DictConfig
from starlette.types import ASGIApp

from nemo_gym.errors import ConfigError
from nemo_gym.launch.handover import Handover
from nemo_gym.launch.http import Listening, close_all
from nemo_gym.launch.instances import Instance
from nemo_gym.launch.link import Door, Link
from nemo_gym.launch.waiting import WAITING, waiting_app
from nemo_gym.net import local, sessions
from nemo_gym.serve import garbage, run
from nemo_gym.serve.session import CELL_ENV_VAR
from nemo_gym.serve.watch import LoopWatch
from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, ServerClient, SimpleServer, server_config

GRACE_SECONDS = 5.0


def server_class(module: ModuleType) -> type[SimpleServer]:
    """The one server a module defines: the most derived concrete `SimpleServer` written in that file.

    Raises:
        ConfigError: there is none, or more than one.
    """
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, SimpleServer)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]
    leaves = [cls for cls in found if not any(other is not cls and issubclass(other, cls) for other in found)]
    if len(leaves) != 1:
        names = ", ".join(cls.__name__ for cls in leaves) or "none"
        raise ConfigError(
            f"defines {len(leaves)} server classes ({names}); a cell needs exactly one",
            where=str(module.__file__),
            fix="set `hosting: process` for this instance",
        )
    return leaves[0]


def imported(instance: Instance) -> ModuleType:
    """The instance's module.

    Raises:
        ConfigError: importing it fails.
    """
    try:
        _make_visible(instance)
        module = importlib.import_module(instance.module)
    except Exception as error:  # somebody else's module: whatever it raises is the answer
        raise ConfigError(
            f"{instance.folder / instance.entrypoint} cannot be imported: {type(error).__name__}: {error}",
            where=instance.name,
        ) from error
    if Path(str(module.__file__)).resolve() != instance.folder / instance.entrypoint:
        raise ConfigError(
            f"{instance.module} is already loaded from {module.__file__}",
            where=instance.name,
            fix="set `hosting: process` for this instance",
        )
    return module


def _make_visible(instance: Instance) -> None:
    """Let the package of the instance's kind find folders of the tree it lives in, whichever tree was loaded first."""
    package = importlib.import_module(instance.kind)
    tree = str(instance.folder.parent)
    if tree not in list(package.__path__):
        package.__path__ = [tree, *package.__path__]


def build_server(instance: Instance, config: DictConfig, client: ServerClient) -> SimpleServer:
    """Import an instance's module and construct its server.

    Raises:
        ConfigError: the module cannot be imported or its configuration is not valid.
    """
    cls = server_class(imported(instance))
    return cls(config=server_config(cls, config, instance.name), server_client=client)


@dataclass(frozen=True)
class Place:
    """Where a cell stands among its like: its number, its sockets, and the doors of all of them."""

    number: int
    listeners: Mapping[str, socket.socket]
    door: socket.socket
    addresses: Sequence[str]
    token: str


class Cell:
    """The servers of one cell, from construction to the last answer."""

    def __init__(self, config: DictConfig, hosted: Sequence[Instance], place: Place) -> None:
        self._config = config
        self._hosted = hosted
        self._place = place
        self._listening: list[Listening] = []
        self._servers: dict[str, SimpleServer] = {}
        self._apps: dict[str, ASGIApp] = {WAITING: waiting_app}
        self._door = Door(self._apps, place.token)
        self._answering: asyncio.Server | None = None
        self._links = [Link(address, place.token, f"cell {n}") for n, address in enumerate(place.addresses)]

    def build(self) -> None:
        """Construct every server and make it reachable from within the process."""
        sessions.configure(GlobalAIOHTTPAsyncClientConfig.from_global_config(self._config))
        client = ServerClient(
            head_server_config=ServerClient.load_head_server_config(), global_config_dict=self._config
        )
        for instance in self._hosted:
            server = build_server(instance, self._config, client)
            app = server.prepare_webserver(self._config)
            self._servers[instance.name], self._apps[instance.name] = server, app
            local.mount(instance.host, instance.port, app)

    async def open(self) -> None:
        """Answer on every port and at the door."""
        options = run.uvicorn_options(self._config)
        for instance in self._hosted:
            app = self._apps[instance.name]
            if len(self._links) > 1:
                app = Handover(app, self._servers[instance.name], self._place.number, self._links)
            listening = Listening(app, self._place.listeners[instance.name], options)
            await listening.open()
            self._listening.append(listening)
        loop = asyncio.get_running_loop()
        self._answering = await loop.create_unix_server(self._door.protocol, sock=self._place.door)

    async def close(self) -> None:
        """Let what is under way finish within the grace, then give everything back."""
        await close_all(self._listening, GRACE_SECONDS)
        if self._answering is not None:
            self._answering.close()
        await self._door.close()
        for link in self._links:
            link.close()
        for instance in self._hosted:
            local.unmount(instance.host, instance.port)
        await sessions.close_current_session()


async def _serve(config: DictConfig, hosted: Sequence[Instance], place: Place, ready: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cell = Cell(config, hosted, place)
    cell.build()
    await cell.open()
    garbage.settle()
    watch, rounds = LoopWatch(), garbage.Rounds()
    watch.start()
    rounds.start()
    run.tell_ready(ready)
    await stop.wait()
    rounds.close()
    watch.close()
    await cell.close()


def run_cell(config: DictConfig, hosted: Sequence[Instance], place: Place, ready: int) -> None:
    """Serve every hosted instance in this process until told to stop."""
    os.environ[CELL_ENV_VAR] = str(place.number)
    run.start_logging(verbose=bool(config.get("verbose")))
    run.raise_open_files_limit()
    sys.argv = ["gym"]
    uvloop.run(_serve(config, hosted, place, ready))
