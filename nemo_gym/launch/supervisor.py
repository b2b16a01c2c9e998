"""Supervise server processes: start them, explain a failed start, restart crashed processes, stop all of them.

A process whose event loop does not run for too long is ended and restarted like a crashed one. Its heartbeat and the
handler that was running are in shared memory (`process_status`), so that they can be read although the process hangs.
"""

import asyncio
import json
import logging
import math
import os
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from nemo_gym.config.keys import KEYS
from nemo_gym.config.secret_text import mask_text
from nemo_gym.errors import GymError
from nemo_gym.launch.spawners import ZygoteSpawner
from nemo_gym.serve.process_status import STACK_SIGNAL, Crash, StatusReader
from nemo_gym.serve.run_counts import RunCounts

logger = logging.getLogger(__name__)

RESTART_WINDOW = 60.0
MAX_RESTARTS = 5
"""Crashes of unknown cause within RESTART_WINDOW after which a process is restarted."""
MAX_ROLLOUT_RESTARTS = 20
"""Crashes, also those that the request of a known rollout caused: the other rollouts can still be run."""
FIRST_PAUSE = 0.2
MAX_PAUSE = 10.0

TAIL_LINES = 15
"""Number of last lines of a process that an error message shows."""
MAX_LINE_BYTES = 64 * 1024
LAST_LINES_SECONDS = 0.2
"""Longest wait for the last lines of a process that ended."""
CLOSE_SECONDS = 1.0
"""Longest wait for the exit of a lost process to be reported, and for the output of stopped processes to close."""
CHECK_SECONDS = 0.25
"""Interval between two checks of the heartbeats."""
STACK_SECONDS = 0.25
"""Wait for a blocked process to write its stacks, which takes a millisecond."""

LineCallback = Callable[[str, str], None]
"""Called with the name of a process and a line it printed."""


class ServerDidNotStart(GymError, RuntimeError):
    """A server process ended, or did not respond, before it was ready."""

    exit_status = 3


class ProcessLog(asyncio.Protocol):
    """The log output of a process with secrets masked: written to a file, passed on by line, last lines kept."""

    def __init__(self, name: str, path: Path | None, on_line: LineCallback | None = None) -> None:
        self._name = name
        self._file: BinaryIO | None = path.open("ab") if path else None
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._incomplete_line = b""
        self._closed: asyncio.Future[None] | None = None

    async def follow(self, fd: int) -> "asyncio.Future[None]":
        """Start reading the log output from a pipe; the returned future is done when the last writer closes it."""
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        await loop.connect_read_pipe(lambda: self, os.fdopen(fd, "rb", 0))
        return self._closed

    def data_received(self, data: bytes) -> None:
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        if len(self._incomplete_line) > MAX_LINE_BYTES:
            lines, self._incomplete_line = [*lines, self._incomplete_line], b""
        for line in lines:
            self._add_line(line)
        if self._file:
            self._file.flush()

    def _add_line(self, line: bytes, ending: bytes = b"\n") -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        masked = mask_text(text)
        if self._file:
            self._file.write((line if masked == text else masked.encode()) + ending)
        self._tail.append(masked)
        if self._on_line:
            self._on_line(self._name, masked)

    def tail(self) -> str:
        """Return the last lines, for an error message."""
        return "\n".join(self._tail)

    def connection_lost(self, exc: Exception | None = None) -> None:  # noqa: ARG002 - the protocol's signature
        if self._incomplete_line:
            self._add_line(self._incomplete_line, b"")
            self._incomplete_line = b""
        if self._file:
            self._file.close()
            self._file = None
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)


