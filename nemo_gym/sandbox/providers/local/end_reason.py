"""Classify the end of a program by its exit status, the control groups' counters and its last line of stderr."""

import os
import re
import signal
from dataclasses import dataclass

from nemo_gym.sandbox.providers.local.cgroups import Usage
from nemo_gym.sandbox.spec import SandboxErrorKind

_LAST_LINES = (
    (SandboxErrorKind.MEMORY, r"MemoryError\b|.*: Cannot allocate memory|.*\[Errno 12\]"),
    (SandboxErrorKind.PROCESSES, r".*can't start new thread|.*\[Errno 11\]|.*(Cannot fork|Resource temporarily un)"),
    (SandboxErrorKind.DISK, r".*\[Errno (27|28|122)\]|.*(No space left on device|File too large)"),
    (
        SandboxErrorKind.FORBIDDEN,
        r".*\[Errno (1|13|30)\]|PermissionError\b|.*(Operation not permitted|Permission denied|Read-only file system)",
    ),
)

_TAIL = 4000


@dataclass(frozen=True)
class ProgramEnd:
    """The end of a program: the limit it was killed for, and its `waitpid` status, None if the box is gone."""

    stopped: SandboxErrorKind | None
    status: int | None
    usage: Usage
    cpu_s: float
    cpu_limit_s: float | None
    stderr: str

    @property
    def exit_code(self) -> int:
        """Return the exit status, a signal as 128 plus its number, as shells do."""
        if self.status is None:
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    @property
    def signal(self) -> int | None:
        """Return the signal that ended the program."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None


def error_kind(ending: ProgramEnd) -> SandboxErrorKind | None:
    """Return the reason for the end; None if the program ended by itself.

    The kernel's counters come first, then the clocks, then signals. A non-zero exit status is classified by the last
    line of stderr: that way a program can only disguise its own failure as another failure.
    """
    if ending.stopped is SandboxErrorKind.OUTPUT:
        return ending.stopped
    failed = ending.stopped is not None or ending.status != 0
    if failed and ending.usage.processes_refused:  # a crowd often runs out of memory too
        return SandboxErrorKind.PROCESSES
    if failed and ending.usage.memory_kills:
        return SandboxErrorKind.MEMORY
    if ending.stopped is not None:
        return ending.stopped
    if ending.status is None:
        return SandboxErrorKind.SANDBOX
    if ending.signal is not None:
        return _signal_kind(ending, ending.signal)
    return _last_line_kind(ending.stderr) if ending.status else None


def _signal_kind(ending: ProgramEnd, number: int) -> SandboxErrorKind:
    out_of_time = ending.cpu_limit_s is not None and ending.cpu_s >= ending.cpu_limit_s
    if number == signal.SIGXCPU or (number == signal.SIGKILL and out_of_time):
        return SandboxErrorKind.CPU_TIME
    special = {signal.SIGXFSZ: SandboxErrorKind.DISK, signal.SIGSYS: SandboxErrorKind.FORBIDDEN}
    return special.get(signal.Signals(number), SandboxErrorKind.CRASHED)


def _last_line_kind(stderr: str) -> SandboxErrorKind | None:
    lines = stderr[-_TAIL:].strip().splitlines()
    last = lines[-1] if lines else ""
    return next((kind for kind, pattern in _LAST_LINES if re.match(pattern, last)), None)
