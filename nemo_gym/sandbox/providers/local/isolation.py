"""What isolation this machine has, tried out rather than assumed."""

import functools
import os
import sys
from dataclasses import dataclass

from nemo_gym.sandbox.providers.local import seccomp
from nemo_gym.sandbox.providers.local.bubblewrap import Shape
from nemo_gym.sandbox.providers.local.cgroups import CPU, MEMORY, PIDS, Cgroups
from nemo_gym.sandbox.providers.local.launch import find_bwrap, launch, maps_users
from nemo_gym.sandbox.spec import SandboxCreateError, SandboxUnsupportedError

INSTALL = "apt-get install bubblewrap"


@dataclass(frozen=True)
class Isolation:
    """What was found. `problem` is None when programs can be isolated here."""

    problem: str | None = None
    fix: str | None = None
    landlock: int = 0
    """Version of Landlock; 0 is none."""
    own_user: bool = False
    """Programs run as a user that nobody else is, outside of the box as well."""
    counted: tuple[str, ...] = ()
    """What control groups bound for a box as a whole; the rest is bounded by rlimits, per process."""

    @property
    def available(self) -> bool:
        return self.problem is None

    def require(self) -> None:
        """Do nothing where programs can be isolated.

        Raises:
            SandboxUnsupportedError: they cannot; it says what is missing.
        """
        if self.problem is not None:
            raise SandboxUnsupportedError(
                f"programs cannot be isolated here: {self.problem}", where="sandbox local", fix=self.fix
            )

    def describe(self) -> str:
        """One line for people."""
        if self.problem is not None:
            return f"none: {self.problem}"
        walls = ["bubblewrap", "seccomp"]
        walls.append(f"Landlock {self.landlock}" if self.landlock else "no Landlock")
        walls.append("a user of its own" if self.own_user else "our own user")
        names = {MEMORY: "memory", PIDS: "processes", CPU: "processor time"}
        counted = ", ".join(text for name, text in names.items() if name in self.counted)
        return ", ".join([*walls, f"groups ({counted})" if counted else "rlimits only"])


@functools.cache
def probe() -> Isolation:
    """Start a box and end it; remembered for the life of this process."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return Isolation("only Linux has what it takes", "the docker provider")
    if not seccomp.supported():
        return Isolation(f"no system call table for {os.uname().machine}", "the docker provider")
    bwrap = find_bwrap()
    if bwrap is None:
        return Isolation("bubblewrap is not installed", INSTALL)
    cgroups = Cgroups.find()
    try:
        box = launch(bwrap, Shape(), None)
    except SandboxCreateError as error:
        fix = "allow user namespaces (sysctl user.max_user_namespaces), or use the docker provider"
        return Isolation(f"bubblewrap does not work: {error.problem}", fix)
    box.close()
    return Isolation(None, None, box.landlock, maps_users(), () if cgroups is None else cgroups.controllers)
