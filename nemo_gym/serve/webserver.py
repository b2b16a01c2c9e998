"""Serve an app in this process: uvicorn, limits, log prefixes, and an end with the parent process."""

import ctypes
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import orjson
from omegaconf import DictConfig, open_dict
from starlette.types import ASGIApp

from nemo_gym.errors import ConfigError
from nemo_gym.serve.session import SESSION_SECRET_ENV_VAR, session_secret

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger("nemo_gym.serve")

WORKER_ENV_VAR = "IS_NEMO_GYM_FASTAPI_WORKER"
ENTRYPOINT_ENV_VAR = "IS_NEMO_GYM_FASTAPI_ENTRYPOINT"
NUM_WORKERS_ENV_VAR = "NEMO_GYM_FASTAPI_NUM_WORKERS"

LISTEN_FD_ENV_VAR = "NEMO_GYM_LISTEN_FD"
"""Descriptor of a socket that already listens on this server's address: the launcher binds, the server serves."""
READY_FD_ENV_VAR = "NEMO_GYM_READY_FD"
"""Descriptor of the pipe on which the launcher waits for the server to report that it is up."""

OPEN_FILES = 65535
KEEP_ALIVE_SECONDS = 30
"""Longer than the 15 s of our clients, so that the client closes idle connections."""
GRACEFUL_SHUTDOWN_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


def is_fastapi_worker() -> bool:
    """Return whether this process is a uvicorn worker of a server with `num_workers` > 1."""
    return os.environ.get(WORKER_ENV_VAR) == "1"


def is_fastapi_entrypoint(file_path: str) -> bool:
    """Return whether uvicorn imports this file as the app of a worker."""
    entrypoint = os.environ.get(ENTRYPOINT_ENV_VAR)
    if not is_fastapi_worker() or not entrypoint:
        return False
    ending = Path(entrypoint).parts
    return Path(file_path).resolve().parts[-len(ending) :] == ending


def uvicorn_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the uvicorn options for a global configuration."""
    show_access = bool(config.get("uvicorn_logging_show_200_ok", False))
    return {
        "loop": "uvloop",
        "http": "httptools",
        "timeout_graceful_shutdown": GRACEFUL_SHUTDOWN_SECONDS,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_worker_healthcheck": int(config.get("uvicorn_timeout_worker_healthcheck") or 30),
        "access_log": show_access,
        "log_level": "debug" if config.get("verbose") else ("info" if show_access else "warning"),
    }


def serve(app: ASGIApp, options: Mapping[str, Any]) -> None:
    """Serve `app` until a signal ends the process, on the socket of the launcher if there is one."""
    from nemo_gym.serve.uvicorn_server import ReportingServer  # uvicorn, which only a serving process needs

    server = ReportingServer(app, options)
    server.run(sockets=inherited_sockets())
    if not server.started:
        raise SystemExit(3)


def inherited_sockets() -> list[socket.socket] | None:
    """Return the socket that the launcher bound; None for a server started by hand."""
    fd = os.environ.get(LISTEN_FD_ENV_VAR)
    return [socket.socket(fileno=int(fd))] if fd else None


def is_launched() -> bool:
    """Return whether a launcher started this process and holds its socket."""
    return LISTEN_FD_ENV_VAR in os.environ


def report_ready(fd: int, *, failed: str | None = None) -> None:
    """Report to the launcher that this process is up, or the reason why it is not. Only the first report counts."""
    try:
        os.write(fd, orjson.dumps({"failed": failed} if failed else {"ready": True}) + b"\n")
        os.close(fd)
    except OSError:
        return  # the launcher ended, or has a report already


def serve_in_workers(entrypoint: str, num_workers: int, options: Mapping[str, Any]) -> None:
    """Serve `<type>/<implementation>/<file>.py` from `num_workers` processes that import it themselves.

    They share one signing secret, because each must accept a session that another one began.
    """
    os.environ[WORKER_ENV_VAR] = "1"
    os.environ[ENTRYPOINT_ENV_VAR] = entrypoint
    os.environ[NUM_WORKERS_ENV_VAR] = str(num_workers)
    os.environ.setdefault(SESSION_SECRET_ENV_VAR, session_secret())
    module = ".".join(Path(entrypoint).with_suffix("").parts)
    import uvicorn  # only a serving process needs it

    uvicorn.run(f"{module}:app", workers=num_workers, **options)


def join_ray(config: DictConfig) -> None:
    """Join the Ray cluster that `config` names, or start one and write its address there.

    Raises:
        ConfigError: Ray is not installed.
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
    ray.init(address=address, ignore_reinit_error=True)
    if not address:
        with open_dict(config):
            config["ray_head_node_address"] = ray.get_runtime_context().gcs_address


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that already accepts connections, so that no later call is too early.

    Raises:
        ConfigError: the address cannot be used, usually because the port is taken.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen ({error.strerror or error})",
            where=f"{host}:{port}",
            fix="stop what uses the port, or choose another one",
        ) from error
    return listening


def serve_in_thread(app: ASGIApp, *, host: str, port: int) -> "tuple[uvicorn.Server, threading.Thread]":
    """Start serving in a daemon thread; set `should_exit` on the server to stop it."""
    listening = listen(host, port)
    import uvicorn  # only a serving process needs it

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, loop="asyncio"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="nemo-gym-head", daemon=True)
    thread.start()
    return server, thread


def raise_open_files_limit(limit: int = OPEN_FILES) -> None:
    """Allow this process `limit` open files, or as many as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (ValueError, OSError) as error:
        logger.warning("the limit of open files stays at %d (%s)", soft, error)


def end_with_parent(sent: signal.Signals = signal.SIGTERM) -> bool:
    """Make the kernel end this process when its parent dies (Linux); False where that is not possible."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(_PR_SET_PDEATHSIG, int(sent), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


class PrefixedStream:
    """A text stream that puts a prefix before every line; everything else is the wrapped stream's."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self.prefix = prefix
        self._at_line_start = True

    def write(self, text: str) -> int:
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
    """Put `(<name>) ` before every line this process writes, logs included, unless a launcher does that.

    Doing it twice changes nothing.
    """
    if is_launched():
        return
    prefix = f"({name}) "
    for stream in ("stdout", "stderr"):
        current = getattr(sys, stream)
        if not isinstance(current, PrefixedStream):
            setattr(sys, stream, PrefixedStream(current, prefix))


def start_logging(*, verbose: bool) -> None:
    """Send our log to stderr, unless logging is configured already."""
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("nemo_gym").setLevel(level)
