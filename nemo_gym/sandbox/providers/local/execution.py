"""Run one action in a box, on the host side: bounded output, limits, and the reason why the program ended.

A request is a dict with the name of an action of `inside/child_actions.py` and its arguments; the process that performs
the action is called the program. The words `run` (with a request), `kill`, `interrupt`, `pause` and `resume` are the
commands of the init process. A channel is a stream between host and program besides stdin, stdout and stderr.
"""

import asyncio
import contextlib
import io
import json
import marshal
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.sandbox.providers.local.box import Box, sealed_file
from nemo_gym.sandbox.providers.local.cgroups import CPU, MEMORY, PIDS, Usage
from nemo_gym.sandbox.providers.local.end_reason import ProgramEnd, error_kind
from nemo_gym.sandbox.providers.local.limits import (
    BoxLimits,
    BoxMeter,
    counts_processes_by_namespace,
    measure_buffers,
)
from nemo_gym.sandbox.spec import SandboxErrorKind, SandboxExecDetail, SandboxExecResult

KILL_GRACE_S = 5.0
"""Maximum time for the init process to kill a program; then the whole box is killed."""

START_S = 60.0
"""Maximum time for the init process to start a program; not part of the program's own time limit."""

_CHUNK = 1 << 16
_MESSAGE = 1 << 16
_BUFFER_POLL_S = 0.01
"""Interval between measurements of buffers and files, which one program fills at gigabytes per second."""
_BUFFER_POLLS = 5
"""Measurements of buffers for each measurement of processes, which takes longer."""
_PROCESS_POLL_S = _BUFFER_POLLS * _BUFFER_POLL_S

_INIT_MEMORY = 16 << 20
"""Memory of the init process, added to the limit so that a program can use its full limit."""

ExitEvent = dict[str, float]
"""The `ended` message of the init process: status, cpu_s, peak_kib."""


@dataclass
class ActionResult:
    """The result of an action. `channel` holds the data that the program wrote to the channel, cut at the limit."""

    result: SandboxExecResult
    channel: bytes = b""


class BoundedPipe:
    """A pipe from the box that collects up to `limit` bytes; one more byte stops reading and sets the event `full`."""

    def __init__(self, limit: int, full: asyncio.Event) -> None:
        self._limit = limit
        self._full = full
        self._data = bytearray()
        self._loop = asyncio.get_running_loop()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        # File objects, because closing one twice is harmless: the number may belong to another file by then.
        self._read_end, self.write_end = io.FileIO(read_end, "rb"), io.FileIO(write_end, "wb")
        self._is_reading = True
        self._loop.add_reader(read_end, self._read)

    def take(self) -> bytes:
        """Return and remove the collected data, including the data that is in the pipe now."""
        while self._is_reading and self._read():
            pass
        data, self._data = bytes(self._data), bytearray()
        return data

    def close(self) -> None:
        self._stop_reading()
        self._read_end.close()
        self.write_end.close()

    def _read(self) -> bool:
        """Read one chunk; return False if there is no data now or the pipe is closed."""
        chunk = self._read_end.read(_CHUNK)
        if chunk is None:
            return False
        remaining = self._limit - len(self._data)
        self._data += chunk[:remaining]
        if len(chunk) > remaining:
            self._full.set()
        if not chunk or len(chunk) > remaining:
            self._stop_reading()
        return bool(chunk)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._read_end)


def send_command(box: Box, command: str, descriptors: Sequence[int] = ()) -> bool:
    """Send a command to the init process of a box; return False if the init process has exited."""
    try:
        socket.send_fds(box.control, [command.encode()], descriptors)
    except OSError:
        return False
    return True


