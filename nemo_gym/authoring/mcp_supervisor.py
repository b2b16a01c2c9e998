"""Run a program and end it and all of its descendants on a signal, or when the process that started it ends.

    python mcp_supervisor.py PARENT_PID COMMAND ...

The standard streams are those of the program. It uses only the standard library, because it starts with each rollout.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TERM_SECONDS, _KILL_SECONDS, _POLL_SECONDS = 0.5, 5.0, 0.01
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _EndRequested(BaseException):
    """A signal asks for the end of the program."""


def main(arguments: list[str]) -> int:
    """Run the command and return its status; 127 if it cannot be started."""
    parent, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    status = 0
    try:
        for number in _END_SIGNALS:
            signal.signal(number, _request_end)
        if os.getppid() != int(parent):  # it ended before this process asked to be signalled
            return 0
        child = subprocess.Popen(command)
        for stream in (0, 1):  # so that the ends of the pipes are those of the program
            os.close(stream)
        status = child.wait()
    except _EndRequested:
        status = 0
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        status = 127
    finally:
        for number in _END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        _end_descendants()
    return status


def _request_end(_number: int, _frame: object) -> None:
    raise _EndRequested


def _end_descendants() -> None:
    """Send SIGTERM to all descendants, SIGKILL after `_TERM_SECONDS`, and collect them."""
    begin = time.monotonic()
    number = signal.SIGTERM
    while time.monotonic() < begin + _TERM_SECONDS + _KILL_SECONDS:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _descendants():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        number = signal.SIGKILL if time.monotonic() > begin + _TERM_SECONDS else signal.SIGTERM
        time.sleep(_POLL_SECONDS)


def _descendants() -> list[int]:
    pids, remaining = [], [os.getpid()]
    while remaining:
        for path in Path(f"/proc/{remaining.pop()}").glob("task/*/children"):
            try:
                children = [int(pid) for pid in path.read_text().split()]
            except OSError:  # the process has ended
                continue
            pids += children
            remaining += children
    return pids


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
