"""Process 1 of a box: receives orders on a socket, runs each in a child and reports its end.

Programs cannot reach it: they are other processes, its memory and descriptors are hidden from them, and the kernel
delivers to process 1 only signals it handles. When it ends, the kernel ends every process of the box.

Without isolation the same code runs as an ordinary process; then it signals only the process group of its program.
"""

# ruff: noqa: SIM105
# pathlib and contextlib would slow down every cold start.

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` is this with names as enums
import _socket
import fcntl
import gc
import marshal
import os
import resource
import select
import struct
import time

from nemo_gym.sandbox.providers.local.inside import confine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE_BYTES = 1 << 16
MAX_DESCRIPTORS = 8
REAP_S = 5.0
"""Longest wait for the processes a program left behind; then the box ends."""


class BoxSupervisor:
    """Runs the orders of one box one after the other. Its messages are JSON: the host does not trust even process 1."""

    def __init__(self, control: _socket.socket) -> None:
        self.control = control

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Run orders until the socket closes; returns only in a child, with the order and files of that child."""
        self._report(f'{{"event": "ready", "landlock": {confine.landlock_abi()}}}')
        while True:
            name, descriptors = self._receive()
            if name == b"run":
                order = marshal.loads(_read_all(descriptors.pop(0)))
                pid = os.fork()
                if pid == 0:
                    return order, descriptors
                self._watch(pid)
            for descriptor in descriptors:
                os.close(descriptor)

    def _watch(self, pid: int) -> None:
        """Wait for the end of one child and forward signals meanwhile."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = os.pidfd_open(pid)
        self._report('{"event": "started"}')
        waiting = select.poll()
        waiting.register(process, select.POLLIN)
        waiting.register(self.control, select.POLLIN)
        while process not in (ready for ready, _ in waiting.poll()):
            name, _ = self._receive()
            if name == b"kill":
                _signal_program(pid, _signal.SIGKILL)
            elif name == b"interrupt":
                os.kill(pid, _signal.SIGINT)
            elif name == b"pause":
                _signal_program(pid, _signal.SIGSTOP)
            elif name == b"resume":
                _signal_program(pid, _signal.SIGCONT)
        os.close(process)
        _signal_program(pid, _signal.SIGKILL)  # before the id is free for another process
        _, status = os.waitpid(pid, 0)
        if not _reap_rest():
            os._exit(1)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        peak = after.ru_maxrss
        self._report(f'{{"event": "ended", "status": {status}, "cpu_s": {cpu_s:.6f}, "peak_kib": {peak}}}')

    def _receive(self) -> tuple[bytes, list[int]]:
        """Receive the next order; end the box if the host has closed the socket."""
        room = _socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        name, extras, _, _ = self.control.recvmsg(MESSAGE_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
        if not name:
            os._exit(0)
        files = b"".join(data for _, kind, data in extras if kind == _socket.SCM_RIGHTS)
        return name, list(struct.unpack(f"{len(files) // 4}i", files))

    def _report(self, message: str) -> None:
        try:
            self.control.sendall(message.encode())
        except OSError:
            os._exit(0)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Set up the box and run orders; returns the order in each child, after confining the child."""
    is_isolated = settings["writable"] is not None
    if is_isolated != (os.getpid() == 1):
        raise SystemExit("the supervisor of a box must be its process 1")
    own_pid = os.getpid()
    for entrance in settings["entrances"]:
        os.write(entrance, b"0")
        os.close(entrance)
    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
    confine.die_with_parent()
    confine.hide_memory(True)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    for name in settings["preload"]:
        __import__(name)
    # Modules loaded so far are never garbage: children neither search nor copy them.
    gc.collect()
    gc.freeze()
    order, descriptors = BoxSupervisor(_socket.socket(fileno=settings["control"])).serve()
    if not is_isolated:
        confine.die_with_parent()
        if os.getppid() != own_pid:
            os._exit(1)
    _become_program(order, descriptors, settings["writable"])
    return order


def _become_program(order: dict[str, Any], descriptors: list[int], writable: list[str] | None) -> None:
    """Keep only the files of the order, then apply all restrictions; runs in the child."""
    os.setsid()
    # First to high numbers, so that none overwrites another, then to their final ones.
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in descriptors]
    for number, descriptor in enumerate(moved):
        os.dup2(descriptor, number, inheritable=number < 3)
    os.closerange(max(3, len(moved)), 1 << 20)
    os.environ.clear()
    os.environ.update(order["env"])
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    confine.hide_memory(False)
    confine.prefer_as_victim()
    if writable is not None:
        confine.restrict_paths(writable)
    confine.restrict_resources(order["limits"])


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _signal_program(pid: int, number: int) -> None:
    """Signal all processes of the program: in a box all but process 1, without isolation its process group."""
    for send, target in [(os.kill, -1)] if os.getpid() == 1 else [(os.killpg, pid), (os.kill, pid)]:
        try:
            send(target, number)
        except ProcessLookupError:
            pass  # no such process is left, or the child does not lead its group yet


def _reap_rest() -> bool:
    """Kill and reap the processes a program left in its box; False if one does not end."""
    if os.getpid() != 1:
        return True
    deadline = time.monotonic() + REAP_S
    while time.monotonic() < deadline:
        _signal_program(-1, _signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False