async def receive_event(box: Box, name: str) -> ExitEvent | None:
    """Return the fields of the next event of that name; None if the init process exits or sends an invalid message."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            message = json.loads(await loop.sock_recv(box.control, _MESSAGE))
            if message["event"] == name:
                return {key: float(value) for key, value in message.items() if key != "event"}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None


async def execute(
    box: Box,
    request: Mapping[str, Any],
    limits: BoxLimits,
    *,
    stdin: bytes = b"",
    channel: int | None = None,
    channel_limit: int | None = None,
) -> ActionResult:
    """Run the action of a request and wait for its end. The time limit starts when the program starts.

    `channel` is a descriptor to pass to the program as its channel. With `channel_limit` instead, the channel is a
    pipe, and up to that many bytes that the program writes to it are returned.
    """
    output_full = asyncio.Event()
    pipe_limits = [limits.output_bytes, limits.output_bytes, *([] if channel_limit is None else [channel_limit])]
    pipes = [BoundedPipe(limit, output_full) for limit in pipe_limits]
    usage_before = box_usage(box)
    exceeded: SandboxErrorKind | None = None
    exit_event: ExitEvent | None = None
    try:
        has_started = await start_program(box, request, limits, pipes, stdin=stdin, channel=channel)
        start = time.monotonic()
        if has_started:
            exceeded, exit_event = await _wait_for_end(box, output_full, limits, usage_before)
        seconds = time.monotonic() - start
        stdout, stderr, *channel_data = (pipe.take() for pipe in pipes)
        if exceeded is None and output_full.is_set():
            exceeded = SandboxErrorKind.OUTPUT
        result = build_result(box, stdout, stderr, exceeded, exit_event, usage_before, limits, seconds)
        return ActionResult(result, b"".join(channel_data))
    finally:
        for pipe in pipes:
            pipe.close()


async def start_program(
    box: Box,
    request: Mapping[str, Any],
    limits: BoxLimits,
    pipes: Sequence[BoundedPipe],
    *,
    stdin: bytes = b"",
    channel: int | None = None,
) -> bool:
    """Send a request and wait until its program runs; return False if it does not start.

    The descriptors of the program, from 0, are `stdin`, the write ends of `pipes` and `channel`. If the start takes too
    long or is cancelled, the box is killed so that the program cannot start later.
    """
    is_memory_counted = box.group is not None and MEMORY in box.group.folders
    if box.group is not None:
        try:
            box.group.limit(memory_bytes=limits.memory_bytes + _INIT_MEMORY, processes=limits.processes + 1)
        except OSError:
            return False  # do not start a program without limits
    counts_processes = box.is_isolated and (box.has_own_user or counts_processes_by_namespace())
    rlimits = limits.rlimits(memory_counted=is_memory_counted, processes_counted=counts_processes)
    outputs = [*(pipe.write_end.fileno() for pipe in pipes), *([] if channel is None else [channel])]
    with sealed_file(marshal.dumps({**request, "limits": rlimits})) as request_file, sealed_file(stdin) as stdin_file:
        is_sent = send_command(box, "run", [request_file, stdin_file, *outputs])
    for pipe in pipes:
        pipe.write_end.close()  # the box has its own copy
    start_event = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                start_event = await receive_event(box, "started") if is_sent else None
    finally:
        if start_event is None:
            box.kill()
    return start_event is not None


async def stop_program(box: Box, exit_task: "asyncio.Task[ExitEvent | None]") -> ExitEvent | None:
    """Kill the program and return its exit event; kill the box if the init process does not report it in time."""
    send_command(box, "kill")
    done, _ = await asyncio.wait({exit_task}, timeout=KILL_GRACE_S)
    if done:
        return exit_task.result()
    box.kill()
    exit_task.cancel()
    return None


def build_result(
    box: Box,
    stdout: bytes,
    stderr: bytes,
    exceeded: SandboxErrorKind | None,
    exit_event: ExitEvent | None,
    usage_before: Usage,
    limits: BoxLimits,
    seconds: float,
) -> SandboxExecResult:
    """Build the API's result of a program; `usage_before` is the usage of the box when the program started."""
    usage = box_usage(box).since(usage_before)
    error_text = stderr.decode(errors="replace")
    program_end = ProgramEnd(
        exceeded=exceeded,
        status=None if exit_event is None else int(exit_event["status"]),
        usage=usage,
        cpu_s=0.0 if exit_event is None else float(exit_event["cpu_s"]),
        cpu_limit_s=limits.cpu_s,
        stderr=error_text,
    )
    peak = usage.peak_memory_mib if exit_event is None else float(exit_event["peak_kib"]) / 1024
    kind = error_kind(program_end)
    if kind is SandboxErrorKind.SANDBOX:
        error_text = f"{error_text}\nthe box ended before its program".lstrip()
    return SandboxExecResult(
        stdout.decode(errors="replace"),
        error_text,
        program_end.exit_code,
        kind,
        SandboxExecDetail(box.is_isolated, program_end.signal, seconds, program_end.cpu_s, peak, sampled_limits(box)),
    )


