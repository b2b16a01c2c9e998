"""Fork worker processes that call one function: `python -m nemo_gym.workers.host MODULE:FUNCTION CPU BYTES RIGHTS`.

RIGHTS is `restricted` for code that reads text of a model (no files, network or processes), else `trusted`.

The host imports the function's module once, so that starting a worker takes a fork and no import. The host has one
thread, so forking is safe even if its parent has several. When its parent exits or closes the control socket (standard
input), the host kills its workers and exits.

To start a worker, the parent sends one byte and a socket. Messages on that socket are lines of JSON: from the worker
`{"pid": …}` when it is ready; for every call a payload from the parent and `{"value": …}` or
`{"failure": …, "reason": …}` from the worker; and from the host `{"exit": status}` when the worker has ended.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from nemo_gym.processes import exit_with_parent

Function = Callable[[Any], Any]
"""The function that workers call, with JSON as argument and result."""

_PR_SET_NO_NEW_PRIVS = 38


def encode_line(message: Any) -> bytes:
    """Return a message as one line of JSON."""
    return json.dumps(message).encode() + b"\n"


def serve(
    control: socket.socket, function: Function, cpu_seconds: float, memory_bytes: int, *, restricted: bool
) -> None:
    """Fork workers on request and reap them until the parent closes `control`, then kill the remaining workers."""
    # When a worker ends, Python writes to the wakeup socket, so that `select` returns; the handler itself does nothing.
    wake_read, wake_write = socket.socketpair()
    wake_read.setblocking(False)
    wake_write.setblocking(False)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    workers: dict[int, socket.socket] = {}
    try:
        while True:
            readable, _, _ = select.select([control, wake_read], [], [])
            if wake_read in readable:
                wake_read.recv(4096)
                _reap(workers)
            if control in readable:
                message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
                if not message:
                    return
                channel = socket.socket(fileno=descriptors[0])
                pid = os.fork()
                if pid == 0:
                    for inherited in (control, wake_read, wake_write, *workers.values()):
                        inherited.close()
                    _run_worker(channel, function, cpu_seconds, memory_bytes, restricted)
                workers[pid] = channel
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)


def _reap(workers: dict[int, socket.socket]) -> None:
    """For every worker that has ended, send its exit status on its socket and remove it from `workers`."""
    while workers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with workers.pop(pid) as channel, suppress(OSError):  # the parent may have closed its end
            channel.sendall(encode_line({"exit": os.waitstatus_to_exitcode(status)}))


def _run_worker(
    channel: socket.socket, function: Function, cpu_seconds: float, memory_bytes: int, restricted: bool
) -> NoReturn:
    """Run a worker in a forked process: drop privileges, answer calls, exit without returning."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # closes the control socket, which only the host may have open
        if restricted:
            _drop_privileges(memory_bytes)
        else:
            _limit_memory(memory_bytes)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a package may print at every step; the file has no limit
        _answer_calls(channel, function, cpu_seconds)
        os._exit(0)
    except BaseException:  # a forked process must never return into the host's loop
        traceback.print_exc()
    os._exit(1)


def _limit_memory(memory_bytes: int) -> None:
    """Limit the memory of a worker, and end it with its host."""
    exit_with_parent()
    for kind, limit in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C


def _drop_privileges(memory_bytes: int) -> None:
    """Limit memory and drop privileges that the function does not need (defence in depth; not a sandbox)."""
    _limit_memory(memory_bytes)
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.environ.clear()
    for kind, limit in (
        (resource.RLIMIT_FSIZE, 1 << 20),  # not 0, because standard error is a file
        (resource.RLIMIT_NOFILE, 32),
    ):
        _, hard = resource.getrlimit(kind)
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))
    sys.addaudithook(_deny_event)


_FORBIDDEN_EVENTS = (
    *("os.", "shutil.", "subprocess.", "pty.", "signal.", "ctypes."),
    *("socket.", "urllib.", "ftplib.", "webbrowser."),
)
"""Prefixes of audit events: files, processes, native code; and the network."""
_IMPORT_EVENTS = frozenset({"os.listdir", "os.scandir", "os.walk", "os.getxattr"})
"""Events of imports, which are allowed."""
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _deny_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise PermissionError if an event of Python's audit hook writes files, uses the network or starts processes."""
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, int) and flags & _WRITE_FLAGS:
            raise PermissionError("a worker may not write files")
    elif event.startswith(_FORBIDDEN_EVENTS) and event not in _IMPORT_EVENTS:
        raise PermissionError(f"a worker may not call {event}")


def _answer_calls(channel: socket.socket, function: Function, cpu_seconds: float) -> None:
    """Answer calls until one fails or the parent closes the socket.

    SIGPROF kills the process after `cpu_seconds` of CPU time in one call.
    """
    channel.sendall(encode_line({"pid": os.getpid()}))
    for payload in channel.makefile("rb"):
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        reply, has_failed = _call(function, payload)
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.sendall(reply)
        if has_failed:
            return


def _call(function: Function, payload: bytes) -> tuple[bytes, bool]:
    """Call the function; return the reply and whether the call failed."""
    try:
        return encode_line({"value": function(json.loads(payload))}), False
    except MemoryError:
        return b'{"failure": "memory", "reason": "out of memory"}\n', True
    except Exception as error:  # the boundary of the worker: the caller of the pool handles failures
        reason = f"{type(error).__name__}: {error}"[:500]
        return encode_line({"failure": "crash", "reason": reason}), True


def main() -> None:
    """Import the function, call `prepare()` of its module if there is one, then fork workers on request."""
    target, cpu_seconds, memory_bytes, rights = sys.argv[1:5]
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module_name, _, function_name = target.partition(":")
    module = importlib.import_module(module_name)
    function = getattr(module, function_name)
    if hasattr(module, "prepare"):
        module.prepare()
    gc.freeze()  # the garbage collector of a worker neither scans nor copies the shared objects
    gc.set_threshold(50_000, 20, 20)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the module may have temporary files to remove
    control = socket.socket(fileno=os.dup(0))
    serve(control, function, float(cpu_seconds), int(memory_bytes), restricted=rights != "trusted")


if __name__ == "__main__":
    main()
