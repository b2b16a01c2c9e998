"""Build the `bwrap` command of a box: mounts, namespaces and user."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSIDE_SOURCE = Path(__file__).with_name("inside")
INSIDE_PACKAGE = "nemo_gym/sandbox/providers/local/inside"
_INSIDE = "/run/box"
WORKDIR = "/work"
BOX_USER = 1000

PRELOAD = (
    *("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "io", "itertools"),
    *("math", "operator", "random", "re", "statistics", "string", "textwrap", "time", "typing", "dataclasses", "enum"),
    *("contextlib", "traceback", "threading", "json", "socket", "ast", "signal"),
)
"""Modules that programs often import; the init process of a warm box imports them in advance."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")

_RESERVED = (*_SYSTEM, "/proc", "/dev", "/run", "/etc", "/sys", "/tmp")

_SHM_BYTES = 16 << 20

_BOOT = """\
import sys
sys.path.insert(0, LIBRARY)
from nemo_gym.sandbox.providers.local.inside.init_process import main
from nemo_gym.sandbox.providers.local.inside.child_tasks import run_task
sys.path.remove(LIBRARY)
run_task(main(SETTINGS))
"""


@dataclass(frozen=True)
class BoxShape:
    """The properties that are fixed when a box is created; boxes of the same shape are interchangeable."""

    workdir: str = WORKDIR
    disk_bytes: int = 256 << 20
    packages: tuple[str, ...] = ()

    @property
    def writable(self) -> list[str]:
        """Return the folders a program may write to; they are deleted with the box."""
        return [self.workdir, "/tmp", "/dev/shm"]

    def problem(self) -> str | None:
        """Return why a box of this shape cannot be created; None if it can."""
        path = os.path.normpath(self.workdir)
        is_reserved = any(path == part or path.startswith(f"{part}/") for part in _RESERVED)
        if not path.startswith("/") or path == "/" or ".." in self.workdir.split("/") or is_reserved:
            return f"the working directory must be absolute and outside the system folders, not {self.workdir!r}"
        unreadable = [
            path for path in self.packages if not Path(path).is_dir() or Path(path).stat().st_mode & 0o005 != 0o005
        ]
        return f"not a folder that all users may read: {', '.join(unreadable)}" if unreadable else None


@dataclass(frozen=True)
class Descriptors:
    """Numbers of the file descriptors passed to `bwrap`."""

    control: int
    owner: int
    """Process descriptor of the process that starts the box."""
    info_reader: int
    info: int
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
    """Return the path of the Python interpreter for boxes: the base of this interpreter's virtual environment."""
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
) -> list[str]:
    """Return the command of the init process, which closes `unused`. `writable` is None without isolation."""
    settings = {
        "control": control,
        "owner": owner,
        "unused": list(unused),
        "join_files": list(join_files),
        "uid": uid,
        "preload": list(PRELOAD) if preload else [],
        "writable": writable,
    }
    source = _BOOT.replace("LIBRARY", repr(library)).replace("SETTINGS", repr(settings))
    return [interpreter_path(), "-I", "-S", "-B", "-X", "utf8", "-c", source]


def bwrap_command(bwrap: str, shape: BoxShape, files: Descriptors, *, preload: bool) -> list[str]:
    """Return the command that creates a box of this shape and starts its init process."""
    uid = None if files.block is None else BOX_USER
    init = init_command(
        _INSIDE,
        files.control,
        files.owner,
        preload=preload,
        unused=[files.info_reader],
        join_files=files.join_files,
        uid=uid,
        writable=shape.writable,
    )
    return [
        bwrap,
        *_namespace_arguments(files),
        *_system_mounts(),
        *_private_mounts(shape, files),
        *(part for path in shape.packages for part in _read_only_mount(path, path)),
        *("--remount-ro", "/", "--chdir", shape.workdir),
        *("--seccomp", str(files.filter)),
        "--",
        *init,
    ]


def _namespace_arguments(files: Descriptors) -> list[str]:
    """Return the arguments that put the box into new namespaces.

    With `files.block`, the host maps the users and the init process changes to an unprivileged one.
    """
    arguments = [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
        *("--unshare-cgroup-try", "--new-session", "--as-pid-1", "--clearenv"),
        *("--setenv", "LANG", "C.UTF-8", "--hostname", "sandbox", "--info-fd", str(files.info)),
    ]
    if files.block is None:
        return [*arguments, "--cap-drop", "ALL", "--uid", str(BOX_USER), "--gid", str(BOX_USER)]
    change_user_only = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    return [*arguments, *change_user_only, "--userns-block-fd", str(files.block)]


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
    """Return the arguments that mount a folder read-only; its parents are created here, readable by all users.

    Bubblewrap itself would create the parents for their owner only.
    """
    parents = [str(parent) for parent in reversed(Path(target).parents) if str(parent) != "/"]
    return [*(part for parent in parents for part in ("--perms", "0755", "--dir", parent)), "--ro-bind", source, target]


def _private_mounts(shape: BoxShape, files: Descriptors) -> list[str]:
    """Return the arguments that mount `/dev`, `/proc`, our code, and writable folders in memory of bounded size."""

    def writable_mount(path: str, size: int) -> tuple[str, ...]:
        return ("--size", str(size), "--perms", "1777", "--tmpfs", path)

    return [
        *_read_only_mount(str(INSIDE_SOURCE), f"{_INSIDE}/{INSIDE_PACKAGE}"),
        *("--perms", "0444", "--ro-bind-data", str(files.passwd), "/etc/passwd"),
        *("--dev", "/dev", *writable_mount("/dev/shm", _SHM_BYTES), "--remount-ro", "/dev"),
        *("--proc", "/proc"),
        *writable_mount("/tmp", shape.disk_bytes),
        *writable_mount(shape.workdir, shape.disk_bytes),
    ]


def passwd_file(workdir: str) -> bytes:
    """Return the content of `/etc/passwd` in a box."""
    return f"sandbox:x:{BOX_USER}:{BOX_USER}::{workdir}:/bin/sh\n".encode()
