"""Start a zygote, usually by a fork of the command before it has an event loop or a thread, so that imports are shared.

A process with threads (a trainer, a notebook) starts the zygote as a program instead, and so does a run whose first
zygote ended. Both kinds of zygotes receive the boot message over their socket, because the configuration is not
resolved yet when a command forks its zygote.
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
from typing import NoReturn

from nemo_gym.config.search_roots import _augment_sys_path
from nemo_gym.launch import zygote
from nemo_gym.launch.zygote import MAX_DESCRIPTORS, ZygoteSpec
from nemo_gym.processes import ForkedChild, exit_fork, has_single_thread, json_descriptor

KILL_SECONDS = 10.0

_SIGNALS = {signal.SIGINT, signal.SIGTERM}

Thresholds = tuple[int, int, int]
"""Thresholds of the garbage collector."""


@dataclass
class ZygoteHandle:
    """A running zygote that waits for its boot message, and the socket to it."""

    process: ForkedChild | subprocess.Popen[bytes]
    control: socket.socket

    def boot(self, spec: ZygoteSpec, seconds: float) -> None:
        """Send the boot message and the descriptors that the zygote's children inherit.

        Raises:
            OSError: the zygote has ended, or does not read within `seconds`.
        """
        boot_fd = json_descriptor({"boot": dict(spec.boot), "env": dict(spec.env)})
        descriptors = [boot_fd, *spec.descriptors]
        self.control.settimeout(seconds)
        try:
            for start in range(0, len(descriptors), MAX_DESCRIPTORS):
                batch = descriptors[start : start + MAX_DESCRIPTORS]
                is_last = start + MAX_DESCRIPTORS >= len(descriptors)
                socket.send_fds(self.control, [json.dumps({"numbers": batch, "last": is_last}).encode()], batch)
        finally:
            os.close(boot_fd)

    def kill(self) -> None:
        """End the zygote; it has no children yet."""
        self.control.close()
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_SECONDS)


_unclaimed: list[ZygoteHandle] = []
"""The zygote that the command forked, until a run claims it; at most one."""


def start_zygote(spec: ZygoteSpec, seconds: float) -> ZygoteHandle:
    """Boot the zygote that the command forked; if that is missing or does not read in time, start one as a program."""
    if _unclaimed:
        preforked = _unclaimed.pop()
        try:
            preforked.boot(spec, seconds)
            return preforked
        except OSError:
            preforked.kill()
    program = _execute_zygote()
    program.boot(spec, seconds)
    return program


def _execute_zygote() -> ZygoteHandle:
    """Start a zygote as a program."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nemo_gym.launch.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ZygoteHandle(process, ours)


@contextmanager
def preforked_zygote(thresholds: Thresholds) -> Iterator[None]:
    """Fork a zygote that the first run in the block can claim; kill it at the end of the block if it is unclaimed.

    `thresholds` are those of the garbage collector when this process started; servers start with them.
    """
    preforked = _fork_zygote(thresholds) if has_single_thread() else None
    if preforked is None:
        yield
        return
    _unclaimed.append(preforked)
    try:
        yield
    finally:
        if preforked in _unclaimed:
            _unclaimed.remove(preforked)
            preforked.kill()


def _fork_zygote(thresholds: Thresholds) -> ZygoteHandle | None:
    """Fork a zygote; return None if the fork fails: a run that needs a zygote then starts one as a program."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # Ctrl-C must not end the zygote before its setsid()
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
    return ZygoteHandle(ForkedChild(pid), ours)


def _run_zygote(control: socket.socket, thresholds: Thresholds) -> NoReturn:
    """Serve one run and exit; never return into the code of the command."""
    status = 1
    try:
        _reset_process(thresholds)
        zygote.main(control)
        status = 0
    except BaseException:  # the boundary of a process: print every exception
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
    _augment_sys_path()
