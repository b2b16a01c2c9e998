"""Limits of one program in a box, and the resources its processes use where control groups do not count them."""

import functools
import math
import os
import re
import time
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
DEFAULT_OPEN_FILES = 256
_PENDING_SIGNALS = 256
"""Also the limit of POSIX timers."""
_TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second."""

_INODE_BYTES = 1024 + 256
"""A file, folder or link without content, and its directory entry."""
_TERMINAL_BYTES = 128 << 10
_MAX_TERMINALS = 64
"""Pseudo-terminals of one box; all users of the machine share about three thousand."""
_LOCK_BYTES = 224
"""One locked range of a file."""
_MAPPING_BYTES = 512
"""One mapped range of addresses; an ordinary program has a few hundred."""
_KERNEL_PASSES = 5
"""Locks and mappings are counted in every fifth pass: reading them takes longest."""
_MAX_PASS_CPU_S = 1.0
"""Longest pass; with an ordinary program, a pass takes milliseconds, even with 64 processes."""
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
    open_files: int = DEFAULT_OPEN_FILES
    limits_address_space: bool = True
    """False for programs that reserve much more memory than they use, such as those with a JIT compiler."""

    def rlimits(self, *, memory_counted: bool, processes_counted: bool) -> dict[str, int]:
        """Return the rlimits by name, also those of resources that control groups limit.

        `memory_counted` and `processes_counted`: the kernel counts this resource for the box as a whole.
        """
        extra = _EXTRA_ADDRESS_SPACE_WITH_GROUP if memory_counted else _EXTRA_ADDRESS_SPACE_WITHOUT_GROUP
        most_files = _OPEN_FILES_WITHOUT_GROUP if self.limits_address_space else self.open_files
        cpu_s_of_all_cores = (self.timeout_s + 1) * (os.cpu_count() or 1) + 1
        limits = {
            "CPU": math.ceil(cpu_s_of_all_cores if self.cpu_s is None else self.cpu_s),
            "FSIZE": self.file_bytes,
            "NOFILE": self.open_files if memory_counted else min(self.open_files, most_files),
            "SIGPENDING": _PENDING_SIGNALS,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
        }
        if self.limits_address_space:
            limits["AS"] = self.memory_bytes + extra
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


class BoxMeter:
    """Measures the processes of a box, in passes that may run in a thread: a program can make a pass take seconds.

    A pass ends early, with more memory than allowed, as soon as the limit is passed or the pass itself took too long.
    """

    def __init__(
        self, root_pid: int, max_memory: int | None, *, counts_kernel_memory: bool = False, has_group: bool = False
    ) -> None:
        """Measure `root_pid` and its descendants. `max_memory` None: do not measure memory.

        `counts_kernel_memory`: also count terminals, locks and mappings, of an isolated box. `has_group`: a control
        group limits memory; count only terminals and locks, which no group counts.
        """
        self.root_pid = root_pid
        self.max_memory = max_memory
        self.counts_kernel_memory = counts_kernel_memory
        self.has_group = has_group
        self._passes = 0
        self._kernel_bytes = 0

    def measure(self) -> ProcessUsage:
        """Measure once; a process that exits meanwhile counts as zero.

        Orphaned processes of a box become children of its init process, so they are measured as well.
        """
        begin = time.thread_time()
        memory, threads, cpu_s = self.measure_kernel_memory().memory_bytes, 0, 0.0
        for pid in process_tree(self.root_pid):
            if self.max_memory is not None and not self.has_group:
                memory += _process_memory(pid)
                if self._is_over(memory, begin):
                    memory = max(memory, self.max_memory + 1)
                    break
            threads += read_field(Path(f"/proc/{pid}/status"), "Threads")
            fields = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
            cpu_s += sum(map(int, fields[11:15])) / _TICKS  # user and system time, also of reaped children
        return ProcessUsage(memory, threads, cpu_s)

    def measure_kernel_memory(self) -> ProcessUsage:
        """Measure only the memory that the kernel uses for the box, as far as it is counted."""
        if not self.counts_kernel_memory or self.max_memory is None:
            return ProcessUsage()
        begin = time.thread_time()
        self._passes += 1
        if self._passes % _KERNEL_PASSES == 0:
            self._kernel_bytes = self._measure_locks_and_mappings(begin)
        terminals = len(_listing(_path_in_box(self.root_pid, "/dev/pts"))) - 1  # ptmx is not one of them
        memory = self._kernel_bytes + max(0, terminals) * _TERMINAL_BYTES
        is_over = terminals > _MAX_TERMINALS or self._is_over(memory, begin)
        return ProcessUsage(max(memory, self.max_memory + 1) if is_over else memory)

    def _measure_locks_and_mappings(self, begin: float) -> int:
        """Return the bytes of file locks and mapped ranges; no rlimit applies to them.

        `/proc/locks` has all locks, but reading it takes seconds if there are many.
        """
        total = 0
        for pid in process_tree(self.root_pid):
            threads = _thread_folders(pid)
            if not self.has_group:
                total += _first_content(threads, "maps").count(b"\n") * _MAPPING_BYTES
            for thread in threads:  # each may have separate descriptors
                descriptions: set[bytes] = set()
                for name in _listing(f"{thread}/fdinfo"):
                    content = _read_bytes(f"{thread}/fdinfo/{name}")
                    # Copies of a descriptor show the same locks, and a file that was opened twice shows different ones.
                    if content not in descriptions:
                        total += content.count(b"lock:") * _LOCK_BYTES
                        descriptions.add(content)
                    if self._is_over(total, begin):
                        return total
        return total

    def _is_over(self, memory: int, begin: float) -> bool:
        """Return whether a pass can end; processor time, so that a busy machine is not mistaken for a large program."""
        return self.max_memory is not None and (
            memory > self.max_memory or time.thread_time() - begin > _MAX_PASS_CPU_S
        )


def _process_memory(pid: int) -> int:
    """Return the bytes of a process and of its page tables.

    A process whose first thread has ended shows its memory only in its other threads.
    """
    threads = _thread_folders(pid)
    status = _first_content(threads, "status", required=b"VmPTE:")
    # Pss divides shared memory between the processes that share it; not every kernel reports it.
    memory = _field(_first_content(threads, "smaps_rollup"), b"Pss") or _field(status, b"RssAnon")
    return (memory + _field(status, b"VmPTE")) * 1024


def measure_buffers(root_pid: int, writable: Iterable[str]) -> int:
    """Return the bytes that a box uses outside its processes: files, inodes and socket buffers, as if these were full.

    All sockets of the box's network namespace count, even one that its process has closed while its data is unread.
    """
    total = 0
    for path in writable:
        try:
            usage = os.statvfs(_path_in_box(root_pid, path))
        except OSError:
            continue  # the box has ended
        total += (usage.f_blocks - usage.f_bfree) * usage.f_frsize + (usage.f_files - usage.f_ffree) * _INODE_BYTES
    sockets = read_field(Path(f"/proc/{root_pid}/net/sockstat"), "sockets: used")
    return total + max(0, sockets - _SPARE_SOCKETS) * _socket_bytes()


def _path_in_box(root_pid: int, path: str) -> str:
    """Return the path by which the host reaches a path of the box."""
    return f"/proc/{root_pid}/root{path}"


def _thread_folders(pid: int) -> list[str]:
    """Return the folders of the threads of a process, the first thread first."""
    return [f"/proc/{pid}/task/{name}" for name in _listing(f"/proc/{pid}/task")]


def _first_content(threads: Iterable[str], name: str, required: bytes = b"") -> bytes:
    """Return the first content of a file of the threads that is not empty and contains `required`."""
    contents = (_read_bytes(f"{thread}/{name}") for thread in threads)
    return next((content for content in contents if content and required in content), b"")


def _field(content: bytes, name: bytes) -> int:
    """Return the number after `name` at the start of a line; 0 if there is no such line."""
    field = re.search(rb"^%b:\s+(\d+)" % name, content, re.MULTILINE)
    return int(field[1]) if field else 0


def _read_bytes(path: str) -> bytes:
    """Return the content of a file of the kernel; empty if it cannot be read."""
    try:
        with open(path, "rb", 0) as file:  # noqa: PTH123 - `Path` takes twice as long
            return file.read()
    except OSError:
        return b""


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
