"""The actions that a child of the init process performs: a command, a program, a session, file transfer."""

# ruff: noqa: PTH101, PTH103, PTH109, PTH112, PTH113, PTH114, PTH119, PTH120, PTH123, SIM105
# pathlib and contextlib would slow down every cold start.

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` is this with names as enums
import atexit
import gc
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType, TracebackType
    from typing import Any, NoReturn

CHANNEL = 3
"""Descriptor of the channel: the socket for the snippets of a session, or an archive."""

SOURCE_NAME = "main.py"

NOT_FOUND, NOT_EXECUTABLE = 127, 126


def run_action(request: dict[str, Any]) -> None:
    """Perform the action of a request in this process. A command and a program do not return."""
    try:
        os.chdir(request["cwd"])
        _write_files(request.get("files", {}))
    except OSError as error:
        _fail(NOT_EXECUTABLE, f"{error.filename}: {error.strerror}")
    actions: dict[str, Callable[[dict[str, Any]], None]] = {
        "command": run_command,
        "program": run_program,
        "session": run_session,
        "pack": pack,
        "pack_files": pack_files,
        "unpack": unpack,
    }
    actions[request["action"]](request)


def run_command(request: dict[str, Any]) -> NoReturn:
    """Replace this process with the command."""
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    name = request["argv"][0]
    try:
        os.execvpe(name, request["argv"], request["env"])
    except FileNotFoundError:
        _fail(NOT_FOUND, f"{name}: not found")
    except OSError as error:
        _fail(NOT_EXECUTABLE, f"{name}: {error.strerror}")


def run_program(request: Mapping[str, Any]) -> None:
    """Run source text as the main program, as `python main.py` would, and exit."""
    module = _new_main_module(request)
    _exit(_run_source(request["code"], module), module)


def run_session(request: Mapping[str, Any]) -> None:
    """Run snippets in one namespace until the host closes the channel."""
    import socket

    module = _new_main_module(request)
    channel = socket.socket(fileno=CHANNEL)
    number = 0
    while True:
        try:
            token, descriptors, _, _ = socket.recv_fds(channel, 64, 1)
            if not descriptors:
                return
            with os.fdopen(descriptors[0], "rb") as file:
                file.seek(0)
                code = file.read().decode()
            number += 1
            has_raised = _run_snippet(code, f"snippet {number}", module)
            sys.stdout.flush()
            sys.stderr.flush()
            channel.sendall(token + (b"failed" if has_raised else b"done"))
        except KeyboardInterrupt:  # the host's interrupt arrived outside a snippet
            continue


def pack(request: Mapping[str, Any]) -> None:
    """Write a file or directory to the channel as a tar archive."""
    import tarfile

    source = os.path.realpath(request["path"])
    if not os.path.isdir(source) and not os.path.isfile(source):
        sys.exit(f"{request['path']}: no such file or directory")
    with os.fdopen(CHANNEL, "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
        archive.add(source, arcname=os.path.basename(source) or "root")


def pack_files(request: Mapping[str, Any]) -> None:
    """Write the regular files below a directory to the channel as a tar archive; a missing directory has none.

    Links, devices and names that match `ignored` are left out, and links to one file are separate files. Permissions
    that a program took away are restored, so that no program can hide its files.
    """
    import tarfile

    total = 0
    with os.fdopen(CHANNEL, "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
        for count, path in enumerate(_regular_files(request["path"], request["ignored"])):
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as content:
                entry = tarfile.TarInfo(os.path.relpath(path, request["path"]))
                entry.size = os.fstat(content.fileno()).st_size
                total += entry.size
                if total > request["max_bytes"] or count >= request["max_entries"]:
                    sys.exit(f"more than {request['max_bytes']:,} bytes or {request['max_entries']:,} files")
                archive.addfile(entry, content)


def _regular_files(folder: str, ignored: list[str]) -> Iterator[str]:
    """Yield the paths of the readable regular files below a directory, without links and ignored names.

    Directories that are nested so deeply that their path is too long are left out.
    """
    import fnmatch

    folders = [] if os.path.islink(folder) else [folder]
    while folders:
        entries = _folder_entries(folders.pop())
        for entry in sorted(entries, key=lambda each: each.name):
            if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in ignored):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                if not os.access(entry.path, os.R_OK):
                    os.chmod(entry.path, 0o600)
                yield entry.path


def _folder_entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory, whose permissions are restored; none if it cannot be read."""
    try:
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def unpack(request: Mapping[str, Any]) -> None:
    """Unpack the tar archive from the channel at `/`; its names have no leading slash."""
    import tarfile

    del request
    try:
        with os.fdopen(CHANNEL, "rb") as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for entry in archive:
                archive.extract(entry, "/")
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")


def _fail(status: int, message: str) -> NoReturn:
    """Print a message to stderr and exit without cleanup."""
    os.write(2, f"{message}\n".encode())
    os._exit(status)


def _write_files(files: Mapping[str, bytes]) -> None:
    """Write files (name: content) below the working directory."""
    for name, content in files.items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)


def _new_main_module(request: Mapping[str, Any]) -> ModuleType:
    """Create the module `__main__` in which the program runs, set its paths, and unload the modules of this package."""
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "nemo_gym"]:
        del sys.modules[loaded]
    sys.path[:] = [os.getcwd(), *request.get("paths", []), *(path for path in sys.path if path)]
    sys.argv[:] = [SOURCE_NAME]
    sys.orig_argv[:] = ["python", SOURCE_NAME]
    module = sys.modules["__main__"] = type(sys)("__main__")
    return module


def _run_source(code: str, module: ModuleType) -> int:
    """Run a program in `module` and return its exit status; print the traceback of an uncaught exception."""
    try:
        exec(compile(code, SOURCE_NAME, "exec"), module.__dict__)
    except SystemExit as error:
        return _exit_status(error)
    except BaseException as error:
        error.__traceback__ = _trim_traceback(error.__traceback__)
        # The built-in hook cannot show source lines, because the source is not in a file.
        if sys.excepthook is sys.__excepthook__:
            _print_traceback(error, code, SOURCE_NAME)
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _exit_status(error: SystemExit) -> int:
    """Return the exit status of `sys.exit`; print an argument that is not a number, as the interpreter does."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _exit(status: int, module: ModuleType) -> NoReturn:
    """Exit like the interpreter, but without its slow teardown.

    Waits for threads, runs exit functions, deletes the program's variables and flushes open files. The full teardown
    takes ten times as long as a small program.
    """
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        module.__dict__.clear()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
    files = [value for value in gc.get_objects() if isinstance(value, io.IOBase)]
    for file in (*files, sys.stdout, sys.stderr):
        try:
            file.flush()
        except Exception:
            pass
    os._exit(status)


def _run_snippet(code: str, name: str, module: ModuleType) -> bool:
    """Run one snippet and, if it ends with an expression, print its value; return True if the snippet raised."""
    import ast

    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), module.__dict__)
        if isinstance(last, ast.Expr):
            exec(compile(ast.Interactive([last]), name, "single"), module.__dict__)
    except BaseException as error:
        error.__traceback__ = _trim_traceback(error.__traceback__)
        _print_traceback(error, code, name)
        return True
    return False


def _print_traceback(error: BaseException, code: str, name: str) -> None:
    """Print a traceback with source lines, which the line cache must hold because the source is not in a file."""
    import linecache
    import traceback

    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    traceback.print_exception(type(error), error, error.__traceback__)


def _trim_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Remove the frames of this module from the start of a traceback."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
