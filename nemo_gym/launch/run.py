"""The running servers of one configuration and the head server that serves their addresses."""

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from omegaconf import DictConfig

from nemo_gym.config.checks import read_key
from nemo_gym.config.keys import value_of
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.secret_text import known_secrets, remember_secrets
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.launch.app_listener import AppListener, close_listeners
from nemo_gym.launch.cell_group import AnyLoopInstance, CellGroup, CellInstance
from nemo_gym.launch.hosted_instances import Instance, find_instances
from nemo_gym.launch.model_endpoints import SharedLimits, wait_for_endpoints
from nemo_gym.launch.ports import Listeners, bind_listeners, with_open_head_port
from nemo_gym.launch.server_process import ServerBoot
from nemo_gym.launch.spawners import ZygoteSpawner
from nemo_gym.launch.supervisor import LineCallback, ServerDidNotStart, ServerUnit, Supervisor
from nemo_gym.launch.venv import Venv, VenvSettings, instance_venvs, link_venv, venv_process_env
from nemo_gym.launch.venv_build import build_venvs
from nemo_gym.launch.zygote import ZygoteSpec
from nemo_gym.serve.access import AccessPolicy
from nemo_gym.serve.addresses import adopt_run_token, run_addresses
from nemo_gym.serve.head import head_app
from nemo_gym.serve.process_status import Crash, RunningHandler
from nemo_gym.serve.run_counts import RunCounts, run_metrics
from nemo_gym.serve.session import SESSION_SECRET_ENV_VAR
from nemo_gym.serve.webserver import uvicorn_options
from nemo_gym.transport import in_process, run_token
from nemo_gym.transport.cell_link import fetch_waiting_calls
from nemo_gym.wire.stored_rollout import RolloutId

logger = logging.getLogger(__name__)

CONSTRUCT_SECONDS = 600.0
"""Timeout for constructing one server in a dry run."""


def runnable_config(parser_config: GlobalConfigDictParserConfig) -> DictConfig:
    """Read a configuration for `Run`; log its warnings.

    Unset ports are chosen when they are bound, so that no other process can take them in between.

    Raises:
        ConfigError: the configuration is not valid or defines no servers.
    """
    parser = GlobalConfigDictParser()
    resolved = parser.resolve(parser_config.model_copy(update={"offline": True}))
    for warning in resolved.warnings:
        logger.warning(warning)
    config = with_open_head_port(resolved)
    parser.raise_on_no_server_instances(config)
    return config


async def _find_and_install(
    config: DictConfig, roots: Sequence[Path], watch: LineCallback | None
) -> tuple[list[Instance], dict[str, Venv]]:
    """Build the virtual environments of a configuration; return its instances and the environments by instance name."""
    instances = find_instances(as_dict(config), roots)
    settings = VenvSettings.from_config(config)
    venvs = instance_venvs(instances, settings)
    await build_venvs(venvs.values(), settings, watch)
    for instance in instances:
        venv = venvs.get(instance.name)
        link_venv(instance.folder, venv.target if venv else Path(sys.prefix), replace=False)
    return instances, venvs


