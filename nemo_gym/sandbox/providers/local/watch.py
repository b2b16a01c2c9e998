"""What a box uses, counted from outside process by process: for machines whose control groups we may not use."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """What the processes of a box use together, at one moment."""

    memory_bytes: int = 0
    tasks: int = 0
    cpu_s: float = 0.0


def sample(first: int) -> Sample:
    """What `first` and all that descend from it use; who ends while we look counts as nothing.

    Orphans of a box become children of its process 1, so nobody gets out of sight.
    """
    memory = tasks = 0
    cpu_s = 0.0
    for process in _family(first):
        memory += _memory(process)
        tasks += _number(process / "status", "Threads")
        fields = _read(process / "stat").rpartition(")")[2].split()
        cpu_s += sum(int(ticks) for ticks in fields[11:15]) / _TICKS
    return Sample(memory, tasks, cpu_s)


def _family(first: int) -> Iterator[Path]:
    waiting = [first]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        yield process
        for children in process.glob("task/*/children"):
            waiting += [int(pid) for pid in _read(children).split()]


def _memory(process: Path) -> int:
    """Memory in bytes; what is shared with others is divided among them where the kernel tells."""
    shared_out = _number(process / "smaps_rollup", "Pss")
    return (shared_out or _number(process / "status", "RssAnon")) * 1024


def _number(path: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", _read(path), re.MULTILINE)
    return int(found[1]) if found else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
