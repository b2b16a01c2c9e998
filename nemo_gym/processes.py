"""Helpers for forking, process groups and processes that must exit with their parent."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

POLL_SECONDS = 0.002

_PR_SET_PDEATHSIG = 1


def has_single_thread() -> bool:
    """Return True if this process has one thread: a fork copies locks held by other threads, but not the threads."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1
    except OSError:  # not Linux: the number of native threads is unknown
        return False


def exit_fork(status: int) -> NoReturn:
    """Flush the standard streams and end this forked process, which must never return into the parent's code."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    finally:
        os._exit(status)


def signal_group(pid: int, number: int) -> None:
    """Signal the process group that `pid` leads; do nothing if the group no longer exists."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def exit_with_parent(number: signal.Signals = signal.SIGKILL) -> bool:
    """Send this process a signal when its parent exits (PR_SET_PDEATHSIG, Linux); return False if not supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    return hasattr(libc, "prctl") and bool(libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) == 0)


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if the process does not exist or is a zombie.

    A process id with another start time belongs to another process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    words = stat.rpartition(")")[2].split()  # the program name before `)` may contain spaces and brackets
    return 0 if words[0] in "ZX" else int(words[19])


def json_descriptor(content: Mapping[str, Any]) -> int:
    """Return a descriptor from which a child process reads JSON; unlike arguments, `ps` does not show it."""
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(content).encode())
        file.seek(0)
        return os.dup(file.fileno())


class ForkedChild:
    """A process that this one forked, with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status (negative: the signal that ended the process); None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended and return its exit status.

        Raises:
            subprocess.TimeoutExpired: the process still runs after `timeout` seconds.
        """
        start = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() - start > timeout:
                raise subprocess.TimeoutExpired(f"the forked process {self.pid}", timeout)
            time.sleep(POLL_SECONDS)
        return status
