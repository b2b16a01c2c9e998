"""A registry of the runs of this user on this machine, so that commands find running servers without a port.

Commands that use running servers (`gym eval run --no-serve`) call `choose_run(selector)`. The folder may be in a
directory that all users write to, so it is opened without following links and used only if this user owns it and no
other user can read it. An entry contains the run token.
"""

import json
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.processes import start_ticks
from nemo_gym.transport import run_token

logger = logging.getLogger(__name__)

MAX_ENTRY_BYTES = 1024 * 1024
_ENTRY_NAME = re.compile(r"[0-9]{1,10}-[0-9]{1,5}\.json", re.ASCII)


@dataclass(frozen=True)
class RunEntry:
    """A registered run: the address of its head server and details for the user."""

    host: str
    port: int
    pid: int | None = None
    """The process that supervises the run; None for a head server that is not registered here."""
    born: int = 0
    """Start time of that process in clock ticks since boot; it detects a reused process id."""
    started: float = 0.0
    """Start time of the run, in seconds since the epoch."""
    folder: str = ""
    """The working directory of the process."""
    servers: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    """The run token; empty for a run that is not registered here."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        names = ", ".join(self.servers[:4]) + (", …" if len(self.servers) > 4 else "")
        start = time.strftime("%H:%M:%S", time.localtime(self.started)) if self.started else "unknown"
        return f"{self.address}  pid {self.pid}  since {start}  {names}  in {self.folder}"


class NoRunFound(GymError, LookupError):
    """No servers are running."""

    exit_status = 3


class RunNotChosen(ConfigError, LookupError):
    """The selector does not name exactly one run."""

    exit_status = 2


class UnsafeRegistry(GymError, PermissionError):
    """The folder of the registry is not a folder that only this user can use."""

    exit_status = 3


def registry_folder() -> Path:
    """Return the path of the registry's folder; create it if it is missing. `_open_folder` checks it."""
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"nemo-gym-{os.geteuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return path


@contextmanager
def _open_folder() -> Iterator[int]:
    """Open the registry's folder and yield its descriptor.

    Raises:
        UnsafeRegistry: the path is a link or a file, belongs to another user, or is open to other users.
    """
    path = registry_folder()
    fix = "remove it, or set XDG_RUNTIME_DIR to a folder that only you can use"
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UnsafeRegistry("is not a folder that can be opened", where=str(path), fix=fix) from error
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise UnsafeRegistry("belongs to another user or is open to other users", where=str(path), fix=fix)
        yield folder
    finally:
        os.close(folder)


@contextmanager
def registering(config: Mapping[str, Any]) -> Iterator[RunEntry]:
    """Register a run of this process while the block runs. A process may have several runs.

    Without a safe folder the run continues unregistered, because another user could otherwise prevent every run.
    """
    from nemo_gym.config.instances import server_instances  # imports OmegaConf, which `gym env status --help` need not

    head, pid, servers = config["head_server"], os.getpid(), tuple(server_instances(config))
    token = run_token.token_for(head["host"], head["port"]) or ""
    entry = RunEntry(head["host"], head["port"], pid, start_ticks(pid), time.time(), str(Path.cwd()), servers, token)
    name = f"{pid}-{entry.port}.json"
    try:
        with _open_folder() as folder:
            _write_entry(folder, name, entry)
    except UnsafeRegistry as problem:
        logger.warning("this run is not registered: %s", problem)
    try:
        yield entry
    finally:
        with suppress(UnsafeRegistry, FileNotFoundError), _open_folder() as folder:
            os.unlink(name, dir_fd=folder)


def _write_entry(folder: int, name: str, entry: RunEntry) -> None:
    """Write an entry that only this user can read; no process sees an incomplete entry under `name`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    temporary = f".{name}"
    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as stream:
        stream.write(json.dumps(asdict(entry)).encode())
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def live_runs() -> list[RunEntry]:
    """Return the registered runs whose process still exists, newest first; delete the entries of ended runs.

    The tokens of the runs are added to `run_token`, so that this process can call their head servers.

    Raises:
        UnsafeRegistry: the folder of the registry is not this user's.
    """
    entries = []
    with _open_folder() as folder:
        for name in filter(_ENTRY_NAME.fullmatch, os.listdir(folder)):  # noqa: PTH208 - a descriptor
            with suppress(OSError):  # the run has just ended, or the name is a link
                entry = _read_entry(folder, name)
                if entry is not None:
                    entries.append(entry)
    for entry in entries:
        run_token.adopt([(entry.host, entry.port)], entry.token)
    return sorted(entries, key=lambda entry: -entry.started)


def _read_entry(folder: int, name: str) -> RunEntry | None:
    """Return an entry, else None. A damaged entry or one of an ended run is deleted; a foreign file is left alone."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(file, "rb") as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
            return None
        text = stream.read(MAX_ENTRY_BYTES)
    try:
        fields = json.loads(text)
        entry = RunEntry(**{**fields, "servers": tuple(fields["servers"])})
    except (ValueError, TypeError, KeyError):
        entry = None
    if entry is None or entry.pid is None or start_ticks(entry.pid) != entry.born:
        os.unlink(name, dir_fd=folder)
        return None
    return entry


def only_run() -> RunEntry | None:
    """Return the run that this process started or belongs to, else the only registered run; None without a run.

    Raises:
        RunNotChosen: several runs are registered.
    """
    try:
        runs = live_runs()
    except UnsafeRegistry:
        return None
    token = os.environ.get(run_token.RUN_TOKEN_ENV_VAR)
    runs = [run for run in runs if run.pid == os.getpid() or (token and run.token == token)] or runs
    if len(runs) > 1:
        fix = f"choose one: +head_server.port={runs[0].port}, or head_server_config=BaseServerConfig(host=…, port=…)"
        raise RunNotChosen(f"{len(runs)} runs are running:\n{_list_runs(runs)}", where="head_server", fix=fix)
    return runs[0] if runs else None


def choose_run(selector: str | None = None) -> RunEntry:
    """Return the run that `selector` names (a process id, a head port or `host:port`), or the only run.

    Without a selector, of several runs the only one that was started in this working directory is chosen.

    `host:port` (also as a URL) may be a head server that is not registered, such as one on another machine; its address
    is not checked.

    Raises:
        NoRunFound: no run is registered (exit status 3).
        RunNotChosen: `selector` matches no run, or is missing although there are several; lists them (exit status 2).
    """
    runs = live_runs()
    if selector is None:
        started_here = [entry for entry in runs if entry.folder == str(Path.cwd())]
        for candidates in (runs, started_here):
            if len(candidates) == 1:
                return candidates[0]
        if runs:
            raise RunNotChosen(
                f"{len(runs)} runs are running:\n{_list_runs(runs)}", fix=f"name one, such as {runs[0].address}"
            )
        raise NoRunFound("no servers are running", fix="gym env start, or name the head as HOST:PORT")
    address = selector.removeprefix("http://").rstrip("/")
    for entry in runs:
        if address in (entry.address, str(entry.port), str(entry.pid), f":{entry.port}"):
            return entry
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and 0 < int(port) < 65536:
        return RunEntry(host.strip("[]"), int(port))
    existing = f"; running:\n{_list_runs(runs)}" if runs else "; no runs are running"
    raise RunNotChosen(f"unknown run '{selector}'{existing}", fix="a process id, a head port, or HOST:PORT")


def _list_runs(runs: Sequence[RunEntry]) -> str:
    return "\n".join(f"  {entry}" for entry in runs)
