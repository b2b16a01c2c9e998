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
"""Modules that programs often import; a warm box loads them before it gets a program."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")

_RESERVED = (*_SYSTEM, "/proc", "/dev", "/run", "/etc", "/sys", "/tmp")

_SHM_BYTES = 16 << 20

_BOOT = """\
import sys
sys.path.insert(0, LIBRARY)
from nemo_gym.sandbox.providers.local.inside.init_process import main
from nemo_gym.sandbox.providers.local.inside.child_tasks import run_order
sys.path.remove(LIBRARY)
run_order(main(SETTINGS))
"""


@dataclass(frozen=True)
class BoxShape:
    """The properties a box cannot change later; boxes of one shape are interchangeable."""

    workdir: str = WORKDIR
    disk_bytes: int = 256 << 20
    packages: tuple[str, ...] = ()

    @property
    def writable(self) -> list[str]:
        """Return the folders a program may write to; they end with the box."""
        return [self.workdir, "/tmp", "/dev/shm"]

    def problem(self) -> str | None:
        """Return why no box can have this shape, or None."""
        path = os.path.normpath(self.workdir)
        inside_system = any(path == part or path.startswith(f"{part}/") for part in _RESERVED)
        if not path.startswith("/") or path == "/" or ".." in self.workdir.split("/") or inside_system:
            return f"the working directory must be absolute and outside the system folders, not {self.workdir!r}"
        missing = [
            path for path in self.packages if not Path(path).is_dir() or Path(path).stat().st_mode & 0o005 != 0o005
        ]
        return f"not a folder of packages that all users may read: {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Descriptors:
    """Open files passed to `bwrap`, by number."""

    control: int
    info: int
    filter: int
    passwd: int
    block: int | None
    entrances: Sequence[int]

    def all(self) -> list[int]:
        """Return all numbers, to pass to the process."""
        optional = [] if self.block is None else [self.block]
        return [self.control, self.info, self.filter, self.passwd, *optional, *self.entrances]


def interpreter_path() -> str:
    """Return the interpreter that runs in boxes: this one, outside its virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def search_path() -> str:
    """Return `PATH` for programs in a box."""
    return os.pathsep.join(dict.fromkeys([str(Path(interpreter_path()).parent), "/usr/local/bin", "/usr/bin", "/bin"]))


def supervisor_command(
    library: str,
    control: int,
    *,
    preload: bool,
    entrances: Sequence[int] = (),
    uid: int | None = None,
    writable: Sequence[str] | None = None,
) -> list[str]:
    """Return the command of process 1. `writable` is None without isolation."""
    settings = {
        "control": control,
        "entrances": list(entrances),
        "uid": uid,
        "preload": list(PRELOAD) if preload else [],
        "writable": writable,
    }
    source = _BOOT.replace("LIBRARY", repr(library)).replace("SETTINGS", repr(settings))
    return [interpreter_path(), "-I", "-S", "-B", "-X", "utf8", "-c", source]


def bwrap_command(bwrap: str, shape: BoxShape, files: Descriptors, *, preload: bool) -> list[str]:
    """Return the command that makes a box of this shape and starts process 1 in it."""
    uid = None if files.block is None else BOX_USER
    supervisor = supervisor_command(
        _INSIDE, files.control, preload=preload, entrances=files.entrances, uid=uid, writable=shape.writable
    )
    return [
        bwrap,
        *_namespaces(files),
        *_system_mounts(),
        *_private_mounts(shape, files),
        *(part for path in shape.packages for part in _read_only(path, path)),
        *("--remount-ro", "/", "--chdir", shape.workdir),
        *("--seccomp", str(files.filter)),
        "--",
        *supervisor,
    ]


def _namespaces(files: Descriptors) -> list[str]:
    """Unshare everything. With `block`, the caller maps the users and process 1 changes to one that owns nothing."""
    arguments = [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
        *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        *("--setenv", "LANG", "C.UTF-8", "--hostname", "sandbox", "--info-fd", str(files.info)),
    ]
    if files.block is None:
        return [*arguments, "--cap-drop", "ALL", "--uid", str(BOX_USER), "--gid", str(BOX_USER)]
    only_to_change_user = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    return [*arguments, *only_to_change_user, "--userns-block-fd", str(files.block)]


def _system_mounts() -> list[str]:
    """Mount the programs and libraries of the operating system and the interpreter, read-only."""
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
            arguments += _read_only(path, path)
    return arguments


def _read_only(source: str, target: str) -> list[str]:
    """Mount a folder below parents that all users may enter; bubblewrap would make them for the owner only."""
    parents = [str(parent) for parent in reversed(Path(target).parents) if str(parent) != "/"]
    return [*(part for parent in parents for part in ("--perms", "0755", "--dir", parent)), "--ro-bind", source, target]


def _private_mounts(shape: BoxShape, files: Descriptors) -> list[str]:
    """Mount devices, processes, and bounded writable folders in memory."""

    def writable(path: str, size: int) -> tuple[str, ...]:
        return ("--size", str(size), "--perms", "1777", "--tmpfs", path)

    return [
        *_read_only(str(INSIDE_SOURCE), f"{_INSIDE}/{INSIDE_PACKAGE}"),
        *("--perms", "0444", "--ro-bind-data", str(files.passwd), "/etc/passwd"),
        *("--dev", "/dev", *writable("/dev/shm", _SHM_BYTES), "--remount-ro", "/dev"),
        *("--proc", "/proc"),
        *writable("/tmp", shape.disk_bytes),
        *writable(shape.workdir, shape.disk_bytes),
    ]


def passwd_file(workdir: str) -> bytes:
    """Return `/etc/passwd` of a box."""
    return f"sandbox:x:{BOX_USER}:{BOX_USER}::{workdir}:/bin/sh\n".encode()
