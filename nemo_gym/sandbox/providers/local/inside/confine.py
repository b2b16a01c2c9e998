"""Give up what a program in the box shall not have: paths (Landlock), resources (rlimits), our memory (prctl)."""

# ruff: noqa: PTH123
# Every cold start would pay for pathlib and contextlib.

from __future__ import annotations

import ctypes
import os
import resource
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_SIGKILL = 9

_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION = 1
_LANDLOCK_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_BIND_TCP_AND_CONNECT_TCP = 3
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_abi() -> int:
    """Which version of Landlock the kernel has; 0 is none."""
    found = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION))
    return max(0, int(found))


def rights(abi: int) -> int:
    """Every right over files that this version knows; what is not listed in a rule is then refused."""
    newer = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
    return sum(bit for since, bit in newer.items() if abi >= since) | (_REFER - 1)


def restrict_paths(writable: Iterable[str]) -> int:
    """Allow reading what is mounted and writing below `writable`, no TCP, no signals to who is outside.

    A second wall: the mounts and the namespaces say the same. Returns the version used; 0 where there is none.

    Raises:
        OSError: Landlock is there and refused.
    """
    abi = landlock_abi()
    if not abi:
        return 0
    handled = rights(abi)
    fields = [handled]
    if abi >= 4:
        fields.append(_BIND_TCP_AND_CONNECT_TCP)
    if abi >= 6:
        fields.append(_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _checked(_libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)))
    try:
        _allow(ruleset, "/", _READ & handled)
        _allow(ruleset, "/dev", (_READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & handled)
        _allow(ruleset, "/proc", (_READ | _WRITE_FILE) & handled)
        for path in writable:
            _allow(ruleset, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK))
        _checked(_libc.syscall(_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)))
    finally:
        os.close(ruleset)
    return abi


def restrict_resources(limits: Mapping[str, int]) -> None:
    """Set rlimits by name, soft and hard; a bound that is already lower stays."""
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(which)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # The first second beyond the processor time is a signal that can be told apart, the next one is the end.
        last = bound + 1 if name == "CPU" and (hard == resource.RLIM_INFINITY or bound < hard) else bound
        resource.setrlimit(which, (bound, last))


def prefer_as_victim() -> None:
    """Let the kernel end this process, not our own, when the box is out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass  # a kernel without it picks the largest, which is the program as well


def hide_memory(hidden: bool) -> None:
    """Keep others of the same user out of this process's memory and descriptors, or let them."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(not hidden), 0, 0, 0))


def die_with_parent() -> None:
    """Be killed when the process that started the box is gone. A change of user undoes this, so call it after."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL), 0, 0, 0))


def _allow(ruleset: int, path: str, allowed: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", allowed, folder)
        kind = ctypes.c_int(_LANDLOCK_PATH_BENEATH)
        _checked(_libc.syscall(_LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), kind, rule, ctypes.c_uint(0)))
    finally:
        os.close(folder)


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
