"""The process that forks workers, and the connection to one worker (`nemo_gym.workers.host` is the other side)."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

START_SECONDS = 120.0
"""Longest wait for a worker to be ready."""
_PYTHON_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")
"""Environment variables that an interpreter may need to start. Restricted workers clear their environment."""


class Worker:
    """The connection of a slot to its worker process."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.calls = 0
        self._pid = 0
        self._ended = False
        """Its process has ended or was killed; another process may have its id."""
        self._received = b""

    def wait_until_ready(self) -> bool:
        """Wait until the worker is ready; return False if it or its host exits, or after START_SECONDS."""
        try:
            self.channel.settimeout(START_SECONDS)
            self._pid = self._receive().get("pid", 0)
        except TimeoutError:
            return False
        return self._pid != 0

    def call(self, payload: bytes, seconds: float) -> dict[str, Any]:
        """Send a payload and return the reply; `{"exit": status}` if the worker exits without a reply."""
        self.calls += 1
        try:
            self.channel.settimeout(seconds)
            with suppress(BrokenPipeError, ConnectionResetError):  # the next read returns the worker's exit status
                self.channel.sendall(payload)
            return self._receive()
        except TimeoutError:
            self.kill()
            return {"failure": "time", "reason": f"more than {seconds:g} s"}

    def kill(self) -> None:
        """Kill the worker process; a call that waits for it returns its exit status."""
        with suppress(ProcessLookupError):  # it has just exited
            if self._pid and not self._ended:
                os.kill(self._pid, signal.SIGKILL)
        self._ended = True

    def _receive(self) -> dict[str, Any]:
        """Read one message; return `{"exit": None}` if the host has exited, or the message is incomplete."""
        while not self._received.endswith(b"\n"):
            try:
                chunk = self.channel.recv(1 << 16)
            except ConnectionError:
                chunk = b""
            if not chunk:
                return {"exit": None}
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = dict(json.loads(line))
            self._ended = self._ended or "exit" in message
            return message
        except ValueError:  # the worker was killed while it sent its reply, so the host's message follows on this line
            return {"exit": None}


class WorkerHost:
    """The process that forks workers.

    Without `environment` the workers may use no files, network or processes, because they read text of a model. With
    it they are trusted, and get these environment variables.
    """

    def __init__(
        self, function: str, *, cpu_seconds: float, memory_bytes: int, environment: dict[str, str] | None = None
    ) -> None:
        self.control, host_end = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
        self._problem = ""
        self._lock = threading.Lock()
        rights = "restricted" if environment is None else "trusted"
        arguments = [function, str(cpu_seconds), str(memory_bytes), rights]
        inherited = {name: os.environ[name] for name in _PYTHON_VARIABLES if name in os.environ}
        with host_end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "nemo_gym.workers.host", *arguments],  # -P: import nothing from the cwd
                stdin=host_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                cwd="/",
                env={
                    **(inherited if environment is None else environment),
                    "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
                    "PYTHONHASHSEED": "0",  # the same iteration order, hence the same verdict, every time
                    "LC_ALL": "C.UTF-8",
                },
            )

    def fork_worker(self) -> socket.socket:
        """Request a worker and return the socket to it; reading from it gives end of file if the host has exited."""
        slot_end, worker_end = socket.socketpair()
        with worker_end, suppress(OSError):
            socket.send_fds(self.control, [b"F"], [worker_end.fileno()])
        return slot_end

    def stop(self, grace: float = 0.2) -> str:
        """Stop the host and its workers; return the last line that the host wrote to stderr, else its exit status.

        The host has `grace` seconds to exit, then it is killed.
        """
        with self._lock:  # several slots may call this at the same time
            self.control.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
            self._process.kill()
            status = self._process.wait()
            if not self._errors.closed:
                with self._errors:
                    self._errors.seek(0)
                    lines = self._errors.read(1 << 20).decode(errors="replace").strip().splitlines()
                self._problem = lines[-1] if lines else f"status {status}"
            return self._problem
