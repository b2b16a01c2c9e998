"""The preloaded parent: it has imported what every server needs, holds no thread and no loop, and forks on demand.

Started as `python -m nemo_gym.launch.zygote CONTROL_FD BOOT_FD`, or forked by a command (`ahead`). The supervisor
talks to it over a socket that keeps message boundaries; what a child may inherit (listening sockets) is already open
here. When that socket closes — the supervisor ended, however it ended — every child's process group is killed and the
zygote leaves.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from nemo_gym.forks import leave
from nemo_gym.launch.groups import signal_group
from nemo_gym.serve.run import end_with_parent

MOST_BYTES = 64 * 1024

PRELOADED = (
    "nemo_gym.launch.hosting",
    "nemo_gym.base_resources_server",
    "nemo_gym.base_responses_api_agent",
    "nemo_gym.base_responses_api_model",
    "nemo_gym.judge",
    "nemo_gym.serve.announced",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.auto",
)
"""What nearly every server loads: once here, and shared by all that are forked."""

Target = Callable[[dict[str, Any], int], None]


class Zygote:
    """Forks children for the supervisor and tells it when they end."""

    def __init__(self, control: socket.socket, target: Target) -> None:
        self._control = control
        self._target = target
        self._children: set[int] = set()

    def run(self) -> None:
        """Serve requests until the supervisor is gone."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._serve)
            selector.register(wake_read, selectors.EVENT_READ, lambda: self._reap(wake_read))
            self._tell({"event": "up"})
            alive = True
            while alive:
                alive = False not in [key.data() for key, _ in selector.select()]
        self._kill_all()

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            return  # the supervisor is gone; the next read says so

    def _serve(self) -> bool:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, MOST_BYTES, 8)
        except ConnectionError:
            return False
        if not message:
            return False
        request = json.loads(message)
        if request["op"] == "spawn":
            self._spawn(request, fds)
        elif request["pid"] in self._children:
            signal_group(request["pid"], request["signal"])
        return True

    def _spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        output, ready = fds
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(request, output, ready, parent)
        os.close(output)
        os.close(ready)
        self._children.add(pid)
        self._tell({"event": "spawned", "id": request["id"], "pid": pid})

    def _become_child(self, request: dict[str, Any], output: int, ready: int, parent: int) -> None:
        status = 1
        try:
            os.setpgid(0, 0)
            end_with_parent(signal.SIGKILL)
            if os.getppid() != parent:  # it died before we could ask the kernel to tell us
                os._exit(status)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            self._control.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            self._target(request, ready)
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:  # the boundary of a process: whatever escaped is its last words
            sys.excepthook(*sys.exc_info())
        finally:
            leave(status)

    def _reap(self, wake_read: int) -> bool:
        try:
            while os.read(wake_read, 4096):
                pass
        except BlockingIOError:
            pass
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._children.discard(pid)
            signal_group(pid, signal.SIGKILL)  # what the server itself had started ends with it
            self._tell({"event": "exited", "pid": pid, "status": os.waitstatus_to_exitcode(status)})
        return True

    def _kill_all(self) -> None:
        for pid in self._children:
            signal_group(pid, signal.SIGKILL)


def preload() -> None:
    """Import what servers need, without looking for garbage: imports make none, and looking costs a twelfth of them."""
    gc.disable()
    for module in PRELOADED:
        importlib.import_module(module)


def live(control: socket.socket, boot: dict[str, Any], moved: Mapping[int, int] | None = None) -> None:
    """Freeze what is imported, then fork on demand. `moved` says which number a descriptor has here, if another one."""
    from nemo_gym.launch.hosting import Hosts

    hosts = Hosts.from_boot(boot, moved)
    gc.collect()
    gc.freeze()  # shared pages stay shared: the collector of a child never writes to them
    gc.enable()
    Zygote(control, hosts.run).run()


def main(control_fd: int, boot_fd: int) -> None:
    """Import everything, learn what it is for, then fork on demand."""
    preload()
    with os.fdopen(boot_fd, "rb") as file:
        boot = json.load(file)
    live(socket.socket(fileno=control_fd), boot)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
