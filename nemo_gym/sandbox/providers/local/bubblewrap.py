"""Build the `bwrap` command of a box: mounts, namespaces and user."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSIDE_SOURCE = Path(__file__).with_name("inside")
INSIDE_PACKAGE = "nemo_gym/sandbox/providers/local/inside"
_LIBRARY = "/run/box"
"""The folder in a box from which `INSIDE_PACKAGE` is imported."""
FORWARDER = f"{_LIBRARY}/{INSIDE_PACKAGE}/forwarder.py"
"""The path in a box of the program that forwards loopback ports to Unix sockets."""
WORKDIR = "/work"
BOX_USER = 1000
"""User and group id of programs, as seen inside a box."""

PRELOAD = (
    *("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "io", "itertools"),
    *("math", "operator", "random", "re", "statistics", "string", "textwrap", "time", "typing", "dataclasses", "enum"),
    *("contextlib", "traceback", "threading", "json", "socket", "ast", "signal"),
)
"""Modules that programs often import; the init process of a warm box imports them in advance."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")

_RESERVED = (*_SYSTEM, "/proc", "/dev", "/run", "/etc", "/sys", "/tmp")
"""Folders that cannot be, or contain, the working directory."""

_SHM_BYTES = 16 << 20

_BOOT = """\
import sys
sys.path.insert(0, LIBRARY)
from nemo_gym.sandbox.providers.local.inside.init_process import main
from nemo_gym.sandbox.providers.local.inside.child_actions import run_action
sys.path.remove(LIBRARY)
run_action(main(SETTINGS))
"""


@dataclass(frozen=True)
class BoxShape:
    """The properties that are fixed when a box is created; boxes of the same shape are interchangeable."""

    workdir: str = WORKDIR
    disk_bytes: int = 256 << 20
    packages: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    """Read-only mounts: path on the host and path in the box."""
    has_loopback: bool = False
    """Programs may use the loopback interface of the box, which no process outside can reach."""

    @property
    def writable(self) -> list[str]:
        """Return the folders a program may write to; they are deleted with the box."""
        return [self.workdir, "/tmp", "/dev/shm"]

    def problem(self) -> str | None:
        """Return why a box of this shape cannot be created; None if it can."""
        path = os.path.normpath(self.workdir)
        is_reserved = any(path == folder or path.startswith(f"{folder}/") for folder in _RESERVED)
        if not path.startswith("/") or path == "/" or ".." in self.workdir.split("/") or is_reserved:
            return f"the working directory must be absolute and outside the system folders, not {self.workdir!r}"
        r_x = 0o005  # the permissions of all users that programs need
        missing = [source for source, _ in self.mounts if not Path(source).exists()]
        if missing:
            return f"these paths to mount do not exist: {', '.join(missing)}"
        folders = [Path(path) for path in self.packages]
        unreadable = [str(folder) for folder in folders if not folder.is_dir() or folder.stat().st_mode & r_x != r_x]
        return f"not a folder that all users may read: {', '.join(unreadable)}" if unreadable else None


@dataclass(frozen=True)
class Descriptors:
    """Numbers of the file descriptors passed to `bwrap`."""

    control: int
    owner: int
    """Process descriptor of the process that starts the box."""
    info_reader: int
    info: int
    """The two ends of the pipe on which `bwrap` reports the process id of its child."""
    filter: int
    passwd: int
    block: int | None
    """Pipe on which `bwrap` waits until the users are mapped; None if they are not mapped."""
    join_files: Sequence[int]
    """Files of control groups; the init process joins a group by writing to its file."""

    def all(self) -> list[int]:
        """Return all descriptors, for `pass_fds`."""
        optional = [] if self.block is None else [self.block]
        always = [self.control, self.owner, self.info_reader, self.info, self.filter, self.passwd]
        return [*always, *optional, *self.join_files]


