"""Start or join a Ray cluster, list its nodes, and explain in one message what is wrong with it.

A process that is connected already, such as an actor of a trainer, keeps its connection.
"""

import asyncio
import importlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from nemo_gym.errors import ConfigError, DeadlineExceeded, GymError
from nemo_gym.serve.blocking import run_blocking

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
"""Timeout of the probe of an address: `ray.init` would wait for minutes."""
JOIN_SECONDS = 120.0
"""Longest wait for a cluster whose address accepts connections: other programs do so too, and Ray retries for long."""
CONNECT_ATTEMPTS, PAUSE_SECONDS = 4, 1.0
"""Attempts to join a cluster whose head accepts connections, and the pause after the first."""
CALL_SECONDS = 30.0
"""Longest wait for the head of the cluster, which may hang."""
CPU, IMPLICIT = "CPU", "node:"
HTTP2_HEADER_BYTES, HTTP2_SETTINGS = 9, 4
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, HTTP2_SETTINGS, 0, 0, 0, 0, 0])
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
    else:
        # The new cluster requires a token. Ray would write one into the home folder, where it changes the mode of every
        # later `ray start` of the user.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    _log_messages()
    try:
        _initialize(ray, address)
    except (RuntimeError, ConnectionError, ValueError) as error:
        if _is_refused_token(error):
            raise ClusterUnreachable(
                "the cluster requires its token (RAY_AUTH_MODE=token), and this process sent none or another one",
                where=f"Ray cluster at {address}",
                fix="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN unless ~/.ray/auth_token has the cluster's token",
            ) from error
        raise _explain(str(error), address) from error
    return True


def _is_refused_token(error: BaseException | None) -> bool:
    """Return whether the cause of an error is a missing or wrong token, which the message of Ray does not say."""
    while error is not None:
        if type(error).__name__ == "AuthenticationError":
            return True
        error = error.__cause__
    return False


def _initialize(ray: ModuleType, address: str | None) -> None:
    """Call `ray.init`; again if a head that accepts connections did not answer in time: busy machines are slow."""
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        try:
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                include_dashboard=None if address else False,
            )
            return
        except ConnectionError as error:
            if address is None or attempt == CONNECT_ATTEMPTS or _is_refused_token(error):
                raise
            logger.info("the head at %s did not answer; trying again", address)
            time.sleep(PAUSE_SECONDS * attempt)


async def connect_in_time(address: str | None) -> bool:
    """Connect as `connect` does, within JOIN_SECONDS; a thread that hangs does not delay the end of the process.

    Raises:
        ClusterUnreachable: as `connect` does, or what accepts connections at the address does not answer as Ray does.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is None:
        # The processes of a new cluster end with the thread that starts them, so it must outlive the call.
        return await asyncio.to_thread(connect, None)
    try:
        return await run_blocking(connect, address, timeout=JOIN_SECONDS)
    except DeadlineExceeded:
        raise ClusterUnreachable(
            f"the program at {address} does not answer as the head of a Ray cluster within {JOIN_SECONDS:g} s",
            where="ray_address",
            fix="give the address that `ray start --head` printed (port 6379 by default), or check `ray status` there",
        ) from None


def _log_messages() -> None:
    """Log what Ray would print on our standard output, which belongs to `--json`.

    Ray has no setting for it. tests/cluster/test_node_loss.py fails if the name of this private function changes.
    """

    def log_lines(data: Mapping[str, Any], **_: Any) -> None:
        logger.info("Ray: %s", "; ".join(data["lines"]))

    importlib.import_module("ray._private.worker").print_to_stdstream = log_lines  # type: ignore[attr-defined]


def _probe_address(address: str) -> None:
    """Raise ClusterUnreachable unless a server of HTTP/2 answers at `host:port`; other forms are left to Ray."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        if address in ("auto", "local"):
            return
        raise ClusterUnreachable(f"'{address}' is not HOST:PORT", where="ray_address", fix="such as 10.0.0.1:6379")
    if "://" in host:
        problem = f"'{address}' is the address of a dashboard or of Ray Client, not of a cluster's head"
        raise ClusterUnreachable(problem, where="ray_address", fix="give HOST:PORT without a scheme: 10.0.0.1:6379")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as connection:
            is_http2 = _answers_http2(connection)
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(
            f"no Ray cluster answers at {address}: {error}",
            where="ray_address",
            fix="start it with `ray start --head --port=6379`, or correct --ray-address",
        ) from None
    if not is_http2 and os.environ.get("RAY_USE_TLS", "0") == "0":
        raise ClusterUnreachable(
            f"what answers at {address} is not the head of a Ray cluster",
            where="ray_address",
            fix="give the address that `ray start --head` printed: port 6379 by default, not that of the dashboard",
        )


def _answers_http2(connection: socket.socket) -> bool:
    """Return whether the other side begins as HTTP/2 servers do, such as the head of a cluster: with SETTINGS."""
    try:
        connection.sendall(_HTTP2_GREETING)
        header = b""
        while len(header) < HTTP2_HEADER_BYTES:
            if not (data := connection.recv(HTTP2_HEADER_BYTES - len(header))):
                return False
            header += data
    except OSError:  # also of a program that says nothing for CONNECT_SECONDS
        return False
    return header[3] == HTTP2_SETTINGS


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


async def living_nodes_in_time() -> list[ClusterNode]:
    """Return the living nodes.

    Raises:
        ClusterUnreachable: the head of the cluster does not answer for CALL_SECONDS.
    """
    try:
        return await run_blocking(living_nodes, timeout=CALL_SECONDS)
    except DeadlineExceeded:
        problem = f"its head does not answer for {CALL_SECONDS:g} s"
        raise ClusterUnreachable(problem, where="Ray cluster", fix="check `ray status` on its head node") from None


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
                where="node_resources, and the resources of servers",
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
