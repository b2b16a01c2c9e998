"""Run one order in a box, seen from outside: bounded output, limits, and the reason for its end."""

import asyncio
import contextlib
import fcntl
import json
import marshal
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.sandbox.providers.local.box import Box
from nemo_gym.sandbox.providers.local.cgroups import CPU, MEMORY, PIDS, Usage
from nemo_gym.sandbox.providers.local.end_reason import ProgramEnd, error_kind
from nemo_gym.sandbox.providers.local.limits import (
    BoxLimits,
    ProcessUsage,
    counts_processes_by_namespace,
    measure_processes,
)
from nemo_gym.sandbox.spec import SandboxErrorKind, SandboxExecDetail, SandboxExecResult

KILL_GRACE_S = 5.0
"""Longest time process 1 may take to end a program before the whole box is killed."""

START_S = 60.0
"""Longest time process 1 may take to start a program; the program's clock is not running then."""

_CHUNK = 1 << 16
_MESSAGE = 1 << 16
_POLL_S = 0.05

_OWN_MEMORY = 16 << 20
"""Memory of process 1 itself, added so that a program gets all of its limit."""

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

EndEvent = dict[str, float]
"""The `ended` message of process 1: status, cpu_s, peak_kib."""


@dataclass
class OrderResult:
    """The result of an order. `channel` holds what the program sent there, cut at the limit."""

    result: SandboxExecResult
    channel: bytes = b""


class BoundedPipe:
    """A pipe into the box of which the first bytes are kept; one byte too many is reported."""

    def __init__(self, limit: int, when_full: Callable[[], None]) -> None:
        self.limit = limit
        self.data = bytearray()
        self.is_full = False
        self._when_full = when_full
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_end, False)
        self._is_reading = True
        self._loop.add_reader(self._read_end, self._read)

    def read_rest(self) -> None:
        """Read what is in the pipe now."""
        while self._is_reading and not self.is_full and self._read():
            pass

    def take(self) -> bytes:
        """Return and forget the data so far."""
        self.read_rest()
        data, self.data = bytes(self.data), bytearray()
        return data

    def close(self) -> None:
        if self._read_end >= 0:
            self._stop_reading()
            os.close(self._read_end)
            self._read_end = -1
        self.close_write_end()

    def close_write_end(self) -> None:
        """Close our copy of the end that the box has received."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def _read(self) -> bool:
        try:
            chunk = os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._stop_reading()
            return False
        room = self.limit - len(self.data)
        self.data += chunk[:room]
        if len(chunk) > room:
            self.is_full = True
            self._stop_reading()
            self._when_full()
        return True

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._read_end)


@dataclass
class ControlSocket:
    """The socket to process 1; every message arrives whole or not at all."""

    box: Box

    def send(self, order: str, descriptors: list[int] | None = None) -> bool:
        """Send an order; False if process 1 is gone."""
        try:
            socket.send_fds(self.box.control, [order.encode()], descriptors or [])
        except OSError:
            return False
        return True

    async def event(self, name: str) -> EndEvent | None:
        """Wait for the next message of that name; None if the box is gone or sends an invalid message."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                message = json.loads(await loop.sock_recv(self.box.control, _MESSAGE))
                if message["event"] == name:
                    return {key: float(value) for key, value in message.items() if key != "event"}
            except (OSError, ValueError, TypeError, KeyError, RecursionError):
                return None


async def execute(
    box: Box,
    order: Mapping[str, Any],
    limits: BoxLimits,
    *,
    stdin: bytes = b"",
    channel: int | None = None,
    channel_limit: int | None = None,
) -> OrderResult:
    """Run one order of `inside/child_tasks.py` to its end. The wall clock starts when the program does.

    `channel` is the box's end of an additional stream; with `channel_limit` one is opened and collected.
    """
    full = asyncio.Event()
    out, err = BoundedPipe(limits.output_bytes, full.set), BoundedPipe(limits.output_bytes, full.set)
    extra = None if channel_limit is None else BoundedPipe(channel_limit, full.set)
    pipes = [pipe for pipe in (out, err, extra) if pipe is not None]
    before = box_usage(box)
    control = ControlSocket(box)
    try:
        channel = channel if extra is None else extra.write_end
        stdin_file = sealed_file(stdin)
        try:
            descriptors = [stdin_file, out.write_end, err.write_end, *([] if channel is None else [channel])]
            has_started = await start_program(box, control, order, descriptors, limits)
        finally:
            os.close(stdin_file)
        for pipe in pipes:
            pipe.close_write_end()
        start = time.monotonic()
        stopped: SandboxErrorKind | None = None
        end: EndEvent | None = None
        if has_started:
            stopped, end = await _wait_for_end(box, control, full, limits, before)
        seconds = time.monotonic() - start
        for pipe in pipes:
            pipe.read_rest()
        if stopped is None and full.is_set():
            stopped = SandboxErrorKind.OUTPUT
        result = build_result(box, out.data, err.data, stopped, end, before, limits, seconds)
        return OrderResult(result, b"" if extra is None else bytes(extra.data))
    finally:
        for pipe in pipes:
            pipe.close()


