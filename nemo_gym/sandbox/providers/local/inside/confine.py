"""Restrict a process before it runs a program: paths (Landlock), resources (rlimits), access to memory (prctl)."""

# ruff: noqa: PTH123
# pathlib and contextlib would slow down every cold start.

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
    """Return the kernel's version of Landlock; 0 if it has none."""
    version = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION))
    return max(0, int(version))


def rights(abi: int) -> int:
    """Return every file right of this version; rights that no rule lists are then refused."""
    newer = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
    return sum(bit for since, bit in newer.items() if abi >= since) | (_REFER - 1)


def restrict_paths(writable: Iterable[str]) -> int:
    """Allow reading mounted files and writing below `writable`; forbid TCP and signals to processes outside.

    A second layer on top of mounts and namespaces. Returns the version used; 0 without Landlock.

    Raises:
        OSError: the kernel has Landlock and refused.
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
    ruleset = _check_result(
        _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    )
    try:
        _allow(ruleset, "/", _READ & handled)
        _allow(ruleset, "/dev", (_READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & handled)
        _allow(ruleset, "/proc", (_READ | _WRITE_FILE) & handled)
        for path in writable:
            _allow(ruleset, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK))
        _check_result(_libc.syscall(_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)))
    finally:
        os.close(ruleset)
    return abi


def restrict_resources(limits: Mapping[str, int]) -> None:
    """Set soft and hard rlimits by name; a lower existing limit stays."""
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(which)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # The soft limit sends SIGXCPU, which identifies the cause; one second later the hard limit kills.
        last = bound + 1 if name == "CPU" and (hard == resource.RLIM_INFINITY or bound < hard) else bound
        resource.setrlimit(which, (bound, last))


def prefer_as_victim() -> None:
    """Make the kernel kill this process instead of process 1 when the box is out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass  # without it the kernel kills the largest process, which is the program as well


def hide_memory(hidden: bool) -> None:
    """Forbid or allow other processes of the same user to access this process's memory and descriptors."""
    _check_result(_libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(not hidden), 0, 0, 0))


def die_with_parent() -> None:
    """Have this process killed when its parent ends. A change of user resets this, so call it afterwards."""
    _check_result(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL), 0, 0, 0))


def _allow(ruleset: int, path: str, allowed: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", allowed, folder)
        kind = ctypes.c_int(_LANDLOCK_PATH_BENEATH)
        _check_result(_libc.syscall(_LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), kind, rule, ctypes.c_uint(0)))
    finally:
        os.close(folder)


def _check_result(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
