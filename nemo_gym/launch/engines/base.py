"""The interface of engines. An engine places the servers of a configuration; `ServerRun` is what runs then."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from omegaconf import DictConfig

from nemo_gym.config.keys import value_of
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.errors import ConfigError
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.launch.supervisor import LineCallback
from nemo_gym.serve.head import NodeState
from nemo_gym.serve.process_status import Crash, RunningHandler
from nemo_gym.wire.stored_rollout import RolloutId

CLUSTER_KEYS = ("num_nodes", "ray_address", "node_resources", "node_shared_path", "node_files")
"""Keys that only an engine for several machines reads."""
Notify = Callable[[str], None]
"""Called with a line for the user."""


class ServerPool(Protocol):
    """The nodes of a run that is spread over several machines."""

    async def open_workload(
        self,
        factory: str,
        options: Mapping[str, Any],
        on_join: Callable[[Any], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        """Run the workload that `factory` (`module:function`) creates from plain options on every node.

        `on_join` gets the link to each node, now and when one returns or joins. `on_end` is called once if no node is
        left and none has returned in time.
        """
        ...

    def report_loss(self, name: str, reason: str) -> None:
        """Start a node again whose link has failed."""
        ...

    def states(self) -> list[NodeState]:
        """Return the nodes with their load."""
        ...


class ServerRun(Protocol):
    """The running servers of a configuration; an asynchronous context that starts and stops them."""

    config: DictConfig
    instances: list[Instance]

    async def __aenter__(self) -> Self: ...

    async def wait_for_endpoints(self, notify: Notify) -> None:
        """Return when every model endpoint answers; raise ConfigError if one does not."""
        ...

    async def stop(self) -> None:
        """Stop every server. Idempotent."""
        ...

    @property
    def pool(self) -> ServerPool | None:
        """The nodes, if the rollouts are run on several machines; None if the servers are on this one."""
        ...

    @property
    def is_lost(self) -> bool:
        """True if every server has ended and will not be restarted."""
        ...

    @property
    def lost_instances(self) -> Collection[str]: ...

    def lost_processes(self) -> list[str]: ...

    def blocking_handler(self, instance: str) -> RunningHandler | None: ...

    def is_suspended(self, instance: str) -> bool: ...

    async def find_crashes(self, instance: str, since: float) -> Sequence[Crash]: ...

    def pending_calls(self, rollouts: Sequence[RolloutId]) -> Awaitable[Mapping[RolloutId, str]]:
        """Return the calls that these rollouts wait for."""
        ...


@dataclass(frozen=True)
class Placement:
    """What an engine starts: the configuration and where its component folders are."""

    config: DictConfig
    roots: Sequence[Path]
    cells: int = 1
    watch: LineCallback | None = None
    is_public: bool = False
    """True if clients on other machines call the servers (`env start`); else only this process does."""
    notify: Notify = lambda _: None


class Engine(Protocol):
    """Places the servers of a configuration."""

    def create_run(self, placement: Placement) -> ServerRun:
        """Return the servers, not started yet."""
        ...


def choose_engine(config: Mapping[str, Any]) -> Engine:
    """Return the engine that the key `engine` names.

    Raises:
        ConfigError: the engine needs a package that is not installed, or keys of a cluster are set without an engine.
    """
    if value_of(config, "engine") == "ray":
        from nemo_gym.launch.engines.ray.engine import RayEngine

        return RayEngine.from_config(as_dict(config))
    _check_cluster_keys(config)
    from nemo_gym.launch.engines.local import LocalEngine

    return LocalEngine()


def _check_cluster_keys(config: Mapping[str, Any]) -> None:
    """Refuse keys of a cluster without `engine`: the run would use this machine only. `engine: local` ignores them.

    Raises:
        ConfigError: such a key is set.
    """
    if config.get("engine") is not None:
        return
    for name in CLUSTER_KEYS:
        if config.get(name) is not None:
            problem = "it has no effect without `engine: ray`: the servers would run on this machine only"
            raise ConfigError(problem, where=name, fix="add --engine ray, or --engine local to ignore it")
