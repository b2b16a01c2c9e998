"""Every server of one configuration, up and supervised, with the head that knows them."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.defaults import DEFAULT_HEAD_SERVER_PORT, PORT_RANGE
from nemo_gym.launch.hosting import boot_message
from nemo_gym.launch.http import Listening, close_all
from nemo_gym.launch.instances import Instance, instances
from nemo_gym.launch.link import Link, LinkedApp
from nemo_gym.launch.ports import listen, listen_for_head, listen_in_range, listen_privately, unix_name
from nemo_gym.launch.shares import Shares
from nemo_gym.launch.spawn import ExecSpawner, Spawner, ZygoteSpawner
from nemo_gym.launch.supervisor import Supervisor, Unit
from nemo_gym.launch.venv import Environment, VenvSettings, environments_for, inside
from nemo_gym.launch.venv_build import build_all
from nemo_gym.launch.waiting import ask_cells
from nemo_gym.net import local
from nemo_gym.serve.head import RUN_TOKEN_ENV_VAR, Place, head_app
from nemo_gym.serve.run import uvicorn_options
from nemo_gym.serve.session import SESSION_SECRET_ENV_VAR

CELLS_KEY = "num_cells"


@dataclass(frozen=True)
class Listeners:
    """The sockets of a run, all bound before anybody is told a port."""

    instances: dict[str, socket.socket]
    cells: list[socket.socket]
    head: socket.socket

    def close(self) -> None:
        for listener in [*self.instances.values(), *self.cells, self.head]:
            listener.close()


def bind(config: DictConfig, found: Sequence[Instance], cells: int) -> Listeners:
    """Bind a socket for every instance, every cell's door and the head; write the real ports into `config`."""
    low = config.get("port_range_low") or PORT_RANGE[0]
    high = config.get("port_range_high") or PORT_RANGE[1]
    head_config = config["head_server"]
    taken = {instance.port for instance in found if instance.port > 0} | {head_config["port"], DEFAULT_HEAD_SERVER_PORT}
    with ExitStack() as opened:  # what was opened is closed again if a later one cannot be
        bound: dict[str, socket.socket] = {}
        for instance in found:
            if instance.port > 0:
                listener = listen(instance.name, instance.host, instance.port)
            else:
                listener = listen_in_range(instance.name, instance.host, low, high, taken)
            bound[instance.name] = opened.enter_context(listener)
            port = listener.getsockname()[1]
            taken.add(port)
            config[instance.name][instance.kind][instance.implementation]["port"] = port
        head = opened.enter_context(listen_for_head(head_config["host"], head_config["port"]))
        head_config["port"] = head.getsockname()[1]
        doors = [opened.enter_context(listen_privately()) for _ in range(cells)]
        opened.pop_all()
    return Listeners(bound, doors, head)


