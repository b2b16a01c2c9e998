"""Forks of this process: when one is whole, and how its end is waited for."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

PAUSE = 0.002


def is_alone() -> bool:
    """Whether this process has a single thread: a fork would keep the locks of others and lose the others."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1
    except OSError:  # not Linux: nobody else can say
        return False


def leave(status: int) -> NoReturn:
    """End this fork at once, whatever happens: it must not return into what the process was doing."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    finally:
        os._exit(status)


class Child:
    """A process that this one forked; used like a `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, a signal as its negative number; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not come in `timeout` seconds.
        """
        begun = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() - begun > timeout:
                raise subprocess.TimeoutExpired(f"the fork {self.pid}", timeout)
            time.sleep(PAUSE)
        return status
