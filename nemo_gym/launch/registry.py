"""Runs register themselves, so that others on the machine find them without being told a port."""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunRecord:
    """Where a run's head answers."""

    pid: int
    host: str
    port: int
    started: float


def registry_folder() -> Path:
    """A folder of this user's, readable by nobody else."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"nemo-gym-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


@contextmanager
def registered(config: Mapping[str, Any]) -> Iterator[RunRecord]:
    """Keep this process's run registered while the block runs."""
    head = config["head_server"]
    record = RunRecord(os.getpid(), head["host"], head["port"], time.time())
    path = registry_folder() / f"{record.pid}.json"
    path.write_text(json.dumps(asdict(record)))
    try:
        yield record
    finally:
        path.unlink(missing_ok=True)


def live_runs() -> list[RunRecord]:
    """The runs of this user whose process still exists, newest first; what others left behind is swept."""
    found = []
    for path in registry_folder().glob("*.json"):
        try:
            record = RunRecord(**json.loads(path.read_text()))
            os.kill(record.pid, 0)
        except (ProcessLookupError, ValueError, TypeError):
            path.unlink(missing_ok=True)
            continue
        found.append(record)
    return sorted(found, key=lambda record: -record.started)
