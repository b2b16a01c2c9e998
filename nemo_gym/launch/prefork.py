"""Fork the zygote from a command before the command has an event loop or a thread: both share most imports.

A process with threads (a trainer, a notebook) starts the zygote as a program instead, and so does a run that lost its
first one. The preforked zygote receives its boot message over its socket, because nothing is known when it is forked.
"""

import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from nemo_gym.launch import zygote
from nemo_gym.launch.zygote import ZygoteSpec
from nemo_gym.processes import ForkedChild, exit_fork, has_single_thread, json_descriptor

MAX_DESCRIPTORS = 200
"""Descriptors in one message; the kernel allows 253."""

KILL_SECONDS = 10.0

_SIGNALS = {signal.SIGINT, signal.SIGTERM}

Thresholds = tuple[int, int, int]
"""Thresholds of the garbage collector."""


@dataclass
class PreforkedZygote:
    """A zygote that waits for its boot message."""

    process: ForkedChild
    control: socket.socket

    def boot(self, spec: ZygoteSpec, seconds: float) -> None:
        """Send the boot message and the descriptors that its children inherit.

        Raises:
            OSError: the zygote is gone, or does not read within `seconds`.
        """
        content = json_descriptor({"boot": dict(spec.boot), "env": dict(spec.env)})
        descriptors = [content, *spec.descriptors]
        self.control.settimeout(seconds)
        try:
            for start in range(0, len(descriptors), MAX_DESCRIPTORS):
                batch = descriptors[start : start + MAX_DESCRIPTORS]
                is_last = start + MAX_DESCRIPTORS >= len(descriptors)
                socket.send_fds(self.control, [json.dumps({"numbers": batch, "last": is_last}).encode()], batch)
        finally:
            os.close(content)

    def kill(self) -> None:
        """End the zygote; it has no children yet."""
        self.control.close()
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_SECONDS)


_waiting: list[PreforkedZygote] = []


def claim() -> PreforkedZygote | None:
    """Return the waiting zygote, if any, and leave it to the caller."""
    return _waiting.pop() if _waiting else None


@contextmanager
def preforked_zygote(thresholds: Thresholds) -> Iterator[None]:
    """Provide a zygote to the first run that starts in this block; an unclaimed one is killed at the end.

    `thresholds` are those the garbage collector had when this process began: servers start with them.
    """
    waiting = _fork_zygote(thresholds) if has_single_thread() else None
    if waiting is None:
        yield
        return
    _waiting.append(waiting)
    try:
        yield
    finally:
        if waiting in _waiting:
            _waiting.remove(waiting)
            waiting.kill()


def _fork_zygote(thresholds: Thresholds) -> PreforkedZygote | None:
    """Fork; return None if the machine has no room for a process now: a run that needs one reports it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until it has its session, Ctrl-C is for the command
    try:
        pid = os.fork()
        if pid == 0:
            ours.close()
            _run_zygote(theirs, thresholds)
    except OSError:
        ours.close()
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
    return PreforkedZygote(ForkedChild(pid), ours)


def _run_zygote(control: socket.socket, thresholds: Thresholds) -> NoReturn:
    """Serve one run and exit; never return into the command."""
    status = 1
    try:
        _reset_process(thresholds)
        zygote.preload()
        message = _receive_boot(control)
        if message is not None:
            zygote.serve(control, *message)
        status = 0
    except BaseException:  # the boundary of a process: print whatever escaped
        sys.excepthook(*sys.exc_info())
    finally:
        exit_fork(status)


def _reset_process(thresholds: Thresholds) -> None:
    """Make this fork equal to a process started as `python -m nemo_gym.launch.zygote`."""
    os.setsid()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    gc.set_threshold(*thresholds)
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    logging.getLogger("nemo_gym").setLevel(logging.NOTSET)
    sys.argv = [str(zygote.__file__)]
    sys.modules["__main__"] = zygote
    if not sys.flags.safe_path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _receive_boot(control: socket.socket) -> tuple[dict[str, Any], dict[int, int]] | None:
    """Return the boot message and the local number of every descriptor; None if the command ended without a run."""
    numbers: dict[int, int] = {}
    is_last = False
    while not is_last:
        message, descriptors, _, _ = socket.recv_fds(control, zygote.MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:
            return None
        batch = json.loads(message)
        numbers |= zip(batch["numbers"], descriptors, strict=True)
        is_last = batch["last"]
    with os.fdopen(next(iter(numbers.values())), "rb") as file:
        content = json.load(file)
    os.environ.clear()
    os.environ.update(content["env"])
    return content["boot"], numbers
