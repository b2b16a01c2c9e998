"""The init process of a box (process id 1): receives commands on a socket, runs programs in children, reports results.

Programs cannot tamper with it: its memory and descriptors are hidden from them, and the kernel delivers to process 1
only signals for which it has a handler. When it exits, the kernel kills every process of the box. It exits when the
process that started the box (the owner) has ended, at any moment and for any reason.

Without isolation the same code runs as an ordinary process, which adopts the orphans of its program and kills them all.
"""

# ruff: noqa: PTH123, PTH208, SIM105
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
    from typing import Any, NoReturn

SIGNALS = {b"kill": _signal.SIGKILL, b"pause": _signal.SIGSTOP, b"resume": _signal.SIGCONT}
MESSAGE_BYTES = 1 << 16
MAX_DESCRIPTORS = 8
REAP_S = 5.0
"""Maximum wait for processes that a program left behind; then the init process exits."""


class InitProcess:
    """Runs the requests of one box one after the other. Its messages are JSON, because the host does not trust them."""

    def __init__(self, control: _socket.socket, owner: int) -> None:
        """`owner` is the process descriptor of the process that started the box."""
        self.control = control
        self.owner = owner
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.poll.register(owner, select.POLLIN)

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Run requests until the socket closes. Only a forked child returns, with its request and descriptors."""
        self._report(f'{{"event": "ready", "landlock": {confine.landlock_abi()}}}')
        while True:
            self._wait_for_events()
            command, descriptors = self._receive()
            if command == b"run":
                request = marshal.loads(_read_all(descriptors.pop(0)))
                pid = os.fork()
                if pid == 0:
                    return request, descriptors
                self._watch(pid)
            for descriptor in descriptors:
                os.close(descriptor)

    def _watch(self, pid: int) -> None:
        """Wait until one child exits, meanwhile signal it as the host commands, then report its exit."""
        usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
        pidfd = os.pidfd_open(pid)
        self._report('{"event": "started"}')
        self.poll.register(pidfd, select.POLLIN)
        while pidfd not in self._wait_for_events():
            command, _ = self._receive()
            if command == b"interrupt":
                os.kill(pid, _signal.SIGINT)
            elif command in SIGNALS:
                _signal_others(SIGNALS[command], pid)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        _signal_others(_signal.SIGKILL, pid)  # before waitpid, after which the process id can be reused
        _, status = os.waitpid(pid, 0)
        if not _reap_remaining():
            _exit(1)
        usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime
        peak = usage_after.ru_maxrss
        self._report(f'{{"event": "ended", "status": {status}, "cpu_s": {cpu_s:.6f}, "peak_kib": {peak}}}')

    def _wait_for_events(self) -> list[int]:
        """Wait for and return the descriptors that are readable; exit if the owner has ended."""
        ready = [descriptor for descriptor, _ in self.poll.poll()]
        if self.owner in ready:
            _exit(0)
        return ready

    def _receive(self) -> tuple[bytes, list[int]]:
        """Receive the next command and its descriptors; exit if the host has closed the socket."""
        space = _socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        command, extras, _, _ = self.control.recvmsg(MESSAGE_BYTES, space, _socket.MSG_CMSG_CLOEXEC)
        if not command:
            _exit(0)
        numbers = b"".join(data for _, kind, data in extras if kind == _socket.SCM_RIGHTS)
        return command, list(struct.unpack(f"{len(numbers) // 4}i", numbers))

    def _report(self, message: str) -> None:
        try:
            self.control.sendall(message.encode())
        except OSError:  # the host has closed the socket
            _exit(0)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Set up the init process and serve requests.

    The init process itself never returns; each forked child returns the request whose action it must perform.
    """
    is_isolated = settings["writable"] is not None
    if is_isolated != (os.getpid() == 1):
        raise SystemExit("the init process of a box must have process id 1")
    own_pid = os.getpid()
    for descriptor in settings["unused"]:
        os.close(descriptor)
    for join_file in settings["join_files"]:
        os.write(join_file, b"0")  # 0 is the process that writes
        os.close(join_file)
    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
    confine.exit_with_parent()
    if not is_isolated:
        confine.adopt_orphans()
    confine.hide_memory(True)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    for name in settings["preload"]:
        __import__(name)
    # Exclude the modules loaded so far from garbage collection, so that children do not copy their memory pages.
    gc.collect()
    gc.freeze()
    request, descriptors = InitProcess(_socket.socket(fileno=settings["control"]), settings["owner"]).serve()
    if not is_isolated:
        confine.exit_with_parent()
        if os.getppid() != own_pid:  # the init process exited before that call
            os._exit(1)
    _confine_child(request, descriptors, settings["writable"], has_loopback=settings["has_loopback"])
    return request


def _confine_child(
    request: dict[str, Any], descriptors: list[int], writable: list[str] | None, *, has_loopback: bool
) -> None:
    """Keep only the descriptors of the request, then apply all restrictions; runs in the child."""
    os.setsid()
    # Move descriptors to high numbers first, so that none overwrites another, then to their final numbers.
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in descriptors]
    for number, descriptor in enumerate(moved):
        os.dup2(descriptor, number, inheritable=number < 3)
    os.closerange(max(3, len(moved)), 1 << 20)
    os.environ.clear()
    os.environ.update(request["env"])
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    confine.hide_memory(False)
    confine.raise_oom_score()
    if writable is not None:
        confine.restrict_paths(writable, has_loopback=has_loopback)
        confine.forbid_landlock()
    confine.restrict_resources(request["limits"])


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _signal_others(number: int, *pids: int) -> None:
    """Signal all other processes of the box (-1), or without isolation `pids` and all descendants of this process."""
    for pid in [-1] if os.getpid() == 1 else [*pids, *_descendants(os.getpid())]:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # the process has exited


def _descendants(pid: int) -> list[int]:
    """Return the process ids of the descendants of a process."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                children += map(int, file.read().split())
    except OSError:
        pass  # the process has exited
    return [*children, *(each for child in children for each in _descendants(child))]


def _reap_remaining() -> bool:
    """Kill and reap the processes that a program left behind; return False if one does not exit in time."""
    deadline = time.monotonic() + REAP_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # no process is left
            return True
        _signal_others(_signal.SIGKILL)
        time.sleep(0.001)
    return False


def _exit(status: int) -> NoReturn:
    """Exit; the kernel kills the other processes of the box. Without isolation, kill them first."""
    if os.getpid() != 1:
        _reap_remaining()
    os._exit(status)
