"""Fork worker processes that call one function: `python -m nemo_gym.workers.host MODULE:FUNCTION CPU_SECONDS BYTES`.

The host imports the function's module once, so that a new worker costs a fork and not an import. It has one thread, so
forking is safe whatever its parent runs. It ends when its parent closes the control socket (standard input) or dies,
and kills its workers.

The parent sends one byte with a socket for every worker it wants. On that socket travel frames, a length and JSON:
`{"pid": …}` when the worker is ready, a payload for every call, `{"value": …}` or `{"failure": …, "reason": …}` in
reply, and from the host `{"exit": status}` when the worker has ended.
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
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from nemo_gym.processes import die_with_parent

HEADER = struct.Struct(">I")

Work = Callable[[Any], Any]

_PR_SET_NO_NEW_PRIVS = 38


def frame(message: bytes) -> bytes:
    """Return a message with its length in front."""
    return HEADER.pack(len(message)) + message


def serve(control: socket.socket, work: Work, cpu_seconds: float, memory_bytes: int) -> None:
    """Fork and reap workers until the parent is gone, then kill the remaining ones."""
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
                    _run_worker(channel, work, cpu_seconds, memory_bytes)
                workers[pid] = channel
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)


def _reap(workers: dict[int, socket.socket]) -> None:
    while workers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with workers.pop(pid) as channel, suppress(OSError):  # the parent has closed its end
            channel.sendall(frame(json.dumps({"exit": os.waitstatus_to_exitcode(status)}).encode()))


def _run_worker(channel: socket.socket, work: Work, cpu_seconds: float, memory_bytes: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the control socket: only the host may hold it
        _restrict(memory_bytes)
        _answer_calls(channel, work, cpu_seconds)
    except BaseException:  # a fork must never return into the host's loop
        traceback.print_exc()
    os._exit(1)


def _restrict(memory_bytes: int) -> None:
    """Give up what the work does not need. Not a sandbox: a second fence behind code that evaluates nothing."""
    die_with_parent()
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.environ.clear()
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 1 << 20),  # standard error is a file
        (resource.RLIMIT_NOFILE, 32),
    ):
        _, hard = resource.getrlimit(kind)
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    sys.addaudithook(_forbid)


_FORBIDDEN_EVENTS = (
    "os.",
    "socket.",
    "subprocess.",
    "shutil.",
    "ctypes.",
    "pty.",
    "webbrowser.",
    "urllib.",
    "ftplib.",
    "signal.",
)
_IMPORT_EVENTS = frozenset({"os.listdir", "os.scandir", "os.walk", "os.getxattr"})
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _forbid(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        if isinstance(arguments[2], int) and arguments[2] & _WRITE_FLAGS:
            raise PermissionError("a worker may not write files")
    elif event.startswith(_FORBIDDEN_EVENTS) and event not in _IMPORT_EVENTS:
        raise PermissionError(f"a worker may not call {event}")


def _answer_calls(channel: socket.socket, work: Work, cpu_seconds: float) -> NoReturn:
    """Answer calls until one fails. The timer counts CPU time and kills the process without running Python."""
    channel.sendall(frame(json.dumps({"pid": os.getpid()}).encode()))
    while True:
        (size,) = HEADER.unpack(_receive(channel, HEADER.size))
        payload = _receive(channel, size)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        reply, has_failed = _call(work, payload)
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.sendall(frame(reply))
        if has_failed:
            os._exit(0)


def _call(work: Work, payload: bytes) -> tuple[bytes, bool]:
    try:
        return json.dumps({"value": work(json.loads(payload))}).encode(), False
    except MemoryError:
        return b'{"failure": "memory", "reason": "out of memory"}', True
    except Exception as problem:  # the boundary: the caller decides what a failed call means
        reason = f"{type(problem).__name__}: {problem}"[:500]
        return json.dumps({"failure": "crash", "reason": reason}).encode(), True


def _receive(channel: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        chunk = channel.recv(min(size - len(content), 1 << 16))
        if not chunk:
            os._exit(0)  # the parent is gone, or has replaced this worker
        content += chunk
    return bytes(content)


def main() -> None:
    target, cpu_seconds, memory_bytes = sys.argv[1:4]
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module_name, _, function = target.partition(":")
    module = importlib.import_module(module_name)
    work = getattr(module, function)
    if hasattr(module, "prepare"):
        module.prepare()
    gc.freeze()  # workers neither scan nor copy what they share
    gc.set_threshold(50_000, 20, 20)
    serve(socket.socket(fileno=os.dup(0)), work, float(cpu_seconds), int(memory_bytes))


if __name__ == "__main__":
    main()