def interpreter_path() -> str:
    """Return the path of the Python interpreter for boxes: this one, or the base of its virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def search_path() -> str:
    """Return `PATH` for programs in a box."""
    return os.pathsep.join(dict.fromkeys([str(Path(interpreter_path()).parent), "/usr/local/bin", "/usr/bin", "/bin"]))


def init_command(
    library: str,
    control: int,
    owner: int,
    *,
    preload: bool,
    unused: Sequence[int] = (),
    join_files: Sequence[int] = (),
    uid: int | None = None,
    writable: Sequence[str] | None = None,
    has_loopback: bool = False,
) -> list[str]:
    """Return the command of the init process, which closes the descriptors `unused`. `writable` None: no isolation."""
    settings = {
        "control": control,
        "owner": owner,
        "unused": list(unused),
        "join_files": list(join_files),
        "uid": uid,
        "preload": list(PRELOAD) if preload else [],
        "writable": writable,
        "has_loopback": has_loopback,
    }
    source = _BOOT.replace("LIBRARY", repr(library)).replace("SETTINGS", repr(settings))
    return [interpreter_path(), "-I", "-S", "-B", "-X", "utf8", "-c", source]


def bwrap_command(bwrap: str, shape: BoxShape, files: Descriptors, *, preload: bool, counts_memory: bool) -> list[str]:
    """Return the command that creates a box of this shape and starts its init process.

    `counts_memory`: a control group limits the memory of the box.
    """
    uid = None if files.block is None else BOX_USER
    init = init_command(
        _LIBRARY,
        files.control,
        files.owner,
        preload=preload,
        unused=[files.info_reader],
        join_files=files.join_files,
        uid=uid,
        writable=shape.writable,
        has_loopback=shape.has_loopback,
    )
    return [
        bwrap,
        *_namespace_arguments(files),
        *_system_mounts(),
        *_private_mounts(shape, files, counts_memory=counts_memory),
        *(argument for path in shape.packages for argument in _read_only_mount(path, path)),
        *(argument for source, target in shape.mounts for argument in _read_only_mount(source, target)),
        *("--remount-ro", "/", "--chdir", shape.workdir),
        *("--seccomp", str(files.filter)),
        "--",
        *init,
    ]


def _namespace_arguments(files: Descriptors) -> list[str]:
    """Return the arguments that put the box into new namespaces.

    With `files.block`, the host maps the users, and the init process, which starts as root, changes its user itself.
    """
    arguments = [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
        *("--unshare-cgroup-try", "--new-session", "--as-pid-1", "--clearenv"),
        *("--setenv", "LANG", "C.UTF-8", "--hostname", "sandbox", "--info-fd", str(files.info)),
    ]
    if files.block is None:
        return [*arguments, "--cap-drop", "ALL", "--uid", str(BOX_USER), "--gid", str(BOX_USER)]
    keep_change_of_user = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    return [*arguments, *keep_change_of_user, "--userns-block-fd", str(files.block)]


def _system_mounts() -> list[str]:
    """Return the bwrap arguments that mount the operating system and the interpreter read-only."""
    arguments: list[str] = []
    for path in _SYSTEM:
        if Path(path).is_symlink():
            arguments += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).is_dir():
            arguments += ["--ro-bind", path, path]
    arguments += ["--perms", "0755", "--dir", "/etc"]
    for path in _SYSTEM_FILES:
        arguments += ["--ro-bind-try", path, path]
    for path in dict.fromkeys([sys.base_prefix, sys.base_exec_prefix]):
        if not path.startswith("/usr"):
            arguments += _read_only_mount(path, path)
    return arguments


def _read_only_mount(source: str, target: str) -> list[str]:
    """Return the arguments that create the parents of `target`, readable by all users, and mount `source` read-only.

    Bubblewrap itself would create the parents readable by their owner only.
    """
    parents = [str(parent) for parent in reversed(Path(target).parents) if str(parent) != "/"]
    create_parents = [argument for parent in parents for argument in ("--perms", "0755", "--dir", parent)]
    return [*create_parents, "--ro-bind", source, target]


def _private_mounts(shape: BoxShape, files: Descriptors, *, counts_memory: bool) -> list[str]:
    """Return the arguments that mount our code, `/etc/passwd`, `/dev`, `/proc` and the writable folders (in memory).

    Shared mappings of `/dev/zero` take memory that only a control group counts. `/dev/full` also reads as zeros, and
    cannot be mapped.
    """
    devices = ("--dev", "/dev") if counts_memory else ("--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero")

    def writable_mount(path: str, size: int) -> tuple[str, ...]:
        return ("--size", str(size), "--perms", "1777", "--tmpfs", path)

    return [
        *_read_only_mount(str(INSIDE_SOURCE), f"{_LIBRARY}/{INSIDE_PACKAGE}"),
        *("--perms", "0444", "--ro-bind-data", str(files.passwd), "/etc/passwd"),
        *(*devices, *writable_mount("/dev/shm", _SHM_BYTES), "--remount-ro", "/dev"),
        *("--proc", "/proc"),
        *writable_mount("/tmp", shape.disk_bytes),
        *writable_mount(shape.workdir, shape.disk_bytes),
    ]


def passwd_file(workdir: str) -> bytes:
    """Return the content of `/etc/passwd` in a box."""
    return f"sandbox:x:{BOX_USER}:{BOX_USER}::{workdir}:/bin/sh\n".encode()
