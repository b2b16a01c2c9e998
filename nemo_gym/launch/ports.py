"""Listening sockets, bound by the parent and handed to the server, so that no port is ever taken twice."""

import errno
import logging
import random
import secrets
import socket
from collections.abc import Iterable

from omegaconf import DictConfig

from nemo_gym.config.defaults import DEFAULT_HEAD_SERVER_PORT, OFFLINE_PORT
from nemo_gym.config.resolve import Resolved
from nemo_gym.errors import ConfigError, GymError

logger = logging.getLogger(__name__)

BACKLOG = 4096
MOST_TRIES = 50
HEAD = "head_server"


class PortTaken(GymError, OSError):
    """The address a server was told to listen on is in use."""

    exit_status = 3


def listen(name: str, host: str, port: int) -> socket.socket:
    """A socket listening on exactly `host:port` (0: any free port).

    Raises:
        PortTaken: somebody else is listening there.
        ConfigError: the address is not one of this machine's.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}", where=name, fix="correct 'host'") from error
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} on {host} is in use", where=name, fix="stop what listens there, or leave 'port' unset"
            ) from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", where=name) from error
    listener.setblocking(False)
    return listener


def listen_in_range(name: str, host: str, low: int, high: int, taken: Iterable[int] = ()) -> socket.socket:
    """A socket listening on a random free port of [low, high].

    Raises:
        PortTaken: fifty different ports were tried and all were in use.
    """
    candidates = [port for port in range(low, high + 1) if port not in set(taken)]
    for port in random.sample(candidates, min(MOST_TRIES, len(candidates))):
        try:
            return listen(name, host, port)
        except PortTaken:
            continue
    raise PortTaken(
        f"found no free port between {low} and {high}", where=name, fix="widen port_range_low / port_range_high"
    )


def with_open_head_port(resolved: Resolved) -> DictConfig:
    """The configuration, in which a head port that nobody wrote is still open.

    Whoever wrote one tells others of it, so it is kept or refused; only the usual port is exchanged for a free one.
    """
    config = resolved.config
    written = resolved.positions.where((HEAD,)) or any(source.tree.get(HEAD) for source in resolved.sources)
    if not written or config[HEAD].get("port") is None:
        config[HEAD]["port"] = OFFLINE_PORT
    return config


def listen_for_head(host: str, port: int) -> socket.socket:
    """The head's socket: on the port that was chosen, or when none was, on the usual one or the next that is free."""
    if port != OFFLINE_PORT:
        return listen(HEAD, host, port)
    for candidate in range(DEFAULT_HEAD_SERVER_PORT, DEFAULT_HEAD_SERVER_PORT + MOST_TRIES):
        try:
            listener = listen(HEAD, host, candidate)
        except PortTaken:
            continue
        if candidate != DEFAULT_HEAD_SERVER_PORT:
            logger.warning("port %d is in use; this run's head is at %d", DEFAULT_HEAD_SERVER_PORT, candidate)
        return listener
    return listen(HEAD, host, 0)


def listen_privately() -> socket.socket:
    """A Unix socket without a file, for processes of one run: its name vanishes with its last owner."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0nemo-gym-{secrets.token_hex(12)}")
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def unix_name(listener: socket.socket) -> str:
    """The name to connect to."""
    name = listener.getsockname()
    return name.decode() if isinstance(name, bytes) else str(name)
