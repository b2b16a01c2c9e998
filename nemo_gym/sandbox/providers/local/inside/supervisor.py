"""Process 1 of a box: takes orders on a socket, runs each in a child, says how it ended.

Programs cannot reach it: they are other processes, its memory and descriptors are hidden from them, and the kernel
delivers no signal to process 1 that it does not ask for. When it ends, the kernel ends every process of the box.
"""

# ruff: noqa: SIM105
# Every cold start would pay for pathlib and contextlib.

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
MOST_DESCRIPTORS = 8
REAP_S = 5.0
"""How long the processes a program left may take to be gone before the box is given up."""


class Supervisor:
    """The orders of one box, one after the other. What it says is JSON: the host does not trust even process 1."""

    def __init__(self, control: _socket.socket) -> None:
        self.control = control

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Take orders for ever; returns only in the child that has to do one: its words and its files."""
        self._say(f'{{"event": "ready", "landlock": {confine.landlock_abi()}}}')
        while True:
            name, descriptors = self._order()
            if name == b"run":
                words = marshal.loads(_contents(descriptors.pop(0)))
                pid = os.fork()
                if pid == 0:
                    return words, descriptors
                self._watch(pid)
            for descriptor in descriptors:
                os.close(descriptor)

    def _watch(self, pid: int) -> None:
        """Follow one child to its end, or to the end it is given."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = os.pidfd_open(pid)
        self._say('{"event": "started"}')
        waiting = select.poll()
        waiting.register(process, select.POLLIN)
        waiting.register(self.control, select.POLLIN)
        while process not in (ready for ready, _ in waiting.poll()):
            name, _ = self._order()
            if name == b"kill":
                _kill_all(_signal.SIGKILL)
            elif name == b"interrupt":
                os.kill(pid, _signal.SIGINT)
            elif name == b"pause":
                _kill_all(_signal.SIGSTOP)
            elif name == b"resume":
                _kill_all(_signal.SIGCONT)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        if not _reap_all():
            os._exit(1)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        peak = after.ru_maxrss
        self._say(f'{{"event": "ended", "status": {status}, "cpu_s": {cpu_s:.6f}, "peak_kib": {peak}}}')

    def _order(self) -> tuple[bytes, list[int]]:
        """The next order; the box ends when nobody is there to give one."""
        room = _socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
        name, extras, _, _ = self.control.recvmsg(MESSAGE_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
        if not name:
            os._exit(0)
        files = b"".join(data for _, kind, data in extras if kind == _socket.SCM_RIGHTS)
        return name, list(struct.unpack(f"{len(files) // 4}i", files))

    def _say(self, message: str) -> None:
        try:
            self.control.sendall(message.encode())
        except OSError:
            os._exit(0)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Set the box up and take orders; returns in the children, confined and ready to do what the order says."""
    if os.getpid() != 1:
        raise SystemExit("this is process 1 of a box and nothing else")
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
    # What is loaded by now is never garbage: children neither search nor copy it.
    gc.collect()
    gc.freeze()
    words, descriptors = Supervisor(_socket.socket(fileno=settings["control"])).serve()
    _become_program(words, descriptors, settings["writable"])
    return words


def _become_program(words: dict[str, Any], descriptors: list[int], writable: list[str]) -> None:
    """In the child: keep only the files of the order, then give up everything else."""
    os.setsid()
    # First out of the way of each other, then to their places.
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in descriptors]
    for wanted, descriptor in enumerate(moved):
        os.dup2(descriptor, wanted, inheritable=wanted < 3)
    os.closerange(max(3, len(moved)), 1 << 20)
    os.environ.clear()
    os.environ.update(words["env"])
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    confine.hide_memory(False)
    confine.prefer_as_victim()
    confine.restrict_paths(writable)
    confine.restrict_resources(words["limits"])


def _contents(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _kill_all(number: int) -> None:
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        pass  # there is nobody else


def _reap_all() -> bool:
    """End whatever the program left behind; False if something does not go."""
    until = time.monotonic() + REAP_S
    while time.monotonic() < until:
        _kill_all(_signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False
