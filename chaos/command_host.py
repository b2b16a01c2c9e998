"""Fork `gym` commands from one process that has imported their modules: without imports a start takes a third.

`python -m chaos.command_host FD` reads requests from a socket and forks two processes for each: a keeper, and the
command below it. Every process that the command starts, in whatever session, stays a descendant of the keeper, which
adopts those that lose their parent. The keeper reports the end of the command, and ends all of them when its own
socket closes.
"""

import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from pydantic import BaseModel

from nemo_gym.cli import main as command_line
from nemo_gym.launch.zygote import PRELOADED_MODULES
from nemo_gym.processes import adopt_orphans, end_descendants, exit_fork

MAX_MESSAGE_BYTES = 1000
REQUEST_DESCRIPTORS = 4
"""Descriptors of a request: the request as JSON, standard output, standard error, and the socket of the keeper."""
COMMAND_MODULES = (
    "uvloop",
    "uvicorn.lifespan.off",
    "hydra",
    "pydantic.v1",
    "encodings.idna",
    "nemo_gym.cli.eval.run",
    "nemo_gym.cli.shared.collection",
    "nemo_gym.cli.shared.eval_request",
    "nemo_gym.cli.shared.report",
    "nemo_gym.cli.shared.servers",
    "nemo_gym.cli.terminal.log",
    "nemo_gym.cli.terminal.progress",
    "nemo_gym.launch.prefork",
    "nemo_gym.launch.run",
    "nemo_gym.rollouts.collect",
)


def main(control: socket.socket) -> None:
    """Import the modules of commands and of their servers, then fork until the socket closes."""
    for module in (*COMMAND_MODULES, *PRELOADED_MODULES):
        importlib.import_module(module)
    for model in deferred_models(BaseModel):
        model.model_rebuild()
    gc.collect()
    gc.freeze()  # shared pages stay shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects keepers
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, REQUEST_DESCRIPTORS)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            keep_command(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def deferred_models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the subclasses whose validators are not built yet: otherwise every server builds them."""
    for model in base.__subclasses__():
        if not model.__pydantic_complete__:
            yield model
        yield from deferred_models(model)


def keep_command(request_fd: int, output: int, log: int, link_fd: int) -> NoReturn:
    """Fork the command, report its process id and exit status, and end its processes when the socket closes.

    The last message is the CPU time of all processes.
    """
    link = socket.socket(fileno=link_fd)
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        adopt_orphans()
        with os.fdopen(request_fd, "rb") as file:
            request = json.load(file)
        pid = os.fork()
        if pid == 0:
            link.close()
            run_command(request, output, log)
        os.close(output)
        os.close(log)
        report_end(pid, link)
    except BaseException:  # the boundary of a process: print every exception
        sys.excepthook(*sys.exc_info())
    finally:
        end_descendants()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with suppress(OSError):  # the caller may have ended
            link.send(json.dumps(used.ru_utime + used.ru_stime).encode())
        exit_fork(0)


def report_end(pid: int, link: socket.socket) -> None:
    """Send the ids of this process and the command, and the exit status when it ends; return when the socket closes."""
    with suppress(ConnectionError), selectors.DefaultSelector() as selector:
        link.send(json.dumps([os.getpid(), pid]).encode())
        selector.register(link, selectors.EVENT_READ)
        ending = os.pidfd_open(pid)
        selector.register(ending, selectors.EVENT_READ)
        while link not in [key.fileobj for key, _ in selector.select()]:
            selector.unregister(ending)
            link.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def run_command(request: Mapping[str, Any], output: int, log: int) -> NoReturn:
    """Run a command in this fork as if it were a new program, and exit."""
    status = 1
    try:
        os.setsid()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, log)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        words: Sequence[str] = request["words"]
        sys.argv = [str(command_line.__file__), *words]
        sys.modules["__main__"] = command_line
        status = command_line.main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # the boundary of a process: print every exception
        sys.excepthook(*sys.exc_info())
    finally:
        exit_fork(status)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
