"""From how a program ended to what it is called: exit status, what the groups counted, its last words."""

import os
import re
import signal
from dataclasses import dataclass

from nemo_gym.sandbox.providers.local.cgroups import Usage
from nemo_gym.sandbox.spec import SandboxErrorKind

_LAST_WORDS = (
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
class Ending:
    """How a program ended. `stopped` is what we ended it for, `status` as `waitpid` has it, None if the box is gone."""

    stopped: SandboxErrorKind | None
    status: int | None
    usage: Usage
    cpu_s: float
    cpu_limit_s: float | None
    stderr: str

    @property
    def exit_code(self) -> int:
        """The status, a signal as 128 and its number, as shells report it."""
        if self.status is None:
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    @property
    def signal(self) -> int | None:
        """The signal that ended it."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None


def kind_of(ending: Ending) -> SandboxErrorKind | None:
    """What ended the program; None if it ended by itself.

    The bounds that the kernel counts come first, then the clocks, then signals. An exit status other than 0 is looked
    at with the last line of stderr: a program can only make its own failure look like another one that way.
    """
    if ending.stopped is SandboxErrorKind.OUTPUT:
        return ending.stopped
    failed = ending.stopped is not None or ending.status != 0
    if failed and ending.usage.out_of_processes:  # a crowd often runs out of memory too
        return SandboxErrorKind.PROCESSES
    if failed and ending.usage.out_of_memory:
        return SandboxErrorKind.MEMORY
    if ending.stopped is not None:
        return ending.stopped
    if ending.status is None:
        return SandboxErrorKind.SANDBOX
    if ending.signal is not None:
        return _of_signal(ending, ending.signal)
    return _of_last_words(ending.stderr) if ending.status else None


def _of_signal(ending: Ending, number: int) -> SandboxErrorKind:
    out_of_time = ending.cpu_limit_s is not None and ending.cpu_s >= ending.cpu_limit_s
    if number == signal.SIGXCPU or (number == signal.SIGKILL and out_of_time):
        return SandboxErrorKind.CPU_TIME
    special = {signal.SIGXFSZ: SandboxErrorKind.DISK, signal.SIGSYS: SandboxErrorKind.FORBIDDEN}
    return special.get(signal.Signals(number), SandboxErrorKind.CRASHED)


def _of_last_words(stderr: str) -> SandboxErrorKind | None:
    lines = stderr[-_TAIL:].strip().splitlines()
    last = lines[-1] if lines else ""
    return next((kind for kind, pattern in _LAST_WORDS if re.match(pattern, last)), None)
