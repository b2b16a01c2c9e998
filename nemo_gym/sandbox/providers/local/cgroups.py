"""Control groups: memory, processes and processor time of a whole box, where this process may make groups.

Version 1 and 2 are both understood. Groups live below the one we run in, so limits set on us from outside still hold.
Where there are none, `Cgroups.find` says so and the box is bounded by rlimits alone.
"""

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MEMORY, PIDS, CPU = "memory", "pids", "cpuacct"
CONTROLLERS = (MEMORY, PIDS, CPU)

_PREFIX = "nemo-gym-"

# Waits for its standard input to close, which the end of our process does, whatever ended it.
_JANITOR = """
while read -r _; do :; done
for attempt in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  left=
  for group in "$@"; do
    [ -d "$group" ] || continue
    for box in "$group"/*/; do
      while read -r process; do kill -9 "$process"; done <"$box/cgroup.procs"
      rmdir "$box"
    done
    rmdir "$group" || left=1
  done
  [ -z "$left" ] && exit 0
  sleep 0.1
done
"""


@dataclass(frozen=True)
class Usage:
    """What a box has used, as far as its groups count it."""

    memory_kills: int = 0
    processes_refused: int = 0
    cpu_s: float | None = None
    peak_memory_mib: float | None = None

    @property
    def out_of_memory(self) -> bool:
        return self.memory_kills > 0

    @property
    def out_of_processes(self) -> bool:
        return self.processes_refused > 0

    def since(self, before: "Usage") -> "Usage":
        """What came after `before`; the peak is that of the whole life."""
        return Usage(
            self.memory_kills - before.memory_kills,
            self.processes_refused - before.processes_refused,
            None if self.cpu_s is None else self.cpu_s - (before.cpu_s or 0.0),
            self.peak_memory_mib,
        )


class Group:
    """The groups of one box."""

    def __init__(self, folders: Mapping[str, Path], version: int) -> None:
        self.folders = folders
        self.version = version

    def limit(self, *, memory_bytes: int | None, processes: int | None) -> None:
        """Set the bounds; a running box may be given others.

        Raises:
            OSError: the kernel refused.
        """
        if memory_bytes is not None and (folder := self.folders.get(MEMORY)):
            if self.version == 1:
                # Memory and memory-with-swap are bound to each other: lowering and raising need opposite orders.
                names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
                _write_in_any_order(folder, {name: str(memory_bytes) for name in names})
            else:
                _write(folder / "memory.max", str(memory_bytes))
                _write(folder / "memory.oom.group", "0")
                if (folder / "memory.swap.max").exists():
                    _write(folder / "memory.swap.max", "0")
        if processes is not None and (folder := self.folders.get(PIDS)):
            _write(folder / "pids.max", str(processes))

    def entrances(self) -> list[Path]:
        """Files through which a single-threaded process puts itself in by writing 0 (version 1: that is fast)."""
        return [folder / "tasks" for folder in self.folders.values()] if self.version == 1 else []

    def admit(self, pid: int) -> None:
        """Put a process in from outside (version 2, where there is no faster way)."""
        for folder in set(self.folders.values()):
            _write(folder / "cgroup.procs", str(pid))

    def usage(self) -> Usage:
        """What was used so far; a group that cannot be read counts as nothing."""
        memory, pids, cpu = (self.folders.get(name) for name in CONTROLLERS)
        kills = "memory.oom_control" if self.version == 1 else "memory.events"
        peak = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return Usage(
            memory_kills=0 if memory is None else _field(memory / kills, "oom_kill"),
            processes_refused=0 if pids is None else _field(pids / "pids.events", "max"),
            cpu_s=None if cpu is None else self._cpu_seconds(cpu),
            peak_memory_mib=None if memory is None else _number(memory / peak) / (1 << 20),
        )

    def remove(self) -> bool:
        """Remove the groups; False while a process is still in one."""
        left = [folder for folder in set(self.folders.values()) if not _removed(folder)]
        return not left

    def _cpu_seconds(self, folder: Path) -> float:
        if self.version == 1:
            return _number(folder / "cpuacct.usage") / 1e9
        return _field(folder / "cpu.stat", "usage_usec") / 1e6


