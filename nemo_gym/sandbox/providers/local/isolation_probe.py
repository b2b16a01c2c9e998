"""Test which isolation this machine supports, by starting a box."""

import functools
import os
import sys
from dataclasses import dataclass

from nemo_gym.sandbox.providers.local import seccomp
from nemo_gym.sandbox.providers.local.box import can_map_users, find_bwrap, launch
from nemo_gym.sandbox.providers.local.bubblewrap import BoxShape
from nemo_gym.sandbox.providers.local.cgroups import CPU, MEMORY, PIDS, Cgroups
from nemo_gym.sandbox.spec import SandboxCreateError, SandboxUnsupportedError

_RESOURCES = {MEMORY: "memory", PIDS: "processes", CPU: "processor time"}


@dataclass(frozen=True)
class Isolation:
    """The isolation that this machine supports. `problem` is None if programs can be isolated."""

    problem: str | None = None
    fix: str | None = None
    landlock: int = 0
    """Version of Landlock; 0 if the kernel has none."""
    own_user: bool = False
    """Programs run with a host user id that no other process uses."""
    counted: tuple[str, ...] = ()
    """Resources that control groups limit for a box as a whole; the others are sampled and have rlimits per process."""

    @property
    def available(self) -> bool:
        return self.problem is None

    def require(self, alternative: str | None = None) -> None:
        """Raise SandboxUnsupportedError if programs cannot be isolated; its fix also suggests `alternative`."""
        if self.problem is not None:
            problem = f"this machine cannot isolate programs: {self.problem}"
            fix = "; or ".join(filter(None, (self.fix, alternative)))
            raise SandboxUnsupportedError(problem, where="sandbox local", fix=fix)

    def describe(self) -> str:
        """Describe the isolation in one line."""
        if self.problem is not None:
            return f"none: {self.problem}"
        layers = ["bubblewrap", "seccomp"]
        layers.append(f"Landlock {self.landlock}" if self.landlock else "no Landlock")
        layers.append("a separate user" if self.own_user else "the same user")
        counted = ", ".join(text for name, text in _RESOURCES.items() if name in self.counted)
        return ", ".join([*layers, f"groups ({counted})" if counted else "rlimits only"])

    @property
    def sampled_limits(self) -> list[str]:
        """Return the limits of a box as a whole that the kernel does not enforce here."""
        return [_RESOURCES[name] for name in (MEMORY, PIDS) if self.available and name not in self.counted]


@functools.cache
def probe() -> Isolation:
    """Return the isolation of this machine, found by starting a box; cached for the lifetime of this process."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return Isolation("isolation needs Linux", "use the docker provider")
    if not seccomp.is_supported():
        return Isolation(f"no system call table for {os.uname().machine}", "use the docker provider")
    bwrap = find_bwrap()
    if bwrap is None:
        return Isolation("bubblewrap is not installed", "apt-get install bubblewrap")
    cgroups = Cgroups.find()
    try:
        box = launch(bwrap, None, BoxShape())
    except SandboxCreateError as error:
        fix = "allow user namespaces (sysctl user.max_user_namespaces), or use the docker provider"
        if "source path" in str(error.problem):  # a folder of the interpreter that this user may not enter
            fix = "use a Python interpreter in a folder that this user can read"
        return Isolation(f"bubblewrap does not work: {error.problem}", fix)
    box.close()
    return Isolation(None, None, box.landlock, can_map_users(), () if cgroups is None else cgroups.controllers)
