"""Restrict a process before it runs a program: paths (Landlock), resources (rlimits), access to memory (prctl)."""

# ruff: noqa: PTH123
# pathlib and contextlib would slow down every cold start.

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER = 1, 4, 22, 36
_SIGKILL = 9

_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION = 1
_LANDLOCK_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_BIND_TCP_AND_CONNECT_TCP = 3
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3

_SECCOMP_MODE_FILTER = 2
_LOAD, _JUMP_AT_LEAST, _RETURN = 0x20, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_abi() -> int:
    """Return the Landlock version of the kernel; 0 if it has none."""
    version = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION))
    return max(0, int(version))


def all_file_rights(abi: int) -> int:
    """Return all file rights of a Landlock version; the kernel denies those that no rule allows."""
    newer = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
    rights_of_version_1 = _REFER - 1  # all bits below _REFER
    return sum(bit for since, bit in newer.items() if abi >= since) | rights_of_version_1


def restrict_paths(writable: Iterable[str], *, has_loopback: bool = False) -> int:
    """Restrict this process with Landlock, a second layer on top of mounts and namespaces.

    Allows reading mounted files, writing devices and `/proc`, and everything except device files below `writable`.
    Newer versions of Landlock also forbid TCP (unless the box has a loopback interface), and sockets of and signals to
    processes outside the box.
    Returns the Landlock version; 0 if the kernel has none.

    Raises:
        OSError: the kernel has Landlock and rejects the rules.
    """
    abi = landlock_abi()
    if not abi:
        return 0
    handled = all_file_rights(abi)
    fields = [handled]
    if abi >= 4:
        fields.append(0 if has_loopback else _BIND_TCP_AND_CONNECT_TCP)
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


def forbid_landlock() -> None:
    """Forbid this process to use Landlock: rulesets take kernel memory that is counted only by control groups."""
    number = (_LOAD, 0, 0, 0)
    is_newer = (_JUMP_AT_LEAST, 2, 0, _LANDLOCK_RESTRICT + 1)
    is_landlock = (_JUMP_AT_LEAST, 0, 1, _LANDLOCK_CREATE)
    deny, allow = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    steps = [number, is_newer, is_landlock, deny, allow]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    _check_result(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), program, 0, 0))


def restrict_resources(limits: Mapping[str, int]) -> None:
    """Set soft and hard rlimits by name; a lower hard limit that already exists is kept."""
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # At the soft limit of CPU time the kernel sends SIGXCPU, which identifies the cause; one second later it kills.
        hard_bound = bound + 1 if name == "CPU" and (hard == resource.RLIM_INFINITY or bound < hard) else bound
        resource.setrlimit(kind, (bound, hard_bound))


def raise_oom_score() -> None:
    """Make the kernel kill this process before the init process if the box is out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass  # then the kernel kills the largest process, which is the program anyway


def hide_memory(hidden: bool) -> None:
    """Deny (or allow) other processes of the same user access to this process's memory and descriptors."""
    _check_result(_libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(not hidden), 0, 0, 0))


def exit_with_parent() -> None:
    """Have the kernel kill this process when its parent exits. Changing the user resets this, so call it afterwards."""
    _check_result(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL), 0, 0, 0))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent exits, so that it can be found and killed."""
    _check_result(_libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0))


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a Landlock rule that allows these rights below `path`."""
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, folder)
        kind = ctypes.c_int(_LANDLOCK_PATH_BENEATH)
        _check_result(_libc.syscall(_LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), kind, rule, ctypes.c_uint(0)))
    finally:
        os.close(folder)


def _check_result(result: int) -> int:
    """Return the result of a system call; raise OSError if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
