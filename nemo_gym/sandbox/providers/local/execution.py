"""One order in a box, from outside: its streams read within bounds, its clocks kept, its end explained."""

import asyncio
import contextlib
import fcntl
import functools
import json
import marshal
import math
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.sandbox.providers.local.cgroups import CPU, MEMORY, PIDS, Usage
from nemo_gym.sandbox.providers.local.launch import Box
from nemo_gym.sandbox.providers.local.outcome import Ending, kind_of
from nemo_gym.sandbox.providers.local.watch import Sample, sample
from nemo_gym.sandbox.spec import SandboxErrorKind, SandboxExecDetail, SandboxExecResult

KILL_GRACE_S = 5.0
"""How long process 1 may take to end what it runs before the whole box is ended."""

START_S = 60.0
"""How long process 1 may take to begin; the clock of the program has not started then."""

_CHUNK = 1 << 16
_MESSAGE = 1 << 16
_POLL_S = 0.05

_OWN_MEMORY = 16 << 20
"""What process 1 itself takes, so that a program gets what was promised to it."""

_SEALED = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

_ADDRESS_SPACE_BEYOND_GROUP = 16 << 30
_ADDRESS_SPACE_WITHOUT_GROUP = 96 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of one order."""

    timeout_s: float
    cpu_s: float | None
    memory_bytes: int
    file_bytes: int
    output_bytes: int
    processes: int
    open_files: int = 256

    def rlimits(self, *, memory_counted: bool, processes_own: bool) -> dict[str, int]:
        """What the program is given by rlimit: the groups' bounds once more, and those that groups do not have."""
        beyond = _ADDRESS_SPACE_BEYOND_GROUP if memory_counted else _ADDRESS_SPACE_WITHOUT_GROUP
        whole_machine = (self.timeout_s + 1) * (os.cpu_count() or 1) + 1
        limits = {
            "AS": self.memory_bytes + beyond,
            "CPU": math.ceil(whole_machine if self.cpu_s is None else self.cpu_s),
            "FSIZE": self.file_bytes,
            "NOFILE": self.open_files,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
        }
        # The number of a user's processes: only where the box has a user of its own, or the kernel counts by namespace,
        # is that the box's number. A little more than the group's bound: the group counts refusals, this does not.
        return {**limits, "NPROC": self.processes + 8} if processes_own else limits


@dataclass
class Order:
    """What to do, and the files to do it with. `channel` is the box's end of whatever else is exchanged."""

    words: dict[str, Any]
    stdin: bytes = b""
    channel: int | None = None
    channel_limit: int | None = None


@dataclass
class Outcome:
    """How an order ended. `channel` holds what the program sent there, cut at the bound."""

    result: SandboxExecResult
    channel: bytes = b""
    alive: bool = True


class Stream:
    """A pipe whose other end is in the box: the first bytes are kept, one too many is reported."""

    def __init__(self, limit: int, when_full: Callable[[], None]) -> None:
        self.limit = limit
        self.data = bytearray()
        self.full = False
        self._when_full = when_full
        self._loop = asyncio.get_running_loop()
        self._reading, self.theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reading, False)
        self._open = True
        self._loop.add_reader(self._reading, self._read)

    def read_rest(self) -> None:
        """Take what is in the pipe now; nobody is there to write more."""
        while self._open and not self.full and self._read():
            pass

    def take(self) -> bytes:
        """What came so far, and forget it."""
        self.read_rest()
        taken, self.data = bytes(self.data), bytearray()
        return taken

    def close(self) -> None:
        """Let go of our end."""
        if self._reading >= 0:
            self._stop()
            os.close(self._reading)
            self._reading = -1
        self.close_theirs()

    def close_theirs(self) -> None:
        """Let go of the box's end, which the box has by now."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def _read(self) -> bool:
        try:
            chunk = os.read(self._reading, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._stop()
            return False
        room = self.limit - len(self.data)
        self.data += chunk[:room]
        if len(chunk) > room:
            self.full = True
            self._stop()
            self._when_full()
        return True

    def _stop(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._reading)


@dataclass
class Control:
    """Orders to process 1 and what it says; every message is whole or not there."""

    box: Box
    _broken: bool = field(default=False)

    def send(self, op: str, descriptors: list[int] | None = None) -> bool:
        """Give an order; False if nobody is there."""
        try:
            socket.send_fds(self.box.control, [op.encode()], descriptors or [])
        except OSError:
            self._broken = True
        return not self._broken

    async def event(self, name: str) -> dict[str, float] | None:
        """The next message of that name; None if the box is gone, or speaks in a way that process 1 does not."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                message = json.loads(await loop.sock_recv(self.box.control, _MESSAGE))
                if message["event"] == name:
                    return {key: float(value) for key, value in message.items() if key != "event"}
            except (OSError, ValueError, TypeError, KeyError, RecursionError):
                return None


async def execute(box: Box, order: Order, limits: Limits) -> Outcome:
    """Carry out one order and say how it ended. The wall clock starts when the program does."""
    full = asyncio.Event()
    out, err = Stream(limits.output_bytes, full.set), Stream(limits.output_bytes, full.set)
    extra = None if order.channel_limit is None else Stream(order.channel_limit, full.set)
    before = usage_of(box)
    control = Control(box)
    try:
        channel = order.channel if extra is None else extra.theirs
        stdin = sealed_file(order.stdin)
        try:
            descriptors = [stdin, out.theirs, err.theirs, *([] if channel is None else [channel])]
            started = await start(box, control, order.words, descriptors, limits)
        finally:
            os.close(stdin)
        for stream in (out, err, extra):
            if stream is not None:
                stream.close_theirs()
        begun = time.monotonic()
        running = started is not None
        stopped, ended = await _until_the_end(box, control, full, limits, before) if running else (None, None)
        seconds = time.monotonic() - begun
        for stream in (out, err, extra):
            if stream is not None:
                stream.read_rest()
        if stopped is None and full.is_set():
            stopped = SandboxErrorKind.OUTPUT
        result = explain(box, out.data, err.data, stopped, ended, before, limits, seconds)
        return Outcome(result, b"" if extra is None else bytes(extra.data), ended is not None)
    finally:
        for stream in (out, err, extra):
            if stream is not None:
                stream.close()