@dataclass
class ServerUnit:
    """One process to keep running: a cell or a single server."""

    name: str
    request: Mapping[str, Any]
    """The spawn request, which the process receives."""
    spawner: ZygoteSpawner
    log_path: Path | None = None
    ends_when_ready: bool = False
    """True in a dry run: the process exits with status 0 instead of serving."""
    passed: Sequence[int] = ()
    """Further descriptors for the process."""
    max_blocked_seconds: float = math.inf
    """Time without a heartbeat after which the process is ended."""
    pid: int | None = None
    is_lost: bool = False
    """True if the process ended and will not be restarted."""
    log: ProcessLog | None = None
    ready: "asyncio.Future[None] | None" = None
    crashes: deque[tuple[float, bool]] = field(default_factory=deque)
    """The crashes in the last RESTART_WINDOW seconds: when, and whether the rollout that caused it is known."""
    status: StatusReader | None = None
    earlier_runs: RunCounts = field(default_factory=RunCounts)
    """The `/run` requests of processes of this unit that have ended."""
    starts: int = 0
    """Number of processes that were started for this unit, one after the other."""
    ends: int = 0
    """Number of those that ended."""
    last_crash: Crash | None = None
    blocked: Crash | None = None
    """Why the running process is being ended; None if it is not blocked."""

    @property
    def run_counts(self) -> RunCounts:
        """The `/run` requests of all processes of this unit."""
        current = RunCounts.from_status(self.status)
        return self.earlier_runs + (current if self.pid is not None else current.without_in_flight())

    async def wait_for_crash(self, start: int) -> Crash | None:
        """Wait for the end of the `start`-th process and return the last crash; None if it runs after CLOSE_SECONDS."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self.ends < start:  # noqa: ASYNC110 - the exit is reported a moment after the lost connection
                    await asyncio.sleep(0.01)
        return self.last_crash if self.ends >= start else None

    def fail(self, problem: str) -> None:
        """Fail the start of the process with `problem`; no effect if it is ready or has failed."""
        if self.ready is not None and not self.ready.done():
            self.is_lost = True
            fix = f"read {self.log_path}" if self.log_path else None
            problem = problem.removeprefix(f"{self.name}: ")  # an error of the server names it, too
            self.ready.set_exception(ServerDidNotStart(problem, where=self.name, fix=fix))


def likely_cause(status: int, tail: str) -> str:
    """Return the likely reason why a process ended, from its exit status and last lines."""
    if status == -signal.SIGKILL:
        return "it was killed, most often because the machine ran out of memory"
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    for mark in ("ModuleNotFoundError", "ImportError", "SyntaxError", "PermissionError", "ValidationError"):
        lines = [line for line in tail.splitlines() if mark in line]
        if lines:
            return lines[-1].strip()
    return f"it ended with status {status}"


class Supervisor:
    """The processes of one run."""

    def __init__(
        self,
        *,
        on_line: LineCallback | None = None,
        on_end: Callable[[ServerUnit], None] | None = None,
        on_lost: Callable[[ServerUnit], None] | None = None,
        start_timeout: float = 600.0,
    ) -> None:
        """`on_line` is called with every line that a process prints, `on_end` with every unit whose process ended.

        `on_lost` is called with every unit that was ready once and will not be restarted.
        """
        self._on_line = on_line
        self._on_end = on_end
        self._on_lost = on_lost
        self._start_timeout = start_timeout
        self._units: dict[str, ServerUnit] = {}
        self._by_pid: dict[int, ServerUnit] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._outputs: set[asyncio.Future[None]] = set()
        self._early_exits: dict[int, int] = {}
        """Exit status of each process whose exit was reported before its start, by process id."""
        self._stopping = False
        self._is_watching = False
        self._all_ended = asyncio.Event()

    @property
    def units(self) -> list[ServerUnit]:
        return list(self._units.values())

    async def start(self, units: list[ServerUnit]) -> None:
        """Start all units concurrently and return when every unit is ready.

        Raises:
            ServerDidNotStart: a unit failed; the error has the last lines and the likely cause of the first failure.
        """
        self._units.update({unit.name: unit for unit in units})
        if not self._is_watching:
            self._is_watching = True
            self._run_in_background(self._watch())
        tasks = [asyncio.create_task(self._start(unit)) for unit in units]
        try:
            async with asyncio.timeout(self._start_timeout):
                await asyncio.gather(*tasks)
        except TimeoutError:
            not_ready = [unit for unit in units if unit.ready is None or not unit.ready.done()]
            log = not_ready[0].log
            raise ServerDidNotStart(
                f"not ready after {self._start_timeout:g} s; last lines:\n{log.tail() if log else ''}",
                where=", ".join(unit.name for unit in not_ready),
                fix="read the log, or raise server_start_timeout_seconds",
            ) from None
        finally:
            for task in tasks:
                task.cancel()

    def add(self, unit: ServerUnit) -> None:
        """Start a unit in the background; it is lost if it does not start."""
        self._units[unit.name] = unit
        self._run_in_background(self._start_or_give_up(unit))

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """Check the heartbeats periodically; end every process that is blocked for its `max_blocked_seconds`."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for unit in self.units:
                if unit.pid is not None and unit.status is not None and unit.blocked is None:
                    seconds = unit.status.check()
                    if seconds >= unit.max_blocked_seconds:
                        unit.blocked = Crash(f"its event loop did not run for {seconds:.0f} s")
                        self._run_in_background(self._end_blocked(unit, unit.pid, unit.status))

    async def _end_blocked(self, unit: ServerUnit, pid: int, status: StatusReader) -> None:
        """Read the stacks of a blocked process and kill it, unless it has recovered."""
        status.begin_stacks()
        if self._signal(unit, pid, STACK_SIGNAL):
            await asyncio.sleep(STACK_SECONDS)
        if unit.pid != pid or unit.blocked is None:
            return
        if status.check() == 0.0:
            unit.blocked = None
            return
        unit.blocked = replace(unit.blocked, handler=status.blocking_handler(), frames=status.frames())
        self._signal(unit, pid, signal.SIGKILL)

    def _signal(self, unit: ServerUnit, pid: int, number: int) -> bool:
        """Signal the process `pid` of a unit; return False if the unit has another process or none.

        The children of the process are not signalled: it could mistake their end for a result.
        """
        if unit.pid != pid:
            return False
        with suppress(ProcessLookupError):  # its exit will be reported
            os.kill(pid, number)
        return True

    async def _start(self, unit: ServerUnit) -> None:
        """Start the process of a unit, follow its output, and wait until it is ready or fails."""
        output_read, output_write = os.pipe()
        ready_read, ready_write = os.pipe()
        unit.log = ProcessLog(unit.name, unit.log_path, self._on_line)
        unit.ready = asyncio.get_running_loop().create_future()
        closed = await unit.log.follow(output_read)
        self._outputs.add(closed)
        closed.add_done_callback(self._outputs.discard)
        if unit.status is not None:
            unit.earlier_runs += RunCounts.from_status(unit.status).without_in_flight()
            unit.status.close()
        unit.status, unit.blocked = StatusReader(), None
        try:
            passed = (ready_write, unit.status.fd, *unit.passed)
            pid = await unit.spawner.spawn(unit.request, output_write, *passed)
        except BaseException:
            os.close(ready_read)
            raise
        finally:
            os.close(output_write)
            os.close(ready_write)
        unit.pid = pid
        unit.starts += 1
        self._by_pid[pid] = unit
        if pid in self._early_exits:
            self.handle_exit(pid, self._early_exits.pop(pid))
        report = await self._read_report(ready_read)
        if report.get("ready") and not unit.ready.done():
            unit.ready.set_result(None)
        elif report.get("failed"):
            unit.fail(report["failed"])
        # Without a report the process has ended, and `handle_exit` completes the future.
        await unit.ready

    async def _read_report(self, fd: int) -> dict[str, Any]:
        """Read the line of JSON with which a process reports its start; return {} if it exits without a report."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
        )
        try:
            line = await reader.readline()
        finally:
            transport.close()
        return dict(json.loads(line)) if line else {}

    def handle_exit(self, pid: int, status: int) -> None:
        """Handle the exit of a process: fail its start if it was not ready, restart it, or finish stopping."""
        unit = self._by_pid.pop(pid, None)
        if unit is None:
            self._early_exits[pid] = status
            return
        unit.pid = None
        unit.ends += 1
        unit.last_crash = self._crash(unit, status)
        if self._on_end is not None:
            self._on_end(unit)
        if self._stopping:
            if not self._by_pid:
                self._all_ended.set()
            return
        self._run_in_background(self._recover(unit, status))

    def _crash(self, unit: ServerUnit, status: int) -> Crash:
        """Return what is known about the end of a process; the shared memory still has its last handlers."""
        if unit.blocked is not None and (unit.blocked.handler or unit.blocked.frames):
            return unit.blocked
        crash = unit.blocked or Crash(likely_cause(status, unit.log.tail() if unit.log else ""))
        if unit.status is None:
            return crash
        return replace(crash, handler=unit.status.culprit(), frames=unit.status.fatal_frames())

    async def _recover(self, unit: ServerUnit, status: int) -> None:
        """Restart a process that was ready; otherwise complete its start, with success only in a dry run."""
        assert unit.log is not None and unit.ready is not None
        if unit.is_lost:
            return
        if self._outputs:
            await asyncio.wait(list(self._outputs), timeout=LAST_LINES_SECONDS)  # last lines may still be in a pipe
        tail = unit.log.tail()
        if unit.ready.done():
            await self._restart(unit, tail)
        elif status == 0 and unit.ends_when_ready:
            unit.ready.set_result(None)
        else:
            unit.fail(f"{likely_cause(status, tail)}; last lines:\n{tail}")

    async def _restart(self, unit: ServerUnit, details: str) -> None:
        """Restart a unit after a pause, which grows with crashes of unknown cause; give up after too many crashes."""
        now, crash = asyncio.get_running_loop().time(), unit.last_crash
        unit.crashes.append((now, bool(crash and crash.handler and crash.handler.rollout)))
        while now - unit.crashes[0][0] > RESTART_WINDOW:
            unit.crashes.popleft()
        count = len(unit.crashes)
        unexplained = sum(not has_rollout for _, has_rollout in unit.crashes)
        if unexplained > MAX_RESTARTS or count > MAX_ROLLOUT_RESTARTS:
            reason = f"{crash}: {details}" if crash and crash.handler else details
            logger.error("%s crashed %d times in a minute and will not be restarted: %s", unit.name, count, reason)
            self._give_up(unit)
            return
        pause = min(MAX_PAUSE, FIRST_PAUSE * 2 ** max(0, unexplained - 1))
        logger.warning("%s ended (%s); restarting in %.1f s", unit.name, crash, pause)
        await asyncio.sleep(pause)
        if not self._stopping:
            await self._start_or_give_up(unit)

    async def _start_or_give_up(self, unit: ServerUnit) -> None:
        """Start a unit while the others run; restart it if its process crashes, give it up after another failure."""
        try:
            async with asyncio.timeout(self._start_timeout):
                await self._start(unit)
        except (GymError, TimeoutError) as problem:
            reason = problem or "it was not ready in time"
            if isinstance(problem, GymError) and unit.pid is None and not self._stopping:
                unit.is_lost = False  # the process ended while it was starting: one more crash
                await self._restart(unit, str(reason))
                return
            logger.error("%s could not be started: %s", unit.name, reason)
            if unit.pid is not None:
                self._signal(unit, unit.pid, signal.SIGKILL)
            self._give_up(unit)

    def _give_up(self, unit: ServerUnit) -> None:
        unit.is_lost = True
        if self._on_lost is not None:
            self._on_lost(unit)

    async def stop(self, grace: float = KEYS["shutdown_timeout_seconds"].default) -> None:
        """Send SIGTERM to every process, kill the remaining ones after `grace` seconds, and end the zygote."""
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()
        for pid, unit in self._by_pid.items():
            unit.spawner.signal(pid, signal.SIGTERM)
        if self._by_pid:
            try:
                async with asyncio.timeout(grace):
                    await self._all_ended.wait()
            except TimeoutError:
                names = ", ".join(unit.name for unit in self._by_pid.values())
                logger.warning("%s did not end within %g s and is killed (shutdown_timeout_seconds)", names, grace)
                for pid, unit in self._by_pid.items():
                    unit.spawner.signal(pid, signal.SIGKILL)
        for spawner in {unit.spawner for unit in self._units.values()}:
            await spawner.close()
        for unit in self._units.values():
            if unit.status is not None:
                unit.status.close()
                unit.status = None
        if self._outputs:
            await asyncio.wait(list(self._outputs), timeout=CLOSE_SECONDS)