async def _wait_for_end(
    box: Box, output_full: asyncio.Event, limits: BoxLimits, usage_before: Usage
) -> tuple[SandboxErrorKind | None, ExitEvent | None]:
    """Wait until the program exits or exceeds a limit; return that limit (or None) and the exit event."""
    exit_task = asyncio.ensure_future(receive_event(box, "ended"))
    try:
        exceeded = await wait_for_end_or_limit({exit_task}, box, output_full, limits, usage_before)
        return exceeded, exit_task.result() if exceeded is None else await stop_program(box, exit_task)
    except asyncio.CancelledError:
        box.kill()
        raise
    finally:
        exit_task.cancel()


async def wait_for_end_or_limit(
    end_tasks: "set[asyncio.Task[Any]]", box: Box, output_full: asyncio.Event, limits: BoxLimits, usage_before: Usage
) -> SandboxErrorKind | None:
    """Wait until one of `end_tasks` is done or a limit is exceeded; return that limit, or None."""
    too_much_output = asyncio.ensure_future(output_full.wait())
    over_limit = asyncio.ensure_future(_wait_for_resource_limit(box, usage_before, limits))
    try:
        waiting = {*end_tasks, too_much_output, over_limit}
        await asyncio.wait(waiting, timeout=limits.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if any(task.done() for task in end_tasks):
            return None
        if too_much_output.done():
            return SandboxErrorKind.OUTPUT
        return over_limit.result() if over_limit.done() else SandboxErrorKind.TIMEOUT
    finally:
        too_much_output.cancel()
        over_limit.cancel()


async def _wait_for_resource_limit(box: Box, usage_before: Usage, limits: BoxLimits) -> SandboxErrorKind:
    """Measure the box until it as a whole exceeds a limit that the kernel does not enforce; return that limit."""
    counted = set() if box.group is None else set(box.group.folders)
    watched = {MEMORY, PIDS} - counted | ({CPU} if limits.cpu_s is not None else set())
    must_measure_buffers = MEMORY in watched and box.is_isolated  # through the namespaces of the box
    max_memory = limits.memory_bytes + _INIT_MEMORY
    meter = BoxMeter(box.pid, max_memory, counts_kernel_memory=box.is_isolated, has_group=MEMORY in counted)
    measure = meter.measure if watched - counted else meter.measure_kernel_memory
    polls = _BUFFER_POLLS if must_measure_buffers else 1
    if not watched:
        await asyncio.sleep(_PROCESS_POLL_S)
    memory, cpu_s_before = 0, None
    while True:
        measuring = asyncio.get_running_loop().run_in_executor(None, measure)
        while not (await asyncio.wait({measuring}, timeout=_BUFFER_POLL_S))[0]:
            if must_measure_buffers and memory + measure_buffers(box.pid, box.writable) > max_memory:
                return SandboxErrorKind.MEMORY
        current = measuring.result()
        memory = current.memory_bytes
        cpu_s_before = current.cpu_s if cpu_s_before is None else cpu_s_before
        cpu_s = box_usage(box).since(usage_before).cpu_s if CPU in counted else current.cpu_s - cpu_s_before
        if memory > max_memory:
            return SandboxErrorKind.MEMORY
        if PIDS in watched and current.threads > limits.processes + 1:  # 1 for the init process
            return SandboxErrorKind.PROCESSES
        if limits.cpu_s is not None and (cpu_s or 0.0) >= limits.cpu_s:
            return SandboxErrorKind.CPU_TIME
        for _ in range(polls):
            if must_measure_buffers and memory + measure_buffers(box.pid, box.writable) > max_memory:
                return SandboxErrorKind.MEMORY
            await asyncio.sleep(_PROCESS_POLL_S / polls)


def sampled_limits(box: Box) -> tuple[str, ...]:
    """Return the limits of the box as a whole that no control group enforces; the provider measures them instead."""
    return tuple(name for name in (MEMORY, PIDS) if box.group is None or name not in box.group.folders)


def box_usage(box: Box) -> Usage:
    """Return the resources the box has used so far; zero without control groups."""
    return Usage() if box.group is None else box.group.usage()
