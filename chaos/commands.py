"""Start `gym` commands as forks of one host process (`command_host`) and follow all of their processes."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nemo_gym.processes import json_descriptor, process_tree, start_ticks

ROOT = Path(__file__).resolve().parents[1]
MAX_MESSAGE_BYTES = 1000
MAX_START_SECONDS = 60.0
"""Longest wait for the imports of the host and the forks."""
MAX_END_SECONDS = 20.0


class CpuMeter(threading.local):
    """The CPU time of the commands that the running thread has closed."""

    seconds = 0.0


thread_cpu = CpuMeter()


class Command:
    """A running or ended `gym` command, with the methods of `subprocess.Popen` that scenarios need."""

    def __init__(self, link: socket.socket) -> None:
        """`link` is the socket to the keeper of the command."""
        self._link = link
        self.returncode: int | None = None
        link.settimeout(MAX_START_SECONDS)
        self.keeper, self.pid = self._receive()
        self._lock = threading.Lock()

    def _receive(self) -> Any:
        message = self._link.recv(MAX_MESSAGE_BYTES)
        if not message:
            raise RuntimeError("the process that follows a command has ended")
        return json.loads(message)

    def poll(self) -> int | None:
        """Return the exit status (negative: the signal that ended the command); None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float) -> int:
        """Wait until the command has ended and return its exit status.

        Raises:
            subprocess.TimeoutExpired: the command still runs after `timeout` seconds.
        """
        with self._lock:
            if self.returncode is None:
                self._link.settimeout(timeout)
                try:
                    self.returncode = int(self._receive())
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(f"the command {self.pid}", timeout) from None
            return self.returncode

    def processes(self) -> list[int]:
        """Return the ids of the live processes that the command is or has started."""
        # Twice: a process may get another parent while the tree is read.
        ids = {pid for _ in range(2) for pid in process_tree(self.keeper) if pid != self.keeper}
        return [pid for pid in ids if start_ticks(pid)]

    def close(self) -> None:
        """Kill every process of the command and add the CPU time of all of them to `thread_cpu`."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with self._link:
            self._link.shutdown(socket.SHUT_WR)
            self._link.settimeout(MAX_END_SECONDS)
            messages = list(iter(partial(self._link.recv, MAX_MESSAGE_BYTES), b""))
            thread_cpu.seconds += float(messages[-1])


class CommandHost:
    """The process that forks commands."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "chaos.command_host", str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    def start(self, words: Sequence[str], folder: Path, env: Mapping[str, str], output: int, log: int) -> Command:
        """Start `gym` with `words` in a folder; `output` and `log` are the descriptors of its output and errors."""
        request = json_descriptor({"words": list(words), "folder": str(folder), "environment": dict(env)})
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._control, [b"fork"], [request, output, log, theirs.fileno()])
            finally:
                os.close(request)
        return Command(ours)

    def close(self) -> None:
        """End the host; commands that still run end too, because their sockets close with this process."""
        self._control.close()
        self._process.wait(MAX_START_SECONDS)


_hosts: list[CommandHost] = []
_lock = threading.Lock()


def command_host() -> CommandHost:
    """Return the host of this process; the first call starts it."""
    with _lock:
        if not _hosts:
            _hosts.append(CommandHost())
        return _hosts[0]
