"""A registry of the runs of this user on this machine, so that commands find running servers without a port.

Commands that use running servers (`gym eval run --no-serve`) call `choose_run(selector)`.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.processes import start_ticks


@dataclass(frozen=True)
class RunEntry:
    """A registered run: the address of its head server and details for the user. Contains no secret."""

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


def registry_folder() -> Path:
    """Return the folder of the registry, which only this user can read; create it if it is missing.

    Raises:
        PermissionError: the folder belongs to another user.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"nemo-gym-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


@contextmanager
def registering(config: Mapping[str, Any]) -> Iterator[RunEntry]:
    """Register a run of this process while the block runs. A process may have several runs."""
    from nemo_gym.config.instances import server_instances  # OmegaConf, which `gym env status --help` does not need

    head, pid, servers = config["head_server"], os.getpid(), tuple(server_instances(config))
    entry = RunEntry(head["host"], head["port"], pid, start_ticks(pid), time.time(), str(Path.cwd()), servers)
    path = registry_folder() / f"{pid}-{entry.port}.json"
    with whole_file(path) as stream:
        stream.write(json.dumps(asdict(entry)).encode())
    try:
        yield entry
    finally:
        path.unlink(missing_ok=True)


def live_runs() -> list[RunEntry]:
    """Return the registered runs whose process still exists, newest first; delete the other entries."""
    entries = []
    for path in registry_folder().glob("*.json"):
        try:
            fields = json.loads(path.read_bytes())
            entry = RunEntry(**{**fields, "servers": tuple(fields["servers"])})
        except FileNotFoundError:  # the run has just ended
            continue
        except (ValueError, TypeError, KeyError):
            entry = None
        if entry is None or entry.pid is None or start_ticks(entry.pid) != entry.born:
            path.unlink(missing_ok=True)
            continue
        entries.append(entry)
    return sorted(entries, key=lambda entry: -entry.started)


def choose_run(selector: str | None = None) -> RunEntry:
    """Return the run that `selector` names (a process id, a head port or `host:port`), or the only run.

    `host:port` (also as a URL) may be a head server that is not registered, such as one on another machine; its address
    is not checked.

    Raises:
        NoRunFound: no run is registered (exit status 3).
        RunNotChosen: `selector` matches no run, or is missing and there are several (exit status 2); with all runs.
    """
    runs = live_runs()
    if selector is None:
        if len(runs) == 1:
            return runs[0]
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