def _interpreter_fields(venv: Venv | None, instance: Instance, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a spawn request that select the interpreter of an instance; empty without a venv."""
    if venv is None:
        return {}
    return {"python": str(venv.python), "env": venv_process_env(venv, instance.folder.parent.parent, env)}


class Run:
    """The servers of a configuration. Use as `async with Run(config, roots) as run:`."""

    def __init__(
        self,
        config: DictConfig,
        roots: Sequence[Path],
        *,
        cells: int = 1,
        log_dir: Path | None = None,
        watch: LineCallback | None = None,
        links: bool = True,
        own_loop: bool = True,
    ) -> None:
        """Prepare a run.

        `cells` and `log_dir` apply unless the configuration sets `num_cells` and `nemo_gym_log_dir`. `watch` is called
        with every line that servers print. Calls of this process to servers in cells use cell links: with `own_loop`
        those from the event loop of the run, otherwise those from any event loop. With `links=False` they use HTTP.
        """
        configured_log_dir = config.get("nemo_gym_log_dir")
        self.config = config
        self.instances: list[Instance] = []
        self._roots = roots
        self._cells = read_key(config, "num_cells") or cells
        self._log_dir = Path(configured_log_dir) if configured_log_dir else log_dir
        self._watch = watch
        self._supervisor = Supervisor(
            on_line=watch,
            on_end=self._handle_end,
            on_lost=self._handle_lost,
            start_timeout=float(value_of(config, "server_start_timeout_seconds")),
        )
        self._zygote = ZygoteSpawner(self._supervisor.handle_exit)
        self._limits: SharedLimits | None = None
        self._listeners: Listeners | None = None
        self._head: AppListener | None = None
        self._token = run_token.choose_token()
        self._cell_group: CellGroup | None = None
        self.lost_instances: set[str] = set()
        """Instances that no process serves or will serve."""
        self._with_links, self._is_on_own_loop = links, own_loop
        self._start_time = time.time()

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
        """Build virtual environments, bind ports, and start the zygote, the server processes and the head server."""
        # Before ports are bound, because building may take minutes.
        instances, venvs = await _find_and_install(self.config, self._roots, self._watch)
        cells = self._cells if any(instance.hosting == "cell" for instance in instances) else 0
        listeners = self._listeners = bind_listeners(self.config, instances, cells)
        self.instances = [
            replace(instance, port=listeners.instances[instance.name].getsockname()[1]) for instance in instances
        ]
        adopt_run_token(self.config, self._token)
        group = self._cell_group = CellGroup(self.instances, listeners, self._supervisor)
        self.lost_instances = group.lost_instances
        self._limits = SharedLimits(as_dict(self.config), instances, self._cells)
        if self._log_dir:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        spec = self._zygote_spec(listeners, group, self._limits)
        await self._zygote.start(spec)
        cell_units = group.create_units(self._unit, self._token)
        await self._supervisor.start([*cell_units, *self._process_units(spec, venvs)])
        app = head_app(
            lambda: self.config,
            self.server_instances,
            self.pending_calls,
            metrics=lambda: run_metrics(self.run_counts()),
        )
        policy = AccessPolicy.from_config(self.config, self._token)
        self._head = AppListener(app, listeners.head, uvicorn_options(self.config), lifespan=False, policy=policy)
        await self._head.open()
        if self._with_links:
            self._mount_links(group)

    def _zygote_spec(self, listeners: Listeners, group: CellGroup, limits: SharedLimits) -> ZygoteSpec:
        """Return what server processes receive: boot message, open files, our environment and secrets of the run."""
        run_secrets = {SESSION_SECRET_ENV_VAR: secrets.token_urlsafe(32), run_token.RUN_TOKEN_ENV_VAR: self._token}
        remember_secrets(run_secrets.values())
        boot = ServerBoot(
            config=as_dict(self.config),
            instances={instance.name: instance for instance in self.instances},
            listeners={name: listener.fileno() for name, listener in listeners.instances.items()},
            cell_listeners=[listener.fileno() for listener in listeners.cells],
            link_addresses=group.addresses,
            limits=limits.descriptors(),
            secrets=known_secrets(),
        )
        return ZygoteSpec(boot.model_dump(mode="json"), boot.descriptors(), {**os.environ, **run_secrets})

    def _process_units(self, spec: ZygoteSpec, venvs: Mapping[str, Venv]) -> list[ServerUnit]:
        """Return the units of the instances that are not hosted in cells, one for every worker."""
        units = []
        for instance in self.instances:
            if instance.hosting == "cell":
                continue
            interpreter = _interpreter_fields(venvs.get(instance.name), instance, spec.env)
            for worker in range(instance.num_workers):
                name = instance.name if instance.num_workers == 1 else f"{instance.name} worker {worker}"
                request = {"kind": "process", "instance": instance.name, "worker": worker, **interpreter}
                units.append(self._unit(name, request))
        return units

    def _unit(self, name: str, request: Mapping[str, Any]) -> ServerUnit:
        """Return a process to supervise. A single server may block ten times as long as a cell: it stops no other."""
        path = self._log_dir / f"{name.replace('/', '_').replace(' ', '_')}.log" if self._log_dir else None
        seconds = value_of(self.config, "blocked_cell_timeout_seconds") * (1 if request["kind"] == "cell" else 10)
        seconds = min(seconds, value_of(self.config, "request_timeout_seconds"))
        return ServerUnit(name, {**request, "id": name}, self._zygote, path, max_blocked_seconds=float(seconds))

    def _mount_links(self, group: CellGroup) -> None:
        """Route calls of this process to servers in cells over the link of the cell with the fewest calls in flight."""
        for instance in self.instances:
            if instance.hosting != "cell":
                continue
            if self._is_on_own_loop:
                in_process.mount_on_loop(instance.host, instance.port, CellInstance(instance.name, group))
            else:
                in_process.mount(instance.host, instance.port, AnyLoopInstance(instance.name, group))

    def server_instances(self) -> list[dict[str, Any]]:
        """Return every instance as the head server lists it (contract: ServerInstanceDisplayConfig)."""
        return [
            {
                "config_path": instance.name,
                "dir_path": str(instance.folder),
                "entrypoint": instance.entrypoint,
                "host": instance.host,
                "name": instance.implementation,
                "pid": self._pid(instance),
                "port": instance.port,
                "process_name": instance.name,
                "server_type": instance.kind,
                "start_time": self._start_time,
                "status": None,
                "uptime_seconds": time.time() - self._start_time,
                "url": f"http://{instance.host}:{instance.port}",
            }
            for instance in self.instances
        ]

    def _pid(self, instance: Instance) -> int | None:
        """Return the id of the first process that serves an instance; None if none runs."""
        pids = {unit.name: unit.pid for unit in self._supervisor.units}
        shared_name = "cell 0" if instance.hosting == "cell" else f"{instance.name} worker 0"
        return pids.get(instance.name) or pids.get(shared_name)

    def _handle_end(self, unit: ServerUnit) -> None:
        if self._limits is not None:
            self._limits.release(unit.request)
        if self._cell_group is not None:
            self._cell_group.handle_end(unit)

    def _handle_lost(self, unit: ServerUnit) -> None:
        if self._cell_group is not None:
            self._cell_group.handle_lost(unit)

    def blocking_handler(self, instance: str) -> RunningHandler | None:
        """Return the handler that blocks a process which serves an instance; None without one."""
        return self._cell_group.blocking_handler(instance) if self._cell_group else None

    def is_suspended(self, instance: str) -> bool:
        """Return whether every process that serves an instance is stopped from outside."""
        return self._cell_group is not None and self._cell_group.is_suspended(instance)

    async def find_crashes(self, instance: str, since: float) -> list[Crash]:
        """Return the crashes since a time of processes that serve an instance; wait for reports that may follow."""
        return await self._cell_group.find_crashes(instance, since) if self._cell_group else []

    def process_names(self) -> list[str]:
        """Return the names of all server processes."""
        return [unit.name for unit in self._supervisor.units]

    def lost_processes(self) -> list[str]:
        """Return the names of processes that ended and will not be restarted."""
        return [unit.name for unit in self._supervisor.units if unit.is_lost]

    def run_counts(self) -> RunCounts:
        """Return the `/run` requests of all server processes since the start."""
        return sum((unit.run_counts for unit in self._supervisor.units), RunCounts())

    @property
    def is_lost(self) -> bool:
        """True if every server process has ended and will not be restarted."""
        return bool(self._supervisor.units) and len(self.lost_processes()) == len(self._supervisor.units)

    async def pending_calls(self, rollouts: Sequence[RolloutId]) -> dict[RolloutId, str]:
        """Return the calls that these rollouts wait for, by rollout, as reported by the cells."""
        return await fetch_waiting_calls(self._cell_group.links if self._cell_group else [], rollouts)

    @property
    def pool(self) -> None:
        """The nodes of a cluster: none, the servers are on this machine."""
        return

    async def wait_for_endpoints(self, notify: Callable[[str], None]) -> None:
        """Return when every model endpoint answers.

        Raises:
            ConfigError: an endpoint does not answer in time.
        """
        await wait_for_endpoints(as_dict(self.config), notify)

    async def stop(self) -> None:
        """Stop every server and release every port. Idempotent."""
        for instance in self.instances if self._with_links else ():
            in_process.unmount(instance.host, instance.port)
        if self._cell_group is not None:
            self._cell_group.close()
        if self._head is not None:
            await close_listeners([self._head], grace=0.5)
            self._head = None
        await self._supervisor.stop(float(value_of(self.config, "shutdown_timeout_seconds")))
        await self._zygote.close()
        if self._listeners is not None:
            run_token.forget(run_addresses(self.config))
            self._listeners.close()
            self._listeners = None
        if self._limits is not None:
            self._limits.close()
            self._limits = None


async def construct_servers(
    config: DictConfig, roots: Sequence[Path], *, watch: LineCallback | None = None
) -> list[Instance]:
    """Construct every server of `config`, one after the other, without serving (a dry run); return the instances.

    Raises:
        ServerDidNotStart: servers could not be constructed; it has their names and last lines.
    """
    instances, venvs = await _find_and_install(config, roots, watch)
    dry_config = {**as_dict(config), "dry_run": True}
    supervisor = Supervisor(on_line=watch, start_timeout=CONSTRUCT_SECONDS)
    zygote = ZygoteSpawner(supervisor.handle_exit)
    null = os.open(os.devnull, os.O_RDWR)  # in place of the listening sockets, which a dry run does not use
    by_name = {instance.name: instance for instance in instances}
    listeners = dict.fromkeys(by_name, null)
    boot = ServerBoot(config=dry_config, instances=by_name, listeners=listeners, secrets=known_secrets())
    failures = []
    try:
        await zygote.start(ZygoteSpec(boot.model_dump(mode="json"), [null], os.environ))
        for name, instance in by_name.items():
            interpreter = _interpreter_fields(venvs.get(name), instance, os.environ)
            request = {"kind": "process", "id": name, "instance": name, **interpreter}
            try:
                await supervisor.start([ServerUnit(name, request, zygote, ends_when_ready=True)])
            except ServerDidNotStart as failure:
                failures.append(str(failure))
    finally:
        await supervisor.stop()
        await zygote.close()
        os.close(null)
    if failures:
        raise ServerDidNotStart(
            "\n".join(failures), where=f"{len(failures)} of {len(instances)} servers", fix="read the lines above"
        )
    return instances
