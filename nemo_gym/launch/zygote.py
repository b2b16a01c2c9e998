"""The zygote: a preloaded parent process without threads or event loop that forks servers on request.

It is forked by a command, or started as `python -m nemo_gym.launch.zygote CONTROL_FD` (both in `prefork`). Its control
socket keeps message boundaries. The first messages carry the boot message and the descriptors that children inherit;
the others are requests of the spawner. When the socket closes, the zygote ends every process that its children have
started, also those in other sessions, and exits. Its parent is a guard that does the same after the zygote has
ended for another reason; if both are killed together, a detached shell does it.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from nemo_gym.config.search_roots import _augment_sys_path
from nemo_gym.processes import (
    adopt_orphans,
    end_descendants,
    exit_fork,
    exit_with_parent,
    guard_descendants,
    signal_group,
)

MAX_MESSAGE_BYTES = 64 * 1024
MAX_DESCRIPTORS = 200
"""Descriptors in one message; the kernel allows 253."""
REQUEST_DESCRIPTORS = 5
"""Descriptors of a spawn request: the request as JSON, the output of the new process, the pipe on which it reports that
it is ready, its shared status, and the link listener of a cell that was added during the run."""

PRELOADED_MODULES = (
    "nemo_gym.launch.server_process",
    "nemo_gym.base_resources_server",
    "nemo_gym.base_responses_api_agent",
    "nemo_gym.base_responses_api_model",
    "nemo_gym.judge",
    "nemo_gym.serve.http_protocol",
    "nemo_gym.serve.access",
    "nemo_gym.serve.uvicorn_server",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.auto",
)
"""Modules that nearly every server uses: imported once and shared by all forked processes."""


@dataclass(frozen=True)
class ZygoteSpec:
    """The parameters for starting (and restarting) a zygote."""

    boot: Mapping[str, Any]
    """The boot message, a `ServerBoot` as JSON values."""
    descriptors: Sequence[int]
    """Open files that the zygote's children inherit."""
    env: Mapping[str, str]


class Zygote:
    """Forks server processes for the supervisor and reports when they exit."""

    def __init__(self, control: socket.socket, target: Callable[..., None], watch: int | None = None) -> None:
        """`watch` is a descriptor that children close."""
        self._control = control
        self._target = target
        self._watch = watch
        self._children: set[int] = set()
        self._is_guarded = True

    def run(self) -> None:
        """Serve requests until the supervisor closes the socket or the guard is killed, then end all descendants."""
        adopt_orphans()
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write)  # SIGCHLD and SIGHUP wake the selector
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, self._handle_loss_of_guard)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._handle_request)
            selector.register(wake_read, selectors.EVENT_READ, lambda: self._reap(wake_read))
            self._report({"event": "up"})
            while all(key.data() for key, _ in selector.select()):  # a callback returns False at the end of the run
                pass
        for pid in self._children:
            signal_group(pid, signal.SIGKILL)
        end_descendants()

    def _handle_loss_of_guard(self, *_: object) -> None:
        self._is_guarded = False

    def _report(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            return  # the supervisor has ended; `_handle_request` notices it

    def _handle_request(self) -> bool:
        """Read and handle one request; return False if the supervisor has closed the socket."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, REQUEST_DESCRIPTORS)
        except ConnectionError:
            return False
        if not message:
            return False
        request = json.loads(message)
        if request["op"] == "spawn":
            self._spawn(*descriptors)
        elif request["pid"] in self._children:
            signal_group(request["pid"], request["signal"])
        return True

    def _spawn(self, request_fd: int, output: int, *passed: int) -> None:
        """Fork a server process that receives the descriptors `passed`, and report its pid."""
        with os.fdopen(request_fd, "rb") as file:
            request = json.load(file)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._run_child(request, output, passed, parent)
        for fd in (output, *passed):
            os.close(fd)
        self._children.add(pid)
        self._report({"event": "spawned", "id": request["id"], "pid": pid})

    def _run_child(self, request: dict[str, Any], output: int, passed: Sequence[int], parent: int) -> NoReturn:
        """Run the server of a request in a forked process, with standard output and error on `output`, and exit."""
        status = 1
        try:
            os.setpgid(0, 0)
            exit_with_parent()
            if os.getppid() != parent:  # the parent exited before PR_SET_PDEATHSIG was set
                os._exit(status)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            self._control.close()
            if self._watch is not None:
                os.close(self._watch)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            self._target(request, *passed)
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:  # the boundary of a process: print every exception
            sys.excepthook(*sys.exc_info())
        finally:
            exit_fork(status)

    def _reap(self, wake_read: int) -> bool:
        """Report the exit of every child that has ended, and kill its process group; return False without a guard.

        Processes that the child started in other groups run until the run ends: the restarted server may rely on a
        daemon among them.
        """
        try:
            while os.read(wake_read, 4096):
                pass
        except BlockingIOError:
            pass
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self._children:
                    self._children.discard(pid)
                    signal_group(pid, signal.SIGKILL)  # the processes that the server started
                    self._report({"event": "exited", "pid": pid, "status": os.waitstatus_to_exitcode(status)})
        return self._is_guarded


def preload() -> None:
    """Import PRELOADED_MODULES and leave the garbage collector off: it would take 8 % of the time and find nothing."""
    gc.disable()
    for module in PRELOADED_MODULES:
        importlib.import_module(module)


def receive_boot(control: socket.socket) -> tuple[dict[str, Any], dict[int, int]] | None:
    """Return the boot message and a map from the command's descriptors to ours; None if the command ended before.

    The environment in the message replaces that of this process.
    """
    numbers: dict[int, int] = {}
    is_last = False
    while not is_last:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:
            return None
        batch = json.loads(message)
        numbers |= zip(batch["numbers"], descriptors, strict=True)
        is_last = batch["last"]
    with os.fdopen(next(iter(numbers.values())), "rb") as file:  # `ZygoteHandle.boot` sends the boot message first
        content = json.load(file)
    os.environ.clear()
    os.environ.update(content["env"])
    _augment_sys_path()  # --search-dir is in the environment of the command, not in that of its earlier fork
    return content["boot"], numbers


def main(control: socket.socket) -> None:
    """Import PRELOADED_MODULES, receive the boot message, freeze the imported objects, then fork on request."""
    watch = guard_descendants(control)
    preload()
    message = receive_boot(control)
    if message is None:
        return
    from nemo_gym.launch.server_process import ServerBoot

    boot, numbers = message
    server_boot = ServerBoot.model_validate(boot).with_descriptors(numbers)
    gc.collect()
    gc.freeze()  # shared pages stay shared: the collector of a child never writes to them
    gc.enable()
    Zygote(control, server_boot.run, watch).run()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