async def start_program(
    box: Box, control: ControlSocket, order: Mapping[str, Any], descriptors: list[int], limits: BoxLimits
) -> bool:
    """Send an order and wait until its program runs; False if the box is gone.

    The box is killed if that takes too long or the wait is cancelled: an abandoned program must not start later.
    """
    is_memory_counted = box.group is not None and MEMORY in box.group.folders
    if box.group is not None:
        try:
            box.group.limit(memory_bytes=limits.memory_bytes + _OWN_MEMORY, processes=limits.processes + 1)
        except OSError:
            return False  # an unbounded program is not started
    counts_processes = box.is_isolated and (box.has_own_user or counts_processes_by_namespace())
    rlimits = limits.rlimits(memory_counted=is_memory_counted, processes_counted=counts_processes)
    order_file = sealed_file(marshal.dumps({**order, "limits": rlimits}))
    try:
        if not control.send("run", [order_file, *descriptors]):
            return False
    finally:
        os.close(order_file)
    started = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                started = await control.event("started")
    finally:
        if started is None:
            box.kill()
    return started is not None


async def stop_program(box: Box, control: ControlSocket, end: "asyncio.Task[EndEvent | None]") -> EndEvent | None:
    """Kill the program; kill the box if process 1 does not report the end in time."""
    control.send("kill")
    done, _ = await asyncio.wait({end}, timeout=KILL_GRACE_S)
    if done:
        return end.result()
    box.kill()
    end.cancel()
    return None


def build_result(
    box: Box,
    stdout: bytes | bytearray,
    stderr: bytes | bytearray,
    stopped: SandboxErrorKind | None,
    end: EndEvent | None,
    before: Usage,
    limits: BoxLimits,
    seconds: float,
) -> SandboxExecResult:
    """Convert the end of an order to the result of the API."""
    usage = box_usage(box).since(before)
    error_text = stderr.decode(errors="replace")
    program_end = ProgramEnd(
        stopped=stopped,
        status=None if end is None else int(end["status"]),
        usage=usage,
        cpu_s=0.0 if end is None else float(end["cpu_s"]),
        cpu_limit_s=limits.cpu_s,
        stderr=error_text,
    )
    peak = usage.peak_memory_mib if end is None else float(end["peak_kib"]) / 1024
    kind = error_kind(program_end)
    if kind is SandboxErrorKind.SANDBOX:
        error_text = f"{error_text}\nthe box ended before its program did".lstrip()
    return SandboxExecResult(
        stdout.decode(errors="replace"),
        error_text,
        program_end.exit_code,
        kind,
        SandboxExecDetail(box.is_isolated, program_end.signal, seconds, program_end.cpu_s, peak),
    )


async def _wait_for_end(
    box: Box, control: ControlSocket, full: asyncio.Event, limits: BoxLimits, before: Usage
) -> tuple[SandboxErrorKind | None, EndEvent | None]:
    end = asyncio.ensure_future(control.event("ended"))
    try:
        stopped = await wait_or_limit({end}, box, full, limits, before)
        return stopped, end.result() if stopped is None else await stop_program(box, control, end)
    except asyncio.CancelledError:
        box.kill()
        raise
    finally:
        end.cancel()


async def wait_or_limit(
    ends: "set[asyncio.Task[Any]]", box: Box, full: asyncio.Event, limits: BoxLimits, before: Usage
) -> SandboxErrorKind | None:
    """Wait until one of `ends` is done or a limit is reached; return the limit, or None if an end is done."""
    too_much_output = asyncio.ensure_future(full.wait())
    over_limit = asyncio.ensure_future(_wait_for_resource_limit(box, before, limits))
    try:
        watched = {*ends, too_much_output, over_limit}
        await asyncio.wait(watched, timeout=limits.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if any(end.done() for end in ends):
            return None
        if too_much_output.done():
            return SandboxErrorKind.OUTPUT
        return over_limit.result() if over_limit.done() else SandboxErrorKind.TIMEOUT
    finally:
        too_much_output.cancel()
        over_limit.cancel()


async def _wait_for_resource_limit(box: Box, before: Usage, limits: BoxLimits) -> SandboxErrorKind:
    """Wait until the box as a whole exceeds a bound that the kernel does not enforce, and return which."""
    counted = set() if box.group is None else set(box.group.folders)
    watched = {MEMORY, PIDS} - counted | ({CPU} if limits.cpu_s is not None else set())
    if not watched:
        await asyncio.Event().wait()
    must_measure = bool(watched - counted)
    first = measure_processes(box.pid) if must_measure else ProcessUsage()
    while True:
        now = measure_processes(box.pid) if must_measure else ProcessUsage()
        cpu_s = box_usage(box).since(before).cpu_s if CPU in counted else now.cpu_s - first.cpu_s
        if MEMORY in watched and now.memory_bytes > limits.memory_bytes + _OWN_MEMORY:
            return SandboxErrorKind.MEMORY
        if PIDS in watched and now.tasks > limits.processes + 1:
            return SandboxErrorKind.PROCESSES
        if limits.cpu_s is not None and (cpu_s or 0.0) >= limits.cpu_s:
            return SandboxErrorKind.CPU_TIME
        await asyncio.sleep(_POLL_S)


def box_usage(box: Box) -> Usage:
    """Return what the box has used so far; zero without control groups."""
    return Usage() if box.group is None else box.group.usage()


def sealed_file(content: bytes) -> int:
    """Return the descriptor of a file in memory that no process can change."""
    descriptor = os.memfd_create("order", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
