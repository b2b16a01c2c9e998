"""Serving an app in this process: uvicorn, limits, log prefixes, and ending when the parent ends."""

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
"""Descriptor of a pipe on which the launcher waits to hear that the server is up."""

OPEN_FILES = 65535
KEEP_ALIVE_SECONDS = 30
"""Longer than our clients' 15 s: the side that sends requests should be the one to hang up."""
GRACEFUL_SHUTDOWN_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


def is_fastapi_worker() -> bool:
    """Whether this process is a uvicorn worker of a server with `num_workers` > 1."""
    return os.environ.get(WORKER_ENV_VAR) == "1"


def is_fastapi_entrypoint(file_path: str) -> bool:
    """Whether uvicorn is importing this very file as the app of a worker."""
    entrypoint = os.environ.get(ENTRYPOINT_ENV_VAR)
    if not is_fastapi_worker() or not entrypoint:
        return False
    wanted = Path(entrypoint).parts
    return Path(file_path).resolve().parts[-len(wanted) :] == wanted


def uvicorn_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """How uvicorn is to serve, given the global configuration."""
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
    """Serve `app` until a signal ends the process, on the socket the launcher gave us if it did."""
    from nemo_gym.serve.announced import AnnouncedServer  # uvicorn, which only a serving process needs

    server = AnnouncedServer(app, options)
    server.run(sockets=inherited_sockets())
    if not server.started:
        raise SystemExit(3)


def inherited_sockets() -> list[socket.socket] | None:
    """The socket the launcher bound for us; None when we were started by hand."""
    fd = os.environ.get(LISTEN_FD_ENV_VAR)
    return [socket.socket(fileno=int(fd))] if fd else None


def is_launched() -> bool:
    """Whether a launcher holds our socket and counts our processes."""
    return LISTEN_FD_ENV_VAR in os.environ


def tell_ready(fd: int, *, failed: str | None = None) -> None:
    """Tell the launcher that this process is up, or in words why it is not. Only the first word counts."""
    try:
        os.write(fd, orjson.dumps({"failed": failed} if failed else {"ready": True}) + b"\n")
        os.close(fd)
    except OSError:
        return  # the launcher is gone, or was told already


def serve_in_workers(entrypoint: str, num_workers: int, options: Mapping[str, Any]) -> None:
    """Serve `<type>/<implementation>/<file>.py` from `num_workers` processes that import it themselves.

    They share one signing secret: any of them must know a session that another one began.
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
        raise ConfigError("Ray is asked for but not installed", where="ray", fix="install nemo-gym[ray]") from error
    if ray.is_initialized():
        return
    address = config.get("ray_head_node_address")
    ray.init(address=address, ignore_reinit_error=True)
    if not address:
        with open_dict(config):
            config["ray_head_node_address"] = ray.get_runtime_context().gcs_address


def listen(host: str, port: int) -> socket.socket:
    """A socket that already accepts connections, so that whoever calls next is not too early.

    Raises:
        ConfigError: the address cannot be used, most often because the port is taken.
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


def raise_open_files_limit(wanted: int = OPEN_FILES) -> None:
    """Allow this process `wanted` open files, or as many as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (ValueError, OSError) as error:
        logger.warning("the limit of open files stays at %d (%s)", soft, error)


def end_with_parent(sent: signal.Signals = signal.SIGTERM) -> bool:
    """Ask the kernel to end this process when its parent dies (Linux); False where that cannot be asked."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(_PR_SET_PDEATHSIG, int(sent), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


class PrefixedStream:
    """A text stream that begins every line with a prefix; everything else is the wrapped stream's."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self.prefix = prefix
        self._at_line_start = True

    def write(self, text: str) -> int:
        if text:
            lines = text.split("\n")
            marked = [
                self.prefix + line if line and (number > 0 or self._at_line_start) else line
                for number, line in enumerate(lines)
            ]
            self._at_line_start = lines[-1] == ""
            self._stream.write("\n".join(marked))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prefix_output(name: str) -> None:
    """Begin every line this process writes with `(<name>) `, logs included, unless a launcher does that.

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
    """Send our log to stderr unless the process has already arranged where logs go."""
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("nemo_gym").setLevel(level)
