"""Classify why a program ended: by its exit status, control-group counters and the last line of its stderr."""

import os
import re
import signal
from dataclasses import dataclass

from nemo_gym.sandbox.providers.local.cgroups import Usage
from nemo_gym.sandbox.spec import SandboxErrorKind

_LAST_LINE_PATTERNS = (
    (SandboxErrorKind.MEMORY, r"MemoryError\b|.*: Cannot allocate memory|.*\[Errno 12\]"),
    (SandboxErrorKind.PROCESSES, r".*can't start new thread|.*\[Errno 11\]|.*(Cannot fork|Resource temporarily un)"),
    (SandboxErrorKind.DISK, r".*\[Errno (27|28|122)\]|.*(No space left on device|File too large)"),
    (
        SandboxErrorKind.FORBIDDEN,
        r".*\[Errno (1|13|30)\]|PermissionError\b|.*(Operation not permitted|Permission denied|Read-only file system)",
    ),
)

_MAX_TAIL_CHARACTERS = 4000


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: `exceeded` is the limit it was killed for, `status` its `waitpid` status (None: unknown)."""

    exceeded: SandboxErrorKind | None
    status: int | None
    usage: Usage
    cpu_s: float
    cpu_limit_s: float | None
    stderr: str

    @property
    def exit_code(self) -> int:
        """Return the exit status; for a signal 128 plus its number, as shells do."""
        if self.status is None:
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    @property
    def signal(self) -> int | None:
        """Return the signal that killed the program; None if it exited."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None


def error_kind(program_end: ProgramEnd) -> SandboxErrorKind | None:
    """Return why a program ended; None if it exited by itself without hitting a limit.

    Checked in this order: the output limit, kernel counters, other limits that this process enforces, signals, and if
    the exit status is not 0, the last line of stderr. Forging this line only changes the kind of the failure.
    """
    if program_end.exceeded is SandboxErrorKind.OUTPUT:
        return program_end.exceeded
    has_failed = program_end.exceeded is not None or program_end.status != 0
    if has_failed and program_end.usage.forks_denied:  # too many processes often also exhaust memory
        return SandboxErrorKind.PROCESSES
    if has_failed and program_end.usage.memory_kills:
        return SandboxErrorKind.MEMORY
    if program_end.exceeded is not None:
        return program_end.exceeded
    if program_end.status is None:
        return SandboxErrorKind.SANDBOX
    if program_end.signal is not None:
        return _signal_kind(program_end, program_end.signal)
    return _last_line_kind(program_end.stderr) if program_end.status else None


def _signal_kind(program_end: ProgramEnd, number: int) -> SandboxErrorKind:
    """Classify a program that a signal killed."""
    is_cpu_limit_reached = program_end.cpu_limit_s is not None and program_end.cpu_s >= program_end.cpu_limit_s
    if number == signal.SIGXCPU or (number == signal.SIGKILL and is_cpu_limit_reached):
        return SandboxErrorKind.CPU_TIME
    kinds = {signal.SIGXFSZ: SandboxErrorKind.DISK, signal.SIGSYS: SandboxErrorKind.FORBIDDEN}
    return kinds.get(signal.Signals(number), SandboxErrorKind.CRASHED)


def _last_line_kind(stderr: str) -> SandboxErrorKind | None:
    """Classify a program by the last line of its stderr; None if it is not a known error message."""
    lines = stderr[-_MAX_TAIL_CHARACTERS:].strip().splitlines()
    last = lines[-1] if lines else ""
    return next((kind for kind, pattern in _LAST_LINE_PATTERNS if re.match(pattern, last)), None)
