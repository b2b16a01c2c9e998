"""Runs register themselves, so that others on the machine find them without being told a port.

`choose_run(selector)` is what a command asks that needs one running set of servers (`gym eval run --no-serve`).
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

from nemo_gym.catalog.files import whole_file
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.keys import SERVER_TYPES


@dataclass(frozen=True)
class RunEntry:
    """Where a run's head answers, and enough to tell it from others. Holds nothing secret."""

    host: str
    port: int
    pid: int | None = None
    """The process that supervises it; None for a head that somebody named and that is not registered here."""
    born: int = 0
    """When that process began, as the kernel counts: the number alone may belong to another one by now."""
    started: float = 0.0
    folder: str = ""
    """The working directory it was started in."""
    servers: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        names = ", ".join(self.servers[:4]) + (", …" if len(self.servers) > 4 else "")
        began = time.strftime("%H:%M:%S", time.localtime(self.started)) if self.started else "unknown"
        return f"{self.address}  pid {self.pid}  since {began}  {names}  in {self.folder}"


class NoRunFound(GymError, LookupError):
    """Servers should be running, and none are."""

    exit_status = 3


class RunNotChosen(ConfigError, LookupError):
    """It is not clear which of the runs is meant."""

    exit_status = 2


def registry_folder() -> Path:
    """A folder of this user's, readable by nobody else."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"nemo-gym-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


@contextmanager
def registered(config: Mapping[str, Any]) -> Iterator[RunEntry]:
    """Keep this process's run registered while the block runs. One process may have several."""
    head = config["head_server"]
    pid = os.getpid()
    entry = RunEntry(
        head["host"], head["port"], pid, _born(pid) or 0, time.time(), str(Path.cwd()), _server_names(config)
    )
    path = registry_folder() / f"{pid}-{entry.port}.json"
    with whole_file(path) as stream:
        stream.write(json.dumps(asdict(entry)).encode())
    try:
        yield entry
    finally:
        path.unlink(missing_ok=True)


def live_runs() -> list[RunEntry]:
    """The runs of this user whose process still exists, newest first; what others left behind is swept."""
    found = []
    for path in registry_folder().glob("*.json"):
        try:
            read = json.loads(path.read_bytes())
            entry = RunEntry(**{**read, "servers": tuple(read["servers"])})
        except FileNotFoundError:  # it ended this moment
            continue
        except (ValueError, TypeError, KeyError):
            entry = None
        if entry is None or entry.pid is None or _born(entry.pid) != entry.born:
            path.unlink(missing_ok=True)
            continue
        found.append(entry)
    return sorted(found, key=lambda entry: -entry.started)


def choose_run(selector: str | None = None) -> RunEntry:
    """The run that `selector` means: a process id, a head's port, or `host:port`; without one, the only run there is.

    `host:port` (also as a URL) may name a head that is not registered here, such as one on another machine; whether
    it answers is for the first call to find out.

    Raises:
        NoRunFound: nothing is running (exit status 3).
        RunNotChosen: several are and `selector` fits none or is missing (exit status 2); all are listed.
    """
    runs = live_runs()
    if selector is None:
        if len(runs) == 1:
            return runs[0]
        if runs:
            raise RunNotChosen(f"{len(runs)} runs are up:\n{_listed(runs)}", fix=f"name one, such as {runs[0].address}")
        raise NoRunFound("no servers are running", fix="gym env start, or name the head as HOST:PORT")
    wanted = selector.removeprefix("http://").rstrip("/")
    for entry in runs:
        if wanted in (entry.address, str(entry.port), str(entry.pid), f":{entry.port}"):
            return entry
    host, _, port = wanted.rpartition(":")
    if host and port.isdigit() and 0 < int(port) < 65536:
        return RunEntry(host.strip("[]"), int(port))
    listed = f"; there are:\n{_listed(runs)}" if runs else "; none are up"
    raise RunNotChosen(f"no run is called '{selector}'{listed}", fix="a process id, a head's port, or HOST:PORT")


def _listed(runs: Sequence[RunEntry]) -> str:
    return "\n".join(f"  {entry}" for entry in runs)


def _server_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    blocks = {str(name): block for name, block in config.items() if isinstance(block, Mapping)}
    return tuple(name for name, block in blocks.items() if any(kind in block for kind in SERVER_TYPES))


def _born(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    words = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return None if words[0] in "ZX" else int(words[19])
