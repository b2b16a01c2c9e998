"""Start or join a Ray cluster, list its nodes, and explain in one message what is wrong with it.

A process that is connected already, such as an actor of a trainer, keeps its connection.
"""

import importlib
import logging
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from nemo_gym.errors import ConfigError, GymError

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
"""Timeout of the probe of an address: `ray.init` would wait for minutes."""
CPU, IMPLICIT = "CPU", "node:"
_VERSIONS = re.compile(r"Ray: (?P<ray>\S+)\s+Python: (?P<python>\S+)")


class ClusterUnreachable(GymError):
    """The Ray cluster cannot be used."""

    exit_status = 3


@dataclass(frozen=True)
class ClusterNode:
    """A living node of the cluster."""

    node_id: str
    address: str
    resources: Mapping[str, float] = field(default_factory=dict)

    def has(self, resources: Mapping[str, float]) -> bool:
        """Return whether the node has these resources in total."""
        return all(self.resources.get(name, 0.0) >= amount for name, amount in resources.items())

    def __str__(self) -> str:
        return f"{self.address} ({format_resources(self.resources)})"


def format_resources(resources: Mapping[str, float]) -> str:
    """Format as `CPU 8, GPU 1, memory 16.0 GB`, without what every node has."""
    texts = []
    for name, amount in sorted(resources.items()):
        if name.startswith(IMPLICIT) or name == "object_store_memory":
            continue
        texts.append(f"{name} {amount / 1e9:.1f} GB" if name == "memory" else f"{name} {amount:g}")
    return ", ".join(texts) or "nothing"


def import_ray() -> ModuleType:
    """Import Ray.

    Raises:
        ConfigError: Ray is not installed.
    """
    # Ray would otherwise pass the environment of `uv run` to every worker.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)  # it logs that our thread sets no signal handler
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError("Ray is not installed", where="engine: ray", fix="pip install 'nemo-gym[ray]'") from None


def connect(address: str | None) -> bool:
    """Connect this process to the cluster at an address, or start one on this machine; return whether it is new here.

    Raises:
        ClusterUnreachable: nothing answers at the address, or the cluster has another version of Ray or Python.
    """
    ray = import_ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is not None:
        _probe_address(address)
    _log_messages()
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            include_dashboard=None if address else False,
        )
    except (RuntimeError, ConnectionError, ValueError) as error:
        raise _explain(str(error), address) from error
    return True


def _log_messages() -> None:
    """Log what Ray would print on our standard output, which belongs to `--json`.

    Ray has no setting for it. tests/cluster/test_node_loss.py fails if the name of this private function changes.
    """

    def log_lines(data: Mapping[str, Any], **_: Any) -> None:
        logger.info("Ray: %s", "; ".join(data["lines"]))

    importlib.import_module("ray._private.worker").print_to_stdstream = log_lines  # type: ignore[attr-defined]


def _probe_address(address: str) -> None:
    """Raise ClusterUnreachable if nothing accepts a connection at `host:port`; other forms are left to Ray."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        if address in ("auto", "local") or "://" in address:
            return
        raise ClusterUnreachable(f"'{address}' is not HOST:PORT", where="ray_address", fix="such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(
            f"no Ray cluster answers at {address}: {error}",
            where="ray_address",
            fix="start it with `ray start --head --port=6379`, or correct --ray-address",
        ) from None


def _explain(message: str, address: str | None) -> ClusterUnreachable:
    """Return the error for a message of Ray: one line, and for a version mismatch both pairs of versions."""
    versions = list(_VERSIONS.finditer(message))
    where = f"Ray cluster at {address}" if address else "Ray cluster of this machine"
    if len(versions) >= 2:
        there, here = versions[0], versions[1]
        differences = [
            f"{label} {there[name]} there, {here[name]} here"
            for name, label in (("ray", "Ray"), ("python", "Python"))
            if there[name] != here[name]
        ]
        problem = f"the cluster has other versions: {'; '.join(differences)}"
        return ClusterUnreachable(problem, where=where, fix="install the same versions of Ray and Python on every node")
    return ClusterUnreachable(" ".join(message.split())[:500], where=where, fix="check `ray status` on its head node")


def disconnect() -> None:
    """Close the connection that `connect` opened; a cluster that it started ends."""
    import_ray().shutdown()


def living_nodes() -> list[ClusterNode]:
    """Return the nodes of the cluster that are alive, the oldest first."""
    nodes: list[dict[str, Any]] = import_ray().nodes()
    return [
        ClusterNode(node["NodeID"], node["NodeManagerAddress"], dict(node["Resources"]))
        for node in nodes
        if node["Alive"]
    ]


def check_nodes(nodes: Sequence[ClusterNode], count: int | None, reserved: Mapping[str, float]) -> None:
    """Check that enough nodes have the resources that a node run reserves.

    Raises:
        ClusterUnreachable: fewer nodes than asked for, or no node has enough of a resource.
    """
    listed = "; ".join(map(str, nodes)) or "none"
    for name, amount in reserved.items():
        if not any(node.has({name: amount}) for node in nodes):
            raise ClusterUnreachable(
                f"no node has {format_resources({name: amount})}; nodes: {listed}",
                where="node_resources",
                fix="ask for less, or start nodes with it: ray start --resources",
            )
    usable = [node for node in nodes if node.has(reserved)]
    if count is not None and len(usable) < count:
        raise ClusterUnreachable(
            f"{count} nodes are wanted, but the cluster has {len(usable)} with {format_resources(reserved)}: {listed}",
            where="num_nodes (--nodes)",
            fix="start more nodes, or ask for fewer",
        )


def node_identity() -> tuple[str, str]:
    """Return the address and the id of the node of this process, which is an actor."""
    ray = import_ray()
    return str(ray.util.get_node_ip_address()), str(ray.get_runtime_context().get_node_id())
