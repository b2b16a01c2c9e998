"""The process that forks workers, and what a worker does: `python -m nemo_gym.workers.host`.

It imports the work's module once, so a new worker costs a fork and not an import. It has one thread, so forking is
safe whatever the parent runs. It ends when its parent ends, and takes its workers along.

On the control socket (standard input) travel frames of a letter, a worker's number and a status:

    F  fork a worker; the socket it shall serve comes with the frame
    K  kill a worker
    X  (to the parent) a worker ended with this status
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
from typing import Any, NoReturn

FRAME = struct.Struct(">cQi")
HEADER = struct.Struct(">I")
READY = HEADER.pack(0)
"""What a worker says when it is ready for its first job."""

Work = Callable[[Any], Any]

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


def serve(control: socket.socket, work: Work, cpu_seconds: float, memory_bytes: int) -> None:
    """Fork and reap workers until the parent is gone, then kill what is left."""
    wake_read, wake_write = socket.socketpair()
    wake_read.setblocking(False)
    wake_write.setblocking(False)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    workers: dict[int, int] = {}
    try:
        while True:
            readable, _, _ = select.select([control, wake_read], [], [])
            if wake_read in readable:
                wake_read.recv(4096)
                _reap(control, workers)
            if control in readable:
                data, descriptors, _, _ = socket.recv_fds(control, FRAME.size, 1)
                if not data:
                    return
                letter, number, _ = FRAME.unpack(data)
                if letter == b"F":
                    workers[number] = _fork(
                        descriptors[0], [control, wake_read, wake_write], work, cpu_seconds, memory_bytes
                    )
                elif number in workers:
                    os.kill(workers[number], signal.SIGKILL)
    finally:
        for pid in workers.values():
            os.kill(pid, signal.SIGKILL)


def _reap(control: socket.socket, workers: dict[int, int]) -> None:
    numbers = {pid: number for number, pid in workers.items()}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        number = numbers[pid]
        del workers[number]
        control.sendall(FRAME.pack(b"X", number, os.waitstatus_to_exitcode(status)))


def _fork(descriptor: int, inherited: list[socket.socket], work: Work, cpu_seconds: float, memory_bytes: int) -> int:
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in inherited:
            one.close()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the control socket: only the host may hold it
        channel = socket.socket(fileno=descriptor)
        _lock_down(memory_bytes)
        _answer(channel, work, cpu_seconds)
    except BaseException:  # a fork must never return into the host's loop
        traceback.print_exc()
    os._exit(1)


def _lock_down(memory_bytes: int) -> None:
    """Give up what the work does not need. Not a sandbox: a second fence behind code that evaluates nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.environ.clear()
    for what, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 1 << 20),  # what it complains about
        (resource.RLIMIT_NOFILE, 32),
    ):
        _, most = resource.getrlimit(what)
        value = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(what, (value, value))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    sys.addaudithook(_fence)


_FORBIDDEN = (
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
_HARMLESS = frozenset({"os.listdir", "os.scandir", "os.walk", "os.getxattr"})  # what an import does
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _fence(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        if isinstance(arguments[2], int) and arguments[2] & _WRITING:
            raise PermissionError("a worker writes no files")
    elif event.startswith(_FORBIDDEN) and event not in _HARMLESS:
        raise PermissionError(f"a worker does no {event}")


def _answer(channel: socket.socket, work: Work, cpu_seconds: float) -> NoReturn:
    """One job after the other. The clock counts this process's own time and ends it without asking Python."""
    channel.sendall(READY)
    while True:
        job = _read(channel)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        reply, last = _done(work, job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.sendall(HEADER.pack(len(reply)) + reply)
        if last:
            os._exit(0)


def _done(work: Work, job: bytes) -> tuple[bytes, bool]:
    try:
        return json.dumps({"value": work(json.loads(job))}).encode(), False
    except MemoryError:
        return b'{"lost": "memory"}', True
    except Exception as problem:  # the boundary: the parent decides what a failed job means
        return json.dumps({"lost": "crash", "reason": f"{type(problem).__name__}: {problem}"[:500]}).encode(), True


def _read(channel: socket.socket) -> bytes:
    (size,) = HEADER.unpack(_exactly(channel, HEADER.size))
    return _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        piece = channel.recv(min(size - len(pieces), 1 << 16))
        if not piece:
            os._exit(0)  # the parent is gone
        pieces += piece
    return bytes(pieces)


def main() -> None:
    target, cpu_seconds, memory_bytes = sys.argv[1:4]
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, name = target.partition(":")
    loaded = importlib.import_module(module)
    work = getattr(loaded, name)
    if hasattr(loaded, "prepare"):
        loaded.prepare()
    gc.freeze()  # what is shared by all workers is neither searched nor copied by each
    gc.set_threshold(50_000, 20, 20)
    serve(socket.socket(fileno=os.dup(0)), work, float(cpu_seconds), int(memory_bytes))


if __name__ == "__main__":
    main()
