"""Helpers for forking, process groups, and processes that must end when another process ends."""

import ctypes
import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

POLL_SECONDS = 0.002

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

TERM_SECONDS, KILL_SECONDS = 1.0, 10.0
"""How long descendants of an ended process may take to exit after SIGTERM, and after SIGKILL."""

# Waits in the background until its standard input closes, then kills every process whose limits contain the mark $1.
_WATCH_SCRIPT = """
exec 3<&0
{
  PATH=/usr/bin:/bin
  while read -r _; do :; done
  attempt=0
  while [ $attempt -lt 100 ]; do
    files=$(grep -lsF "$1" /proc/[0-9]*/limits)  # its status is that of a process that has just ended
    [ -n "$files" ] || exit 0
    for file in $files; do pid=${file#/proc/}; kill -9 "${pid%/limits}"; done
    attempt=$((attempt + 1))
    sleep 0.1
  done
} <&3 3<&- &
"""


def has_single_thread() -> bool:
    """Return True if this process has one thread. Only then is a fork safe: it copies the locks of other threads."""
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
    """Signal the process group that `pid` leads; do nothing if the group no longer exists or may not be signalled."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def exit_with_parent(number: signal.Signals = signal.SIGKILL) -> bool:
    """Send this process a signal when its parent exits (PR_SET_PDEATHSIG, Linux); return False if not supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    return hasattr(libc, "prctl") and bool(libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) == 0)


def adopt_orphans() -> bool:
    """Become the parent of every descendant whose parent exits (Linux); return False if not supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    return hasattr(libc, "prctl") and bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def child_pids(pid: int) -> list[int]:
    """Return the process ids of the direct children of a process; empty if the process does not exist."""
    children: list[int] = []
    with suppress(OSError):  # `glob` raises if the process exits meanwhile
        for path in Path(f"/proc/{pid}").glob("task/*/children"):
            with suppress(OSError):  # this thread has ended
                children += map(int, path.read_text().split())
    return children


def process_tree(pid: int) -> Iterator[int]:
    """Yield a process id and the ids of its descendants."""
    remaining = [pid]
    while remaining:
        yield (current := remaining.pop())
        remaining += child_pids(current)


def end_descendants() -> None:
    """Send SIGTERM to every descendant of this process, and SIGKILL after `TERM_SECONDS`; needs `adopt_orphans`."""
    begin = time.monotonic()
    number: signal.Signals | None = signal.SIGTERM
    while time.monotonic() < begin + TERM_SECONDS + KILL_SECONDS:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:  # collect the children that have ended
                pass
        except ChildProcessError:
            return
        if number is not None:
            for pid in list(process_tree(os.getpid()))[1:]:  # without this process
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        number = signal.SIGKILL if time.monotonic() > begin + TERM_SECONDS else None
        time.sleep(POLL_SECONDS)


def start_watch() -> tuple[int, int] | None:
    """Start a detached shell that kills marked processes as soon as no process has the returned descriptor open.

    Return the mark and the descriptor; None if the system has no marks. The mark is a soft limit on real-time seconds
    too large to have an effect; unlike sessions and environment variables, all descendants of a process that sets it
    with `set_mark` have it, also a daemon that a server has detached.
    """
    rttime = getattr(resource, "RLIMIT_RTTIME", None)
    if (
        rttime is None
        or resource.getrlimit(rttime)[1] != resource.RLIM_INFINITY
        or not Path("/proc/self/limits").exists()
    ):
        return None
    mark = (1 << 62) + secrets.randbits(60)
    read_end, write_end = os.pipe()
    try:
        subprocess.run(
            ["/bin/sh", "-c", _WATCH_SCRIPT, "gym-watch", str(mark)],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        os.close(write_end)
        return None
    finally:
        os.close(read_end)
    return mark, write_end


def set_mark(mark: int) -> None:
    """Mark this process and all that it will start, see `start_watch`."""
    resource.setrlimit(resource.RLIMIT_RTTIME, (mark, resource.RLIM_INFINITY))


def guard_descendants(control: socket.socket) -> int | None:
    """Fork and return in the child, which uses `control`; this process becomes its guard.

    The guard ends every descendant of the child after the child has exited, however it ended, or on SIGTERM. If the
    guard itself is killed, the child gets SIGHUP. If both are killed together, a watch kills the descendants. The child
    returns a descriptor that its own children must close, because the watch waits until it is closed everywhere.
    """
    watch = start_watch()  # before `adopt_orphans`: the watch must not be a child that the guard ends
    adopt_orphans()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        if exit_with_parent(signal.SIGHUP) and os.getppid() != guard:
            os._exit(1)  # the guard ended before the signal was requested
        if watch is None:
            return None
        set_mark(watch[0])
        return watch[1]
    control.close()
    status = 1
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        while (ended := os.waitpid(-1, 0))[0] != pid:  # an adopted descendant ended
            pass
        status = max(0, os.waitstatus_to_exitcode(ended[1]))  # negative: the signal that ended the child
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_descendants()
        os._exit(status)


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if the process does not exist or is a zombie.

    A process id with another start time belongs to another process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    words = stat.rpartition(")")[2].split()  # the program name before `)` may contain spaces and brackets
    return 0 if words[0] in "ZX" else int(words[19])  # Z, X: zombie, dead; the 20th word is the start time


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