async def start(
    box: Box, control: Control, words: Mapping[str, Any], descriptors: list[int], limits: Limits
) -> dict[str, float] | None:
    """Hand an order over and wait until its program runs; None if the box is gone.

    It is gone as well if that takes too long or the wait is cancelled: a program that nobody waits for must not begin.
    """
    counted = box.group is not None and MEMORY in box.group.folders
    if box.group is not None:
        try:
            box.group.limit(memory_bytes=limits.memory_bytes + _OWN_MEMORY, processes=limits.processes + 1)
        except OSError:
            return None  # an unbounded program is not started
    rlimits = limits.rlimits(memory_counted=counted, processes_own=box.own_user or _counts_by_namespace())
    written = sealed_file(marshal.dumps({**words, "limits": rlimits}))
    try:
        if not control.send("run", [written, *descriptors]):
            return None
    finally:
        os.close(written)
    started = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                started = await control.event("started")
    finally:
        if started is None:
            box.kill()
    return started


async def stop(box: Box, control: Control, ended: "asyncio.Task[dict[str, float] | None]") -> dict[str, float] | None:
    """End what runs; if process 1 does not manage, the box."""
    control.send("kill")
    done, _ = await asyncio.wait({ended}, timeout=KILL_GRACE_S)
    if done:
        return ended.result()
    box.kill()
    ended.cancel()
    return None


def explain(
    box: Box,
    stdout: bytes | bytearray,
    stderr: bytes | bytearray,
    stopped: SandboxErrorKind | None,
    ended: Mapping[str, float] | None,
    before: Usage,
    limits: Limits,
    seconds: float,
) -> SandboxExecResult:
    """The result of an order in the API's words."""
    usage = usage_of(box).since(before)
    said = stderr.decode(errors="replace")
    ending = Ending(
        stopped=stopped,
        status=None if ended is None else int(ended["status"]),
        usage=usage,
        cpu_s=0.0 if ended is None else float(ended["cpu_s"]),
        cpu_limit_s=limits.cpu_s,
        stderr=said,
    )
    peak = usage.peak_memory_mib if ended is None else float(ended["peak_kib"]) / 1024
    kind = kind_of(ending)
    if kind is SandboxErrorKind.SANDBOX:
        said = f"{said}\nthe box ended before its program did".lstrip()
    return SandboxExecResult(
        stdout.decode(errors="replace"),
        said,
        ending.exit_code,
        kind,
        SandboxExecDetail(True, ending.signal, seconds, ending.cpu_s, peak),
    )


async def _until_the_end(
    box: Box, control: Control, full: asyncio.Event, limits: Limits, before: Usage
) -> tuple[SandboxErrorKind | None, dict[str, float] | None]:
    ended = asyncio.ensure_future(control.event("ended"))
    too_much = asyncio.ensure_future(full.wait())
    too_far = asyncio.ensure_future(bound_is_passed(box, before, limits))
    try:
        await asyncio.wait({ended, too_much, too_far}, timeout=limits.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return None, ended.result()
        stopped = SandboxErrorKind.TIMEOUT
        if too_much.done():
            stopped = SandboxErrorKind.OUTPUT
        elif too_far.done():
            stopped = too_far.result()
        return stopped, await stop(box, control, ended)
    except asyncio.CancelledError:
        box.kill()
        raise
    finally:
        for task in (ended, too_much, too_far):
            task.cancel()


async def bound_is_passed(box: Box, before: Usage, limits: Limits) -> SandboxErrorKind:
    """Return when the box as a whole has passed a bound that the kernel does not keep for us, and which."""
    counted = set() if box.group is None else set(box.group.folders)
    watched = {MEMORY, PIDS} - counted | ({CPU} if limits.cpu_s is not None else set())
    if not watched:
        await asyncio.Event().wait()
    begun = sample(box.pid) if watched - counted else Sample()
    while True:
        now = sample(box.pid) if watched - counted else Sample()
        cpu_s = usage_of(box).since(before).cpu_s if CPU in counted else now.cpu_s - begun.cpu_s
        if MEMORY in watched and now.memory_bytes > limits.memory_bytes + _OWN_MEMORY:
            return SandboxErrorKind.MEMORY
        if PIDS in watched and now.tasks > limits.processes + 1:
            return SandboxErrorKind.PROCESSES
        if limits.cpu_s is not None and (cpu_s or 0.0) >= limits.cpu_s:
            return SandboxErrorKind.CPU_TIME
        await asyncio.sleep(_POLL_S)


@functools.cache
def _counts_by_namespace() -> bool:
    """Whether the kernel counts a user's processes for each user namespace: since 5.14."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 14)


def usage_of(box: Box) -> Usage:
    """What the box has used so far; nothing where nobody counts."""
    return Usage() if box.group is None else box.group.usage()


def sealed_file(content: bytes) -> int:
    """A file with this content that nobody can change any more."""
    made = os.memfd_create("order", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(made, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(made, 0, os.SEEK_SET)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, _SEALED)
    except BaseException:
        os.close(made)
        raise
    return made