class Run:
    """A running set of servers. Use as `async with Run(config, roots) as run:`."""

    def __init__(
        self,
        config: DictConfig,
        roots: Sequence[Path],
        *,
        cells: int = 1,
        log_dir: Path | None = None,
        watch: Callable[[str, str], None] | None = None,
        links: bool = True,
    ) -> None:
        """`links=False` is for a run on a thread of its own: links belong to its loop, callers are on others."""
        self.config = config
        self._roots = roots
        self._cells = cells
        self._log_dir = log_dir
        self._watch = watch
        self._supervisor = Supervisor(watch=watch, ended=self._unit_ended)
        self._shares: Shares | None = None
        self._listeners: Listeners | None = None
        self._zygote = ZygoteSpawner(self._supervisor.exited)
        self._head: Listening | None = None
        self._token = secrets.token_urlsafe(32)
        self._links: list[Link] = []
        self._with_links = links
        self._started = time.time()
        self.instances: list[Instance] = []

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        plain = OmegaConf.to_container(self.config, resolve=True)
        assert isinstance(plain, dict)
        blocks = {str(key): value for key, value in plain.items()}
        found = instances(blocks, self._roots)
        environments = await self._environments(found)
        in_cells = any(instance.hosting == "cell" for instance in found)
        self._listeners = bind(self.config, found, self._cells if in_cells else 0)
        ports = {name: listener.getsockname()[1] for name, listener in self._listeners.instances.items()}
        self.instances = [replace(instance, port=ports[instance.name]) for instance in found]
        self._shares = Shares(blocks, found, self._cells)
        if self._log_dir:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        env = self._environment()
        await self._zygote.start(self._boot(), self._inherited(), env)
        await self._supervisor.bring_up(self._units(self._isolated(environments, env)))
        await self._open_head()
        if self._with_links:
            self._mount_links()

    def _mount_links(self) -> None:
        """Calls from this process to a cell's servers take the short way, to the cell that has least to do."""
        self._make_links()
        for instance in self.instances:
            if instance.hosting == "cell":
                local.mount(instance.host, instance.port, LinkedApp(instance.name, self._idlest))

    def _make_links(self) -> None:
        if self._listeners is not None and not self._links:
            doors = enumerate(self._listeners.cells)
            self._links = [Link(unix_name(door), self._token, f"cell {number}") for number, door in doors]

    def _idlest(self) -> Link:
        return min(self._links, key=lambda link: link.in_flight)

    def _environment(self) -> dict[str, str]:
        """What server processes get: ours, and the secrets of this run."""
        return {
            **os.environ,
            SESSION_SECRET_ENV_VAR: secrets.token_urlsafe(32),
            RUN_TOKEN_ENV_VAR: self._token,
        }

    def _boot(self) -> dict[str, Any]:
        assert self._listeners is not None
        sockets = {name: listener.fileno() for name, listener in self._listeners.instances.items()}
        doors = [door.fileno() for door in self._listeners.cells]
        assert self._shares is not None
        return boot_message(self.config, self.instances, sockets, doors, self._shares.boot())

    def _inherited(self) -> list[int]:
        assert self._listeners is not None
        assert self._shares is not None
        sockets = [*self._listeners.instances.values(), *self._listeners.cells]
        return [*(listener.fileno() for listener in sockets), *self._shares.descriptors()]

    async def _environments(self, found: Sequence[Instance]) -> dict[str, Environment]:
        """The environments of isolated instances, made now if need be; before ports are taken, for it may take long."""
        settings = VenvSettings.from_config(self.config)
        environments = environments_for(found, settings)
        await build_all(environments.values(), settings, self._watch)
        return environments

    def _isolated(self, environments: Mapping[str, Environment], env: Mapping[str, str]) -> dict[str, Spawner]:
        """What starts each instance that has an interpreter of its own."""
        folders = {instance.name: instance.folder for instance in self.instances}
        return {
            name: ExecSpawner(
                environment.python,
                self._boot(),
                self._inherited(),
                inside(environment, folders[name].parent.parent, env),
                self._supervisor.exited,
            )
            for name, environment in environments.items()
        }

    def _units(self, isolated: Mapping[str, Spawner]) -> list[Unit]:
        assert self._listeners is not None
        units = [self._unit(f"cell {n}", {"kind": "cell", "cell": n}) for n in range(len(self._listeners.cells))]
        for instance in self.instances:
            if instance.hosting == "cell":
                continue
            for worker in range(instance.num_workers):
                name = instance.name if instance.num_workers == 1 else f"{instance.name} worker {worker}"
                request = {"kind": "process", "instance": instance.name, "worker": worker}
                units.append(self._unit(name, request, isolated.get(instance.name)))
        return units

    def _unit(self, name: str, request: Mapping[str, Any], spawner: Spawner | None = None) -> Unit:
        path = self._log_dir / f"{name.replace('/', '_').replace(' ', '_')}.log" if self._log_dir else None
        return Unit(name, {**request, "id": name}, spawner or self._zygote, path)

    async def _open_head(self) -> None:
        assert self._listeners is not None
        app = head_app(lambda: self.config, self.server_instances, self.waiting_for)
        self._head = Listening(app, self._listeners.head, uvicorn_options(self.config), lifespan=False)
        await self._head.open()

    def server_instances(self) -> list[dict[str, Any]]:
        """Every instance as the head tells it (contract: ServerInstanceDisplayConfig)."""
        pids = {unit.name: unit.pid for unit in self._supervisor.units}
        return [
            {
                "config_path": instance.name,
                "dir_path": str(instance.folder),
                "entrypoint": instance.entrypoint,
                "host": instance.host,
                "name": instance.implementation,
                "pid": pids.get(instance.name) or pids.get("cell 0") or pids.get(f"{instance.name} worker 0"),
                "port": instance.port,
                "process_name": instance.name,
                "server_type": instance.kind,
                "start_time": self._started,
                "status": None,
                "uptime_seconds": time.time() - self._started,
                "url": f"http://{instance.host}:{instance.port}",
            }
            for instance in self.instances
        ]

    def _unit_ended(self, unit: Unit) -> None:
        if self._shares is not None:
            self._shares.returned(unit.request)

    def lost(self) -> list[str]:
        """The processes that ended and are not started again."""
        return [unit.name for unit in self._supervisor.units if unit.given_up or _did_not_come_back(unit)]

    async def waiting_for(self, places: Sequence[Place]) -> dict[Place, str]:
        """What these rollouts (task, rollout) wait for right now, as far as the cells can see."""
        self._make_links()
        return await ask_cells(self._links, places)

    @property
    def is_lost(self) -> bool:
        """Whether no server is left and none will come back."""
        return bool(self._supervisor.units) and len(self.lost()) == len(self._supervisor.units)

    async def stop(self) -> None:
        """End every server and give back every port. Safe to repeat."""
        for instance in self.instances if self._with_links else ():
            local.unmount(instance.host, instance.port)
        for link in self._links:
            link.close()
        if self._head is not None:
            await close_all([self._head], grace=0.5)
            self._head = None
        await self._supervisor.stop()
        await self._zygote.close()
        if self._listeners is not None:
            self._listeners.close()
            self._listeners = None
        if self._shares is not None:
            self._shares.close()
            self._shares = None


def _did_not_come_back(unit: Unit) -> bool:
    ready = unit.ready
    return ready is not None and ready.done() and not ready.cancelled() and ready.exception() is not None
