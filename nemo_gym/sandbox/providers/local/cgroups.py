"""Limit and count memory, processes and processor time of a whole box with control groups, version 1 or 2.

Groups are created below the group of this process, so that its own limits still apply. If this process may not create
groups, `Cgroups.find` returns None and boxes are limited only by rlimits and by sampling.
"""

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.processes import start_ticks

MEMORY, PIDS, CPU = "memory", "pids", "cpuacct"
CONTROLLERS = (MEMORY, PIDS, CPU)

_PREFIX = "nemo-gym-"

# Waits until its standard input closes, which happens when our process exits for any reason; then removes the groups.
_CLEANUP_SCRIPT = """
trap '' TERM
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
    """The resources a box has used; the default values stand for resources that no control group counts."""

    memory_kills: int = 0
    forks_denied: int = 0
    cpu_s: float | None = None
    peak_memory_mib: float | None = None

    def since(self, before: "Usage") -> "Usage":
        """Return the usage since `before`; the memory peak covers the whole lifetime."""
        return Usage(
            self.memory_kills - before.memory_kills,
            self.forks_denied - before.forks_denied,
            None if self.cpu_s is None else self.cpu_s - (before.cpu_s or 0.0),
            self.peak_memory_mib,
        )


class BoxCgroup:
    """The control groups of one box, one folder per controller."""

    def __init__(self, folders: Mapping[str, Path], version: int) -> None:
        self.folders = folders
        self.version = version

    def limit(self, *, memory_bytes: int, processes: int) -> None:
        """Set or change the limits; the box may be running.

        Raises:
            OSError: the kernel rejects a limit.
        """
        if folder := self.folders.get(MEMORY):
            if self.version == 1:
                # The limit with swap may never be below the limit without: lowering and raising need opposite orders.
                names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
                _write_pair(folder, {name: str(memory_bytes) for name in names})
            else:
                _write(folder / "memory.max", str(memory_bytes))
                _write(folder / "memory.oom.group", "0")
                if (folder / "memory.swap.max").exists():
                    _write(folder / "memory.swap.max", "0")
        if folder := self.folders.get(PIDS):
            _write(folder / "pids.max", str(processes))

    def join_files(self) -> list[Path]:
        """Return the files to which a single-threaded process writes 0 to join the groups (version 1 only)."""
        return [folder / "tasks" for folder in self.folders.values()] if self.version == 1 else []

    def add_process(self, pid: int) -> None:
        """Move another process into the groups (version 2, which has no join files)."""
        for folder in set(self.folders.values()):
            _write(folder / "cgroup.procs", str(pid))

    def usage(self) -> Usage:
        """Read the usage so far; a group that cannot be read counts as zero."""
        memory, pids, cpu = (self.folders.get(name) for name in CONTROLLERS)
        kills_file = "memory.oom_control" if self.version == 1 else "memory.events"
        peak_file = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return Usage(
            memory_kills=0 if memory is None else read_field(memory / kills_file, "oom_kill"),
            forks_denied=0 if pids is None else read_field(pids / "pids.events", "max"),
            cpu_s=None if cpu is None else self._cpu_seconds(cpu),
            peak_memory_mib=None if memory is None else _number(memory / peak_file) / (1 << 20),
        )

    def remove(self) -> bool:
        """Remove the groups; return False if a process is still in one."""
        remaining = [folder for folder in set(self.folders.values()) if not _remove_folder(folder)]
        return not remaining

    def _cpu_seconds(self, folder: Path) -> float:
        if self.version == 1:
            return _number(folder / "cpuacct.usage") / 1e9
        return read_field(folder / "cpu.stat", "usage_usec") / 1e6


class Cgroups:
    """The groups of this process, one per controller, below which it creates the groups of its boxes."""

    def __init__(self, parents: Mapping[str, Path], version: int) -> None:
        self.version = version
        self.controllers = tuple(parents)
        name = f"{_PREFIX}{os.getpid()}-{start_ticks(os.getpid())}-{secrets.token_hex(4)}"
        self._parents = dict(parents)
        self._folders = {controller: parent / name for controller, parent in parents.items()}
        self._cleanup_process: subprocess.Popen[bytes] | None = None

    @classmethod
    def find(cls) -> "Cgroups | None":
        """Find the groups that this process may create; None if these can limit neither memory nor processes."""
        version, parents = _own_groups(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
        usable = {name: folder for name, folder in parents.items() if _can_create(folder, name, version)}
        if MEMORY not in usable and PIDS not in usable:
            return None
        return cls(usable, version)

    def open(self) -> None:
        """Create the groups of this process, and start the cleanup process, which removes them if this one is killed.

        Also remove groups that earlier processes have abandoned.
        """
        for folder in set(self._parents.values()):
            _remove_abandoned(folder)
        for folder in set(self._folders.values()):
            folder.mkdir(exist_ok=True)
            if self.version == 2:
                _delegate(folder, self.controllers)
        self._cleanup_process = subprocess.Popen(
            ["/bin/sh", "-c", _CLEANUP_SCRIPT, "sandbox-cleanup", *sorted({str(f) for f in self._folders.values()})],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            start_new_session=True,
        )

    def create_group(self, name: str) -> BoxCgroup:
        """Create the groups of one box.

        Raises:
            OSError: a group cannot be created.
        """
        folders = {controller: folder / name for controller, folder in self._folders.items()}
        for folder in set(folders.values()):
            folder.mkdir()
        return BoxCgroup(folders, self.version)

    def close(self) -> None:
        """Remove all groups; the cleanup process kills the processes in a group that is still in use and removes it."""
        for folder in set(self._folders.values()):
            _remove_tree(folder)
        cleanup_process, self._cleanup_process = self._cleanup_process, None
        if cleanup_process is not None:
            assert cleanup_process.stdin is not None
            cleanup_process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                cleanup_process.wait(timeout=5)


def _own_groups(cgroup: str, mountinfo: str) -> tuple[int, dict[str, Path]]:
    """Return the cgroup version, and for each controller the folder of the group that this process is in.

    The arguments are the contents of `/proc/self/cgroup` and `/proc/self/mountinfo`.
    """
    mounts = list(_mounts(mountinfo))
    version_1: dict[str, Path] = {}
    version_2: dict[str, Path] = {}
    for line in cgroup.splitlines():
        hierarchy, names, path = line.split(":", 2)
        for kind, options, root, mount_point in mounts:
            group = mount_point / os.path.relpath(path, root)
            if kind == "cgroup":
                version_1 |= {name: group for name in names.split(",") if name in CONTROLLERS and name in options}
            elif kind == "cgroup2" and hierarchy == "0":  # the number of the only hierarchy of version 2
                version_2 = version_2 or dict.fromkeys(CONTROLLERS, group)
    return (1, version_1) if MEMORY in version_1 or PIDS in version_1 else (2, version_2)


def _mounts(mountinfo: str) -> Iterator[tuple[str, list[str], str, Path]]:
    """Yield file system type, options, root and mount point of every mount."""
    for line in mountinfo.splitlines():
        mount, _, file_system = line.partition(" - ")
        fields, (kind, _, options) = mount.split(), file_system.split(" ", 2)
        yield kind, options.split(","), fields[3], Path(fields[4])


def _can_create(folder: Path, controller: str, version: int) -> bool:
    """Return whether this process can create a group below `folder`, by creating and removing one."""
    trial = folder / f"{_PREFIX}trial-{os.getpid()}-{secrets.token_hex(4)}"
    if not os.access(folder, os.W_OK):
        return False
    try:
        if version == 2 and _version_2_name(controller) not in read_text(folder / "cgroup.subtree_control").split():
            _delegate(folder, (controller,))
        trial.mkdir()
    except OSError:
        return False
    return _remove_folder(trial)


def _delegate(folder: Path, controllers: tuple[str, ...]) -> None:
    """Enable controllers for the groups below `folder`; the kernel refuses it for a folder that contains processes."""
    _write(folder / "cgroup.subtree_control", " ".join(f"+{_version_2_name(name)}" for name in controllers))


def _version_2_name(controller: str) -> str:
    return "cpu" if controller == CPU else controller


def _remove_abandoned(parent: Path) -> None:
    """Remove groups that were left because the process that created them and its cleanup process were killed."""
    for folder in parent.glob(f"{_PREFIX}[0-9]*"):
        match = re.fullmatch(rf"{_PREFIX}(\d+)-(\d+)-\w+", folder.name)
        if match and start_ticks(int(match[1])) != int(match[2]):  # that process no longer exists
            _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    for box in folder.glob("*/"):
        _remove_folder(box)
    _remove_folder(folder)


def _remove_folder(folder: Path) -> bool:
    """Remove a group; return False if it is in use."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write_pair(folder: Path, values: Mapping[str, str]) -> None:
    """Write two limits, one of which bounds the other, in the given order or, if that fails, in reverse."""
    existing = {folder / name: value for name, value in values.items() if (folder / name).exists()}
    try:
        for path, value in existing.items():
            _write(path, value)
    except OSError:
        for path, value in reversed(existing.items()):
            _write(path, value)


def _write(path: Path, value: str) -> None:
    path.write_text(value, encoding="ascii")


def read_text(path: Path) -> str:
    """Return the content of a file of the kernel; empty if the file does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_field(path: Path, name: str) -> int:
    """Return the number after `name` at the start of a line; 0 if the file has no such line."""
    field = re.search(rf"^{name}:?\s+(\d+)", read_text(path), re.MULTILINE)
    return int(field[1]) if field else 0


def _number(path: Path) -> int:
    text = read_text(path).strip()
    return int(text) if text.isdecimal() else 0
