"""The actor on each node: one whole run of servers, as on a single machine, and the workload beside it.

`node_handle` makes the class an actor of Ray.
"""

import copy
import importlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym import component_search_roots, global_config
from nemo_gym.config.defaults import OFFLINE_PORT
from nemo_gym.config.instances import server_instances
from nemo_gym.config.keys import value_of
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.search_roots import _augment_sys_path
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.keys import EXTRA_ROOTS_ENV_VAR
from nemo_gym.launch.engines.component_archive import (
    code_versions,
    digest_of,
    unpack_components,
    version_differences,
)
from nemo_gym.launch.engines.ray.connection import node_identity
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.launch.model_endpoints import LIMIT_KEY
from nemo_gym.launch.run import Run
from nemo_gym.serve.run_counts import RunCounts
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import http_sessions, in_process, run_token
from nemo_gym.wire.call_reply import Call, Reply
from nemo_gym.wire.stored_rollout import RolloutId

logger = logging.getLogger(__name__)

MAX_LINES = 200
"""Lines of servers that are kept until the driver fetches them."""
PARENT_SECONDS = 0.5
"""Interval between two looks at the parent process."""
CAPTURE_FOLDERS = ("model_call_capture_dir",)


@dataclass(frozen=True)
class NodeSpec:
    """What a node run is started with."""

    name: str
    config: Mapping[str, Any] = field(repr=False)
    token: str = field(repr=False)
    cells: int
    versions: Mapping[str, str]
    digest: str
    """Digest of the component folders."""
    archive: bytes | None = field(default=None, repr=False)
    shared_path: str | None = None
    paths: tuple[str, ...] = ()
    """The component folders and files, by their path in the archive or below the shared path."""
    is_public: bool = False
    """True if clients on other machines call the servers; else only this machine reaches them."""


@dataclass(frozen=True)
class NodeReport:
    """The state of a node run, sent to the driver."""

    addresses: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Instance -> host and port."""
    cells: int = 0
    load: float = 0.0
    lost_processes: Sequence[str] = ()
    is_lost: bool = False
    lines: Sequence[tuple[str, str]] = ()
    """Lines that servers printed since the last report."""
    in_flight: int = 0
    """Rollouts of the workload, or requests for one (`/run`), without an answer."""
    runs: RunCounts = field(default_factory=RunCounts)
    pid: int = 0
    host: str = ""
    """Address of the node."""
    node_id: str = ""


class NodeProblem(GymError):
    """A node cannot run the servers of this run."""

    exit_status = 3


def end_with_parent_process() -> None:
    """End this process, and its servers with it, when its parent ends: the raylet of the node.

    Ray looks whether a process with the id of the raylet exists. A killed raylet that was not collected by its own
    parent still does, as in a container whose first process collects nothing; the servers would then run for good.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="nemo-gym-parent-watch", daemon=True).start()


