"""Forbid system calls in a box with the classic BPF program that `bwrap --seccomp` loads.

A forbidden call fails with EPERM, an ordinary error for the program. A call of another architecture, where the numbers
have other meanings, kills the process.
"""

import errno
import platform
import struct
from collections.abc import Iterable

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16

_X32 = 0x40000000
"""x86_64 only: from this number on, the numbers are x32 variants of the same calls."""

_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""For each architecture, its position in the pairs of system call numbers below, and its AUDIT_ARCH number."""

_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    # kernel features with a large attack surface
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "seccomp": (317, 277),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "nfsservctl": (180, 42),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "lookup_dcookie": (212, 18),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "sync": (162, 81),
    "syncfs": (306, 267),
    # priorities
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setattr": (314, 274),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    # allowances that a box shares with the user who started it, or with all users
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "io_setup": (206, 0),
    # kernel memory that even control groups do not count: access control lists, large pages held by a pipe, NUMA
    # policies of the pages of a file
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "vmsplice": (278, 75),
    "mbind": (237, 235),
    "set_mempolicy_home_node": (450, 450),
}
"""Numbers of system calls on x86_64 and aarch64; None if the architecture does not have the call."""

_FORBIDDEN_WITHOUT_CGROUP: dict[str, tuple[int | None, int | None]] = {"memfd_create": (319, 279)}
"""Calls that allocate memory outside all rlimits; forbidden unless a control group limits memory."""

_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_IOCTL, _PRLIMIT, _PERSONALITY = (16, 29), (302, 261), (135, 92)
_SETSOCKOPT, _FCNTL = (54, 208), (72, 25)
_MMAP = (9, 222)

_AF_UNIX = 1
_AF_OF_LOOPBACK = (_AF_UNIX, 2, 10, 16)
"""Socket families of programs that use the loopback interface: also IPv4, IPv6 and netlink, which lists interfaces."""
_STREAM, _SEQPACKET, _SOCKET_FLAGS = 1, 5, (0, 0x800, 0x80000, 0x80800)
_CONNECTED_TYPES = [kind | flags for kind in (_STREAM, _SEQPACKET) for flags in _SOCKET_FLAGS]
"""Socket types whose unread data counts for the sender, with every combination of SOCK_NONBLOCK and SOCK_CLOEXEC.

