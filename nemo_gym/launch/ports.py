"""Listening sockets: the parent process binds all of them and passes them to the servers, so that no ports clash."""

import errno
import logging
import random
import secrets
import socket
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from omegaconf import DictConfig

from nemo_gym.config.checks import read_key
from nemo_gym.config.defaults import OFFLINE_PORT
from nemo_gym.config.keys import DEFAULT_HEAD_SERVER_PORT
from nemo_gym.config.resolve import ResolvedConfig
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.launch.hosted_instances import Instance

logger = logging.getLogger(__name__)

BACKLOG = 4096
MAX_ATTEMPTS = 50
HEAD = "head_server"


class PortTaken(GymError, OSError):
    """The address that a server should listen on is in use."""

    exit_status = 3


def listen(name: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens on exactly `host:port` (0: any free port).

    Raises:
        PortTaken: another process listens there.
        ConfigError: the host is unknown, or this machine does not have the address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}", where=name, fix="correct 'host'") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} on {host} is in use",
                where=name,
                fix="stop the process that uses the port, or leave 'port' unset",
            ) from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", where=name) from error
    listener.setblocking(False)
    return listener


def listen_in_range(name: str, host: str, low: int, high: int, taken: Collection[int] = ()) -> socket.socket:
    """Return a socket that listens on a random free port of [low, high] that is not in `taken`.

    Raises:
        PortTaken: all ports that were tried, at most MAX_ATTEMPTS, were in use.
    """
    candidates = [port for port in range(low, high + 1) if port not in taken]
    for port in random.sample(candidates, min(MAX_ATTEMPTS, len(candidates))):
        try:
            return listen(name, host, port)
        except PortTaken:
            continue
    raise PortTaken(
        f"found no free port between {low} and {high}", where=name, fix="widen port_range_low / port_range_high"
    )


def with_open_head_port(resolved: ResolvedConfig) -> DictConfig:
    """Unset the head port of the configuration (OFFLINE_PORT) unless a user set it; return the configuration.

    A port that a user set is used or the run fails, because clients may depend on it. An unset port becomes the
    default port or, if that is in use, a free one (`listen_for_head`).
    """
    config, locations = resolved.config, resolved.locations
    is_configured = locations.where((HEAD,)) or any(source.tree.get(HEAD) for source in locations.sources)
    if not is_configured or config[HEAD].get("port") is None:
        config[HEAD]["port"] = OFFLINE_PORT
    return config


def listen_for_head(host: str, port: int) -> socket.socket:
    """Listen on the configured head port; if it is unset, on the default port, a higher free port, or any free port."""
    if port != OFFLINE_PORT:
        return listen(HEAD, host, port)
    for candidate in range(DEFAULT_HEAD_SERVER_PORT, DEFAULT_HEAD_SERVER_PORT + MAX_ATTEMPTS):
        try:
            listener = listen(HEAD, host, candidate)
        except PortTaken:
            continue
        if candidate != DEFAULT_HEAD_SERVER_PORT:
            logger.warning("port %d is in use; the head server uses %d", DEFAULT_HEAD_SERVER_PORT, candidate)
        return listener
    return listen(HEAD, host, 0)


def new_unix_name() -> str:
    """Return an unused abstract name of a Unix socket."""
    return f"\0nemo-gym-{secrets.token_hex(12)}"


def listen_on_unix_socket(name: str | None = None) -> socket.socket:
    """Return a listening Unix socket with an abstract name, which exists until the last process closes it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(name or new_unix_name())
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def refuse_connections(listener: socket.socket) -> None:
    """Refuse connections to a listening socket that other processes hold open too, and close the waiting ones."""
    with suppress(OSError):  # some systems report that a listening socket is not connected
        listener.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):  # no further connection waits
        while True:
            listener.accept()[0].close()


def unix_name(listener: socket.socket) -> str:
    """Return the name by which other processes connect to a Unix socket."""
    name = listener.getsockname()
    return name.decode() if isinstance(name, bytes) else str(name)


@dataclass(frozen=True)
class Listeners:
    """The listening sockets of a run."""

    instances: dict[str, socket.socket]
    cells: list[socket.socket]
    head: socket.socket
    quarantine: dict[str, socket.socket] = field(default_factory=dict)
    """The link listeners of instances that got a separate cell during the run."""

    def close(self) -> None:
        for listener in [*self.instances.values(), *self.cells, self.head, *self.quarantine.values()]:
            listener.close()


def bind_listeners(config: DictConfig, instances: Sequence[Instance], cells: int) -> Listeners:
    """Bind a socket for every instance, the link of every cell and the head; write the chosen ports into `config`."""
    low, high = read_key(config, "port_range_low"), read_key(config, "port_range_high")
    head_config = config[HEAD]
    taken = {one.port for one in instances if one.port > 0} | {head_config["port"], DEFAULT_HEAD_SERVER_PORT}
    with ExitStack() as opened:  # closes the bound sockets if another one cannot be bound
        bound: dict[str, socket.socket] = {}
        for instance in instances:
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
        links = [opened.enter_context(listen_on_unix_socket()) for _ in range(cells)]
        opened.pop_all()
    return Listeners(bound, links, head)