class NodeRun:
    """The servers of one node. Its methods are called by the driver."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._stack = AsyncExitStack()
        self._collector: Any = None
        self._lines: deque[tuple[str, str]] = deque(maxlen=MAX_LINES)
        self._host, self._node_id = node_identity()
        end_with_parent_process()

    async def start(self, spec: NodeSpec) -> NodeReport:
        """Check that this node has the same code, and start the servers.

        Raises:
            NodeProblem: the node has other versions or other component folders.
            GymError: a server does not start.
        """
        if differences := version_differences(spec.versions, code_versions()):
            fix = "install the same versions on every node"
            problem = f"the code of the node differs: {'; '.join(differences)}"
            raise NodeProblem(problem, where=f"node {spec.name}", fix=fix)
        root = self._find_components(spec)
        os.chdir(root)
        os.environ[EXTRA_ROOTS_ENV_VAR] = str(root)
        os.environ[run_token.RUN_TOKEN_ENV_VAR] = spec.token
        _augment_sys_path(with_working_directory=False)
        config = _node_config(spec, self._host)
        http_sessions.raise_open_files_limit()
        http_sessions.configure(http_sessions.GlobalAIOHTTPAsyncClientConfig.from_global_config(config))
        run = Run(config, [root, *component_search_roots()], cells=spec.cells, watch=self._add_line)
        self._run = await self._stack.enter_async_context(run)
        global_config._GLOBAL_CONFIG_DICT = config
        await run.wait_for_endpoints(logger.info)
        return self.report()

    def _find_components(self, spec: NodeSpec) -> Path:
        """Return the folder with the component folders: shared with the driver, or unpacked from the archive."""
        if spec.shared_path is not None:
            root = Path(spec.shared_path)
            if not root.is_dir():
                raise NodeProblem(f"{root} is not a folder", where=f"node {spec.name}", fix="mount node_shared_path")
            if digest_of({name: root / name for name in spec.paths}) != spec.digest:
                problem = f"the component folders below {root} differ from those here"
                raise NodeProblem(problem, where=f"node {spec.name}", fix="use the same folder everywhere")
            return root
        assert spec.archive is not None
        return unpack_components(spec.archive, spec.digest, spec.paths)

    def _add_line(self, name: str, line: str) -> None:
        self._lines.append((name, line))

    @property
    def _started_run(self) -> Run:
        if self._run is None:
            raise NodeProblem("the servers of the node are not started")
        return self._run

    def report(self) -> NodeReport:
        """Return the state of the servers, and the lines that they printed since the last report."""
        run = self._started_run
        lines, runs = tuple(self._lines), run.run_counts()
        self._lines.clear()
        return NodeReport(
            addresses={instance.name: (instance.host, instance.port) for instance in run.instances},
            cells=sum(unit.startswith("cell ") for unit in run.process_names()),
            load=os.getloadavg()[0] / (os.cpu_count() or 1),
            lost_processes=run.lost_processes(),
            is_lost=bool(run.lost_instances) or run.is_lost,
            lines=lines,
            in_flight=self._collector.running if self._collector is not None else runs.in_flight,
            runs=runs,
            pid=os.getpid(),
            host=self._host,
            node_id=self._node_id,
        )

    async def open_workload(self, factory: str, options: Mapping[str, Any]) -> None:
        """Run a workload beside the servers; `factory` is `module:function`."""
        run = self._started_run
        module, _, function = factory.partition(":")
        head = BaseServerConfig.model_validate(as_dict(run.config["head_server"]))
        client = ServerClient(head_server_config=head, global_config_dict=run.config)
        workload = getattr(importlib.import_module(module), function)(client, run, options)
        self._collector = (await self._stack.enter_async_context(workload)).collector

    async def submit(self, jobs: Any, cancelled: Sequence[int]) -> None:
        """Pass jobs to the collector of the workload, and cancel others."""
        self._collector.cancel(cancelled)
        self._collector.submit(jobs)

    async def fetch(self, seconds: float) -> Any:
        """Return outcomes of the collector; wait up to `seconds` for the first one."""
        return await self._collector.fetch(seconds)

    async def handle(self, instance: str, call: Call) -> Reply:
        """Answer a call of the driver to a server of this node."""
        address = next(one for one in self._started_run.instances if one.name == instance)
        app = in_process.app_for_key(run_token.address_key(address.host, address.port))
        if app is not None:
            reply = await in_process.answer_call(app, call)
            return Reply(reply.status, reply.body_bytes(), headers=reply.header_list())
        from nemo_gym.transport.http import send

        base_url = f"http://{address.host}:{address.port}"
        headers = {"Content-Type": "application/json", **(call.headers or {})}
        response = await send(call.method, f"{base_url}{call.path}", data=call.body_bytes(), headers=headers)
        return Reply(response.status, await response.read(), headers=list(response.headers.items()))

    async def pending_calls(self, rollouts: Sequence[RolloutId]) -> Mapping[RolloutId, str]:
        """Return the calls that these rollouts wait for."""
        return await self._started_run.pending_calls(rollouts)

    async def stop(self) -> None:
        """Stop the workload and the servers. Idempotent."""
        await self._stack.aclose()


def limited_instances(config: Mapping[str, Any], instances: Sequence[Instance]) -> dict[str, int]:
    """Return the instances with a maximum of concurrent requests to their endpoint."""
    blocks = {one.name: config[one.name][one.kind][one.implementation] for one in instances}
    return {name: block[LIMIT_KEY] for name, block in blocks.items() if isinstance(block.get(LIMIT_KEY), int)}


def share_limits(config: Mapping[str, Any], instances: Sequence[Instance], index: int, count: int) -> Mapping[str, Any]:
    """Return the configuration of node `index` of `count`, with its part of each limit on concurrent requests.

    The parts add up to the limit, so that it holds for all nodes together.

    Raises:
        ConfigError: a limit is lower than the number of nodes.
    """
    limits = limited_instances(config, instances)
    if not limits:
        return config
    shared = copy.deepcopy(dict(config))
    for one in instances:
        if (limit := limits.get(one.name)) is None:
            continue
        if limit < count:
            problem = f"{limit} requests at a time cannot be shared by {count} nodes"
            raise ConfigError(problem, where=f"{one.name}.{LIMIT_KEY}", fix="raise it, or use fewer nodes (--nodes)")
        shared[one.name][one.kind][one.implementation][LIMIT_KEY] = limit // count + (index < limit % count)
    return shared


def _node_config(spec: NodeSpec, host: str) -> DictConfig:
    """Return the configuration of a node: its own ports, folders for captures, and the address of its servers."""
    config = OmegaConf.create(dict(spec.config))
    assert isinstance(config, DictConfig)
    # Nothing but the node itself calls this head: the driver has the head of the run.
    config["head_server"] = {"host": "127.0.0.1", "port": OFFLINE_PORT}
    for name in CAPTURE_FOLDERS:
        if config.get(name):
            config[name] = str(Path(str(config[name]), f"node-{spec.name}"))
    capture = config.get("token_id_capture")
    if isinstance(capture, DictConfig) and capture.get("dir"):
        capture["dir"] = str(Path(str(capture["dir"]), f"node-{spec.name}"))
    if spec.is_public:
        config["server_access"] = "token"
        default_host = str(value_of(config, "default_host"))
        for instance in server_instances(config).values():
            name, kind, implementation = instance.path
            block = config[name][kind][implementation]
            if block.get("host") in (default_host, "127.0.0.1", "localhost", None):
                block["host"] = host
    return config
