"""Serve an app in this process: uvicorn, limits, and log output."""

import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import orjson
from omegaconf import DictConfig, open_dict
from starlette.types import ASGIApp

from nemo_gym.config.keys import value_of
from nemo_gym.config.secret_text import MaskingFormatter
from nemo_gym.errors import ConfigError
from nemo_gym.serve.session import SESSION_SECRET_ENV_VAR, session_secret

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger("nemo_gym.serve")

WORKER_ENV_VAR = "IS_NEMO_GYM_FASTAPI_WORKER"
ENTRYPOINT_ENV_VAR = "IS_NEMO_GYM_FASTAPI_ENTRYPOINT"
NUM_WORKERS_ENV_VAR = "NEMO_GYM_FASTAPI_NUM_WORKERS"

LISTEN_FD_ENV_VAR = "NEMO_GYM_LISTEN_FD"
"""File descriptor of the listening socket that the launcher opened for this server."""
READY_FD_ENV_VAR = "NEMO_GYM_READY_FD"
"""File descriptor of the pipe on which the server reports readiness to the launcher."""

CHECKED_PROTOCOL = "nemo_gym.serve.access:CheckedProtocol"
GUARDED_PROTOCOL = "nemo_gym.serve.http_protocol:GuardedHttpProtocol"
"""Names of protocol classes: uvicorn imports them when it serves, because this module does not import uvicorn."""
KEEP_ALIVE_SECONDS = 30
"""Longer than the 15 s of our clients, so that the client closes idle connections and not the server."""
GRACEFUL_SHUTDOWN_SECONDS = 0.5


def is_fastapi_worker() -> bool:
    """Return True if this process is a uvicorn worker of a server with `num_workers` > 1."""
    return os.environ.get(WORKER_ENV_VAR) == "1"


def is_fastapi_entrypoint(file_path: str) -> bool:
    """Return True if uvicorn imports this file as the app of a worker."""
    entrypoint = os.environ.get(ENTRYPOINT_ENV_VAR)
    if not is_fastapi_worker() or not entrypoint:
        return False
    suffix = Path(entrypoint).parts
    return Path(file_path).resolve().parts[-len(suffix) :] == suffix


def uvicorn_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the uvicorn options for a global configuration."""
    show_access = bool(config.get("uvicorn_logging_show_200_ok", False))
    return {
        "loop": "uvloop",
        "http": CHECKED_PROTOCOL,
        "timeout_graceful_shutdown": GRACEFUL_SHUTDOWN_SECONDS,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_worker_healthcheck": int(value_of(config, "uvicorn_timeout_worker_healthcheck")),
        "access_log": show_access,
        "log_level": "debug" if config.get("verbose") else ("info" if show_access else "warning"),
    }


def serve(app: ASGIApp, options: Mapping[str, Any]) -> None:
    """Serve `app` until a signal ends the process, on the launcher's socket if this process has one."""
    from nemo_gym.serve.uvicorn_server import ReportingServer  # imports uvicorn, which only a serving process needs

    server = ReportingServer(app, options)
    server.run(sockets=inherited_sockets())
    if not server.started:
        raise SystemExit(3)


def inherited_sockets() -> list[socket.socket] | None:
    """Return the listening socket opened by the launcher; None if there is no launcher."""
    fd = os.environ.get(LISTEN_FD_ENV_VAR)
    return [socket.socket(fileno=int(fd))] if fd else None


def is_launched() -> bool:
    """Return True if a launcher started this process."""
    return LISTEN_FD_ENV_VAR in os.environ


def report_ready(fd: int, *, failed: str | None = None) -> None:
    """Report readiness, or the reason of a failed start, to the launcher. Only the first report has an effect."""
    try:
        os.write(fd, orjson.dumps({"failed": failed} if failed else {"ready": True}) + b"\n")
        os.close(fd)
    except OSError:
        return  # the launcher exited, or this process has already reported


def serve_in_workers(entrypoint: str, num_workers: int, options: Mapping[str, Any]) -> None:
    """Serve `<type>/<implementation>/<file>.py` in `num_workers` processes, each of which imports the file.

    The processes share the signing secret of session cookies, so that each accepts the sessions of the others.
    """
    os.environ[WORKER_ENV_VAR] = "1"
    os.environ[ENTRYPOINT_ENV_VAR] = entrypoint
    os.environ[NUM_WORKERS_ENV_VAR] = str(num_workers)
    os.environ.setdefault(SESSION_SECRET_ENV_VAR, session_secret())
    module = ".".join(Path(entrypoint).with_suffix("").parts)
    import uvicorn  # only a serving process needs it

    uvicorn.run(f"{module}:app", workers=num_workers, **options)


def join_ray(config: DictConfig) -> None:
    """Join the Ray cluster in `config`, or start a cluster and write its address to `config`.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be joined, for example one of another Python version.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "the configuration uses Ray, but it is not installed", where="ray", fix="install nemo-gym[ray]"
        ) from error
    if ray.is_initialized():
        return
    address = config.get("ray_head_node_address")
    try:
        ray.init(address=address, ignore_reinit_error=True)
    except (RuntimeError, ConnectionError, ValueError) as error:
        problem = f"cannot join the Ray cluster {address or 'of this machine'}: {' '.join(str(error).split())}"
        fix = "set ray_head_node_address, or RAY_ADDRESS=local for a cluster of this run alone"
        raise ConfigError(problem, where="ray", fix=fix) from error
    if not address:
        with open_dict(config):
            config["ray_head_node_address"] = ray.get_runtime_context().gcs_address


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, which queues connections until the server accepts them.

    Raises:
        ConfigError: the address cannot be used, usually because the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol, because asyncio sends the first bytes of a stream at once only for sockets that say it.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen ({error.strerror or error})",
            where=f"{host}:{port}",
            fix="stop the process that uses the port, or choose another port",
        ) from error
    return listener


def serve_in_thread(app: ASGIApp, *, host: str, port: int) -> "tuple[uvicorn.Server, threading.Thread]":
    """Serve `app` in a daemon thread; return the server and the thread. `server.should_exit = True` stops it."""
    listener = listen(host, port)
    import uvicorn  # only a serving process needs it

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        loop="asyncio",
        http=CHECKED_PROTOCOL,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,  # clients close idle connections after 5 s, the default of uvicorn too
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="nemo-gym-head", daemon=True)
    thread.start()
    return server, thread


class PrefixedStream:
    """A text stream that adds a prefix to every line; other methods are those of the wrapped stream."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self.prefix = prefix
        self._at_line_start = True

    def write(self, text: str) -> int:
        """Write `text` with the prefix at the start of each non-empty line."""
        if text:
            lines = text.split("\n")
            prefixed = [
                self.prefix + line if line and (number > 0 or self._at_line_start) else line
                for number, line in enumerate(lines)
            ]
            self._at_line_start = lines[-1] == ""
            self._stream.write("\n".join(prefixed))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prefix_output(name: str) -> None:
    """Prefix every line of log output (stdout and stderr) with `(<name>) `, unless a launcher does that. Idempotent."""
    if is_launched():
        return
    prefix = f"({name}) "
    for stream in ("stdout", "stderr"):
        current = getattr(sys, stream)
        if not isinstance(current, PrefixedStream):
            setattr(sys, stream, PrefixedStream(current, prefix))


def start_logging(*, verbose: bool) -> None:
    """Set the log level; write log output with secrets masked to stderr, unless logging is already configured."""
    level = logging.DEBUG if verbose else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MaskingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("nemo_gym").setLevel(level)
