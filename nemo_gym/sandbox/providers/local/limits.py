"""Limits of one program in a box, and the resources its processes use where control groups do not count them."""

import functools
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.processes import process_tree
from nemo_gym.sandbox.providers.local.cgroups import read_field, read_text

_EXTRA_ADDRESS_SPACE_WITH_GROUP = 16 << 30
_EXTRA_ADDRESS_SPACE_WITHOUT_GROUP = 96 << 20
"""Address space that a process may have beyond the memory limit; small without a group, where it bounds the memory."""
_OPEN_FILES_WITHOUT_GROUP = 64
"""Every descriptor can hold kernel memory: the buffer of a socket or pipe, the watches of an epoll file."""
_PENDING_SIGNALS = 256
"""Also the limit of POSIX timers."""
_TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second."""

_INODE_BYTES = 1024 + 256
"""A file, folder or link without content, and its directory entry."""
_TERMINAL_BYTES = 128 << 10
_LOCK_BYTES = 224
"""One locked range of a file."""
_SPARE_SOCKETS = 8
"""Sockets that do not count: an asyncio loop opens two and sends nothing."""


@dataclass(frozen=True)
class BoxLimits:
    """Resource limits of one action in a box."""

    timeout_s: float
    cpu_s: float | None
    memory_bytes: int
    file_bytes: int
    output_bytes: int
    processes: int
    open_files: int = 256

    def rlimits(self, *, memory_counted: bool, processes_counted: bool) -> dict[str, int]:
        """Return the rlimits by name, also those of resources that control groups limit.

        `memory_counted` and `processes_counted`: the kernel counts this resource for the box as a whole.
        """
        extra = _EXTRA_ADDRESS_SPACE_WITH_GROUP if memory_counted else _EXTRA_ADDRESS_SPACE_WITHOUT_GROUP
        cpu_s_of_all_cores = (self.timeout_s + 1) * (os.cpu_count() or 1) + 1
        limits = {
            "AS": self.memory_bytes + extra,
            "CPU": math.ceil(cpu_s_of_all_cores if self.cpu_s is None else self.cpu_s),
            "FSIZE": self.file_bytes,
            "NOFILE": self.open_files if memory_counted else min(self.open_files, _OPEN_FILES_WITHOUT_GROUP),
            "SIGPENDING": _PENDING_SIGNALS,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
        }
        # NPROC counts a user's processes. These are the box's processes only if the box has its own user or the kernel
        # counts by namespace. The limit is above that of the control group, which counts denied forks; NPROC does not.
        return {**limits, "NPROC": self.processes + 8} if processes_counted else limits


@functools.cache
def counts_processes_by_namespace() -> bool:
    """Return whether the kernel counts a user's processes per user namespace (Linux 5.14 or later)."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return version is not None and (int(version[1]), int(version[2])) >= (5, 14)


@dataclass(frozen=True)
class ProcessUsage:
    """The resources that a process and its descendants use at one moment."""

    memory_bytes: int = 0
    threads: int = 0
    cpu_s: float = 0.0


def measure_processes(root_pid: int) -> ProcessUsage:
    """Measure the process `root_pid` and its descendants; a process that exits meanwhile counts as zero.

    Orphaned processes of a box become children of its init process, so they are measured as well.
    """
    memory = threads = 0
    cpu_s = 0.0
    for pid in process_tree(root_pid):
        folder = Path(f"/proc/{pid}")
        # Pss divides shared memory between the processes that share it; not every kernel reports it.
        proportional = read_field(folder / "smaps_rollup", "Pss")
        memory += (proportional or read_field(folder / "status", "RssAnon")) * 1024
        threads += read_field(folder / "status", "Threads")
        fields = read_text(folder / "stat").rpartition(")")[2].split()
        cpu_s += sum(int(ticks) for ticks in fields[11:15]) / _TICKS  # user and system time, also of reaped children
    return ProcessUsage(memory, threads, cpu_s)


def measure_buffers(root_pid: int, writable: Iterable[str]) -> int:
    """Return the bytes that a box uses outside its processes: files, inodes and socket buffers, as if these were full.

    All sockets of the box's network namespace count, even one that its process has closed while its data is unread.
    """
    total = 0
    for path in writable:
        try:
            usage = os.statvfs(f"/proc/{root_pid}/root{path}")
        except OSError:
            continue  # the box has ended
        total += (usage.f_blocks - usage.f_bfree) * usage.f_frsize + (usage.f_files - usage.f_ffree) * _INODE_BYTES
    sockets = read_field(Path(f"/proc/{root_pid}/net/sockstat"), "sockets: used")
    return total + max(0, sockets - _SPARE_SOCKETS) * _socket_bytes()


def measure_terminals(root_pid: int) -> int:
    """Return the bytes of the pseudo-terminals of a box."""
    terminals = _listing(f"/proc/{root_pid}/root/dev/pts")
    return max(0, len(terminals) - 1) * _TERMINAL_BYTES  # ptmx is not one of them


def measure_locks(root_pid: int) -> int:
    """Return the bytes of the file locks of a process and its descendants; no rlimit applies to them.

    `/proc/locks` has them all, but reading it takes seconds if there are many.
    """
    locks = 0
    for pid in process_tree(root_pid):
        infos = f"/proc/{pid}/fdinfo"
        locks += sum(read_text(Path(infos, name)).count("lock:") for name in _listing(infos))
    return locks * _LOCK_BYTES


def _listing(folder: str) -> list[str]:
    """Return the names in a folder; empty if the process of the folder has ended."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - `iterdir` takes twice as long
    except OSError:
        return []


@functools.cache
def _socket_bytes() -> int:
    """Return the size of a socket's send buffer."""
    return int(read_text(Path("/proc/sys/net/core/wmem_default")) or 212_992)