A datagram socket, in contrast, holds the data of ten senders, even of senders that have closed their sockets.
"""
_BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE of SOL_SOCKET, the only level that Unix sockets have."""
_FILE_COMMANDS = (37, 38, 1024, 1026, 1031)
"""Forbidden commands of `fcntl`.

F_OFD_SETLK and F_OFD_SETLKW: locks that a mapped file keeps without a descriptor. F_SETLEASE and F_NOTIFY reach the
host's files. F_SETPIPE_SZ: the kernel limits the total per user.
"""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""Commands of `ioctl` that write input into a terminal, as if a user had typed it."""
_QUERY_PERSONALITY = 0xFFFFFFFF
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_PAGE_BYTES = 4096


def is_supported(machine: str | None = None) -> bool:
    """Return whether the system call numbers of `machine` (default: this machine) are known."""
    return (machine or platform.machine()) in _ARCHITECTURES


def filter_program(machine: str | None = None, *, counts_memory: bool = True, has_loopback: bool = False) -> bytes:
    """Return the BPF program for `machine` (default: this machine).

    `counts_memory`: a control group limits the memory of the box. `has_loopback`: programs may use network sockets,
    which reach only the loopback interface of the box.

    Raises:
        KeyError: the system call numbers of that architecture are not known.
    """
    column, architecture = _ARCHITECTURES[machine or platform.machine()]
    forbidden = _FORBIDDEN if counts_memory else {**_FORBIDDEN, **_FORBIDDEN_WITHOUT_CGROUP}
    numbers = sorted(number for pair in forbidden.values() if (number := pair[column]) is not None)
    denied = _ERRNO | errno.EPERM
    code = [
        _step(_LOAD, _AT_ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL_PROCESS),
        _step(_LOAD, _AT_NUMBER),
    ]
    if column == 0:  # x86_64
        code += [_step(_JUMP_AT_LEAST, _X32, 0, 1), _step(_RETURN, _KILL_PROCESS)]
    for number in numbers:
        code += _when(number, [_step(_RETURN, denied)])
    # clone3 passes its flags behind a pointer, which a filter cannot read; on ENOSYS the C library uses clone.
    code += _when(_CLONE3[column], [_step(_RETURN, _ERRNO | errno.ENOSYS)])
    code += _when(_CLONE[column], _check_argument(0, [_NEW_NAMESPACES], denied, _ALLOW, jump=_JUMP_ANY_BIT))
    for call in (_SOCKET, _SOCKETPAIR):
        check = (
            _check_argument(0, _AF_OF_LOOPBACK, _ALLOW, denied)
            if has_loopback
            else _check_socket(denied, any_type=counts_memory)
        )
        code += _when(call[column], check)
    if not counts_memory:
        code += _when(_MMAP[column], _check_mapping(denied))
    code += _when(_SETSOCKOPT[column], _check_argument(2, _BUFFER_SIZES, denied, _ALLOW))
    code += _when(_FCNTL[column], _check_argument(1, _FILE_COMMANDS, denied, _ALLOW))
    code += _when(_IOCTL[column], _check_argument(1, [_TIOCSTI, _TIOCLINUX], denied, _ALLOW))
    # prlimit is allowed only with process id 0, the calling process; personality only to query or reset it.
    code += _when(_PRLIMIT[column], _check_argument(0, [0], _ALLOW, denied))
    code += _when(_PERSONALITY[column], _check_argument(0, [0, _QUERY_PERSONALITY], _ALLOW, denied))
    code.append(_step(_RETURN, _ALLOW))
    return b"".join(code)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode one BPF instruction; `if_true` and `if_false` are the numbers of instructions that a jump skips."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _when(number: int, then: list[bytes]) -> list[bytes]:
    """Build steps that run `then`, which must return from the filter, if the loaded system call number is `number`."""
    return [_step(_JUMP_EQUAL, number, 0, len(then)), *then]


def _check_argument(
    index: int, values: Iterable[int], if_listed: int, otherwise: int, *, jump: int = _JUMP_EQUAL
) -> list[bytes]:
    """Build steps that return `if_listed` if the lower half of an argument is one of `values`, else `otherwise`.

    With the jump `_JUMP_ANY_BIT`, an argument is listed if it shares a bit with one of `values`.
    """
    tests = [step for value in values for step in (_step(jump, value, 0, 1), _step(_RETURN, if_listed))]
    return [_step(_LOAD, _AT_ARGUMENTS + 8 * index), *tests, _step(_RETURN, otherwise)]


def _check_socket(denied: int, *, any_type: bool) -> list[bytes]:
    """Build steps that allow only Unix sockets, and unless `any_type` is set, only those of `_CONNECTED_TYPES`."""
    if any_type:
        return _check_argument(0, [_AF_UNIX], _ALLOW, denied)
    deny_other_families = [_step(_LOAD, _AT_ARGUMENTS), _step(_JUMP_EQUAL, _AF_UNIX, 1, 0), _step(_RETURN, denied)]
    return [*deny_other_families, *_check_argument(1, _CONNECTED_TYPES, _ALLOW, denied)]


def _check_mapping(denied: int) -> list[bytes]:
    """Build steps that allow shared memory without a file only up to one page.

    A larger one keeps its pages while a single one is mapped, and only mapped pages are measured.
    """
    length, flags = _AT_ARGUMENTS + 8, _AT_ARGUMENTS + 8 * 3
    allow = _step(_RETURN, _ALLOW)
    return [
        *(_step(_LOAD, flags), _step(_JUMP_ANY_BIT, _MAP_SHARED, 1, 0), allow),
        *(_step(_JUMP_ANY_BIT, _MAP_ANONYMOUS, 1, 0), allow),
        *(_step(_LOAD, length + 4), _step(_JUMP_EQUAL, 0, 1, 0), _step(_RETURN, denied)),
        *(_step(_LOAD, length), _step(_JUMP_AT_LEAST, _PAGE_BYTES + 1, 0, 1), _step(_RETURN, denied), allow),
    ]