class Cgroups:
    """The groups below which this process makes those of its boxes."""

    def __init__(self, parents: Mapping[str, Path], version: int) -> None:
        self.version = version
        self.controllers = tuple(parents)
        name = f"{_PREFIX}{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(4)}"
        self._parents = dict(parents)
        self._folders = {controller: parent / name for controller, parent in parents.items()}
        self._janitor: subprocess.Popen[bytes] | None = None

    @classmethod
    def find(cls) -> "Cgroups | None":
        """Groups this process may make below its own, tried out; None where it may not."""
        version, places = _own_groups(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
        usable = {name: folder for name, folder in places.items() if _can_make(folder, name, version)}
        if MEMORY not in usable and PIDS not in usable:
            return None
        return cls(usable, version)

    def open(self) -> None:
        """Make our groups and the janitor that removes them should this process be killed; sweep what others left."""
        for folder in set(self._parents.values()):
            _sweep(folder)
        for folder in set(self._folders.values()):
            folder.mkdir(exist_ok=True)
            if self.version == 2:
                _write(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in _enabled(self.controllers)))
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", _JANITOR, "sandbox-janitor", *sorted({str(f) for f in self._folders.values()})],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            start_new_session=True,
        )

    def group(self, name: str) -> Group:
        """New groups for one box.

        Raises:
            OSError: the kernel refused.
        """
        folders = {controller: folder / name for controller, folder in self._folders.items()}
        for folder in set(folders.values()):
            folder.mkdir()
        return Group(folders, self.version)

    def close(self) -> None:
        """Remove everything; the janitor does what is not possible yet."""
        for folder in set(self._folders.values()):
            _remove_tree(folder)
        janitor, self._janitor = self._janitor, None
        if janitor is not None:
            assert janitor.stdin is not None
            janitor.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                janitor.wait(timeout=5)


def _own_groups(cgroup: str, mountinfo: str) -> tuple[int, dict[str, Path]]:
    """Our group per controller and the version, from `/proc/self/cgroup` and `/proc/self/mountinfo`."""
    mounts = list(_mounts(mountinfo))
    first: dict[str, Path] = {}
    for line in cgroup.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            for kind, options, root, at in mounts:
                if name in CONTROLLERS and kind == "cgroup" and name in options:
                    first[name] = at / os.path.relpath(path, root)
    if MEMORY in first or PIDS in first:
        return 1, first
    for line in cgroup.splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            for kind, _, root, at in mounts:
                if kind == "cgroup2":
                    return 2, dict.fromkeys(CONTROLLERS, at / os.path.relpath(path, root))
    return 2, {}


def _mounts(mountinfo: str) -> Iterator[tuple[str, list[str], str, Path]]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        yield kind, options.split(","), fields[3], Path(fields[4])


def _can_make(folder: Path, controller: str, version: int) -> bool:
    trial = folder / f"{_PREFIX}trial-{os.getpid()}-{secrets.token_hex(4)}"
    if not os.access(folder, os.W_OK):
        return False
    try:
        if version == 2 and not set(_enabled((controller,))) <= set(_read(folder / "cgroup.subtree_control").split()):
            # Only a group without processes of its own can hand its controllers down; ours seldom is one.
            _write(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in _enabled((controller,))))
        trial.mkdir()
    except OSError:
        return False
    return _removed(trial)


def _enabled(controllers: tuple[str, ...]) -> list[str]:
    """Controllers by their name in version 2."""
    return ["cpu" if name == CPU else name for name in controllers]


def _sweep(parent: Path) -> None:
    """Remove groups whose owner is gone: its janitor was killed with it."""
    for folder in parent.glob(f"{_PREFIX}[0-9]*"):
        found = re.fullmatch(rf"{_PREFIX}(\d+)-(\d+)-\w+", folder.name)
        if found and _started(int(found[1])) != int(found[2]):
            _remove_tree(folder)


def _started(pid: int) -> int:
    """When a process started, in ticks since boot; 0 if there is none."""
    return int((_read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() or ["0"] * 20)[19])


def _remove_tree(folder: Path) -> bool:
    for box in folder.glob("*/"):
        _removed(box)
    return _removed(folder)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write_in_any_order(folder: Path, values: Mapping[str, str]) -> None:
    there = {folder / name: value for name, value in values.items() if (folder / name).exists()}
    try:
        for path, value in there.items():
            _write(path, value)
    except OSError:
        for path, value in reversed(there.items()):
            _write(path, value)


def _write(path: Path, value: str) -> None:
    path.write_text(value, encoding="ascii")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else 0


def _field(path: Path, name: str) -> int:
    found = re.search(rf"^{name} (\d+)$", _read(path), re.MULTILINE)
    return int(found[1]) if found else 0
