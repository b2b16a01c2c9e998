"""The zygote as a fork of the command, made before the command has a loop or a thread: both import most things once.

A process with threads (a trainer, a notebook) starts the zygote as a program of its own instead, and so does a run that
has lost its first one. What the fork is told comes over its socket, for nothing was known when it was made.
"""

import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from nemo_gym.forks import Child, is_alone, leave
from nemo_gym.launch import zygote
from nemo_gym.launch.boot import boot_file

MOST_DESCRIPTORS = 200
"""In one message; the kernel takes 253."""

END_SECONDS = 10.0
"""How long the end of one that was killed is waited for."""

_SIGNALS = {signal.SIGINT, signal.SIGTERM}


@dataclass
class Ahead:
    """A zygote that waits to be told what it is for."""

    process: Child
    control: socket.socket

    def boot(self, boot: Mapping[str, Any], inherited: Sequence[int], env: Mapping[str, str], seconds: float) -> None:
        """Tell it, and give it the descriptors that its children shall have.

        Raises:
            OSError: it is gone, or does not listen for so many seconds.
        """
        told = boot_file({"boot": dict(boot), "env": dict(env)})
        descriptors = [told, *inherited]
        self.control.settimeout(seconds)
        try:
            for begin in range(0, len(descriptors), MOST_DESCRIPTORS):
                batch = descriptors[begin : begin + MOST_DESCRIPTORS]
                last = begin + MOST_DESCRIPTORS >= len(descriptors)
                message = json.dumps({"numbers": batch, "last": last}).encode()
                socket.send_fds(self.control, [message], batch)
        finally:
            os.close(told)

    def end(self) -> None:
        """End it; it has forked nobody yet."""
        self.control.close()
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)


_waiting: list[Ahead] = []


def take() -> Ahead | None:
    """The zygote that waits, if one does; whoever takes it has it alone."""
    return _waiting.pop() if _waiting else None


@contextmanager
def forked_ahead(rounds: tuple[int, int, int]) -> Iterator[None]:
    """The first run that starts in this block has a zygote already. One that nobody takes ends with the block.

    `rounds` are the garbage collector's as they were when this process began: servers begin with those.
    """
    ahead = _forked(rounds) if is_alone() else None
    if ahead is None:
        yield
        return
    _waiting.append(ahead)
    try:
        yield
    finally:
        if ahead in _waiting:
            _waiting.remove(ahead)
            ahead.end()


def _forked(rounds: tuple[int, int, int]) -> Ahead | None:
    """The fork; None if the machine has no room for one now: then a run that needs it says so, in its words."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # a Ctrl-C before it has its session is the command's
    try:
        pid = os.fork()
        if pid == 0:
            ours.close()
            _be_the_zygote(theirs, rounds)
    except OSError:
        ours.close()
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
    return Ahead(Child(pid), ours)


def _be_the_zygote(control: socket.socket, rounds: tuple[int, int, int]) -> NoReturn:
    """Serve a run, and never return into what the command was doing."""
    status = 1
    try:
        _forget_the_command(rounds)
        zygote.preload()
        told = _told(control)
        if told is not None:
            zygote.live(control, *told)
        status = 0
    except BaseException:  # the boundary of a process: whatever escaped is its last words
        sys.excepthook(*sys.exc_info())
    finally:
        leave(status)


def _forget_the_command(rounds: tuple[int, int, int]) -> None:
    """Be as a process that was started as `python -m nemo_gym.launch.zygote`."""
    os.setsid()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    gc.set_threshold(*rounds)
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    logging.getLogger("nemo_gym").setLevel(logging.NOTSET)
    sys.argv = [str(zygote.__file__)]
    sys.modules["__main__"] = zygote
    if not sys.flags.safe_path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _told(control: socket.socket) -> tuple[dict[str, Any], dict[int, int]] | None:
    """What this zygote is for, and which descriptor here is which one there; None when nobody needs it."""
    moved: dict[int, int] = {}
    last = False
    while not last:
        message, descriptors, _, _ = socket.recv_fds(control, zygote.MOST_BYTES, MOST_DESCRIPTORS)
        if not message:
            return None
        said = json.loads(message)
        moved |= zip(said["numbers"], descriptors, strict=True)
        last = said["last"]
    with os.fdopen(next(iter(moved.values())), "rb") as file:
        told = json.load(file)
    os.environ.clear()
    os.environ.update(told["env"])
    return told["boot"], moved
