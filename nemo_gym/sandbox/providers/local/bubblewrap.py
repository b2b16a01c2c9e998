"""The walls of a box as arguments of `bwrap`: what is mounted, which namespaces are new, who the user is."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSIDE = "/run/box"
WORKDIR = "/work"
BOX_USER = 1000

PRELOAD = (
    "bisect",
    "collections",
    "copy",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "heapq",
    "io",
    "itertools",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "textwrap",
    "time",
    "typing",
    "dataclasses",
    "enum",
    "contextlib",
    "traceback",
    "threading",
    "json",
    "socket",
    "ast",
    "signal",
)
"""Modules that programs often want; a warm box has them loaded before the program comes."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")

_NOT_FOR_WORK = (*_SYSTEM, "/proc", "/dev", "/run", "/etc", "/sys", "/tmp")

_SHM_BYTES = 16 << 20

_BOOT = f"""\
import sys
sys.path.insert(0, {INSIDE!r})
from nemo_gym.sandbox.providers.local.inside.supervisor import main
from nemo_gym.sandbox.providers.local.inside.programs import do
sys.path.remove({INSIDE!r})
do(main(SETTINGS))
"""

_OURS = Path(__file__).with_name("inside")


@dataclass(frozen=True)
class Shape:
    """What cannot be changed once a box is there: boxes of one shape are interchangeable."""

    workdir: str = WORKDIR
    disk_bytes: int = 256 << 20
    packages: tuple[str, ...] = ()

    @property
    def writable(self) -> list[str]:
        """Where a program may write; gone with the box."""
        return [self.workdir, "/tmp", "/dev/shm"]

    def problem(self) -> str | None:
        """Why there can be no such box."""
        path = os.path.normpath(self.workdir)
        inside_system = any(path == part or path.startswith(f"{part}/") for part in _NOT_FOR_WORK)
        if not path.startswith("/") or path == "/" or ".." in self.workdir.split("/") or inside_system:
            return f"the working directory cannot be {self.workdir!r}: it must be absolute and not of the system"
        missing = [
            path for path in self.packages if not Path(path).is_dir() or Path(path).stat().st_mode & 0o005 != 0o005
        ]
        return f"no folder of packages that everybody may read: {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Descriptors:
    """Open files handed to `bwrap`, by number."""

    control: int
    info: int
    filter: int
    passwd: int
    block: int | None
    entrances: Sequence[int]

    def all(self) -> list[int]:
        """Every number, for the one who starts the process."""
        optional = [] if self.block is None else [self.block]
        return [self.control, self.info, self.filter, self.passwd, *optional, *self.entrances]


def interpreter() -> str:
    """The interpreter that runs in boxes: ours, without the virtual environment around it."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def search_path() -> str:
    """`PATH` in a box."""
    return os.pathsep.join(dict.fromkeys([str(Path(interpreter()).parent), "/usr/local/bin", "/usr/bin", "/bin"]))


def arguments(bwrap: str, shape: Shape, files: Descriptors, *, preload: bool) -> list[str]:
    """The command line that makes a box of this shape and starts process 1 in it, with or without modules loaded."""
    settings = {
        "control": files.control,
        "entrances": list(files.entrances),
        "uid": None if files.block is None else BOX_USER,
        "preload": list(PRELOAD) if preload else [],
        "writable": shape.writable,
    }
    return [
        bwrap,
        *_namespaces(files),
        *_system(),
        *_of_its_own(shape, files),
        *(part for path in shape.packages for part in _read_only(path, path)),
        *("--remount-ro", "/", "--chdir", shape.workdir),
        *("--seccomp", str(files.filter)),
        "--",
        *(interpreter(), "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT.replace("SETTINGS", repr(settings))),
    ]


def _namespaces(files: Descriptors) -> list[str]:
    """Everything new. With `block` the caller maps the users and process 1 changes to one that owns nothing."""
    arguments = [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
        *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        *("--setenv", "LANG", "C.UTF-8", "--hostname", "sandbox", "--info-fd", str(files.info)),
    ]
    if files.block is None:
        return [*arguments, "--cap-drop", "ALL", "--uid", str(BOX_USER), "--gid", str(BOX_USER)]
    only_to_change_user = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    return [*arguments, *only_to_change_user, "--userns-block-fd", str(files.block)]


def _system() -> list[str]:
    """The read-only part: the operating system's programs and libraries, and the interpreter's."""
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
    """A folder under folders everybody may pass: those bubblewrap makes by itself are for their owner alone."""
    parents = [str(parent) for parent in reversed(Path(target).parents) if str(parent) != "/"]
    return [*(part for parent in parents for part in ("--perms", "0755", "--dir", parent)), "--ro-bind", source, target]


def _of_its_own(shape: Shape, files: Descriptors) -> list[str]:
    """Devices, processes, and memory-backed folders to write in, each with a bound."""

    def writable(path: str, size: int) -> tuple[str, ...]:
        return ("--size", str(size), "--perms", "1777", "--tmpfs", path)

    return [
        *_read_only(str(_OURS), f"{INSIDE}/nemo_gym/sandbox/providers/local/inside"),
        *("--perms", "0444", "--ro-bind-data", str(files.passwd), "/etc/passwd"),
        *("--dev", "/dev", *writable("/dev/shm", _SHM_BYTES), "--remount-ro", "/dev"),
        *("--proc", "/proc"),
        *writable("/tmp", shape.disk_bytes),
        *writable(shape.workdir, shape.disk_bytes),
    ]


def passwd(workdir: str) -> bytes:
    """Who there is in a box."""
    return f"sandbox:x:{BOX_USER}:{BOX_USER}::{workdir}:/bin/sh\n".encode()
