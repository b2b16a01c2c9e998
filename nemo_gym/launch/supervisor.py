"""Keeps a set of server processes up: starts them, says why one did not come, restarts what crashed, ends them all."""

import asyncio
import json
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.errors import GymError
from nemo_gym.launch.logs import Log, follow
from nemo_gym.launch.spawn import Spawner

logger = logging.getLogger(__name__)

RESTART_WINDOW = 60.0
MOST_RESTARTS = 5
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0


class ServerDidNotStart(GymError, RuntimeError):
    """A server process ended, or stayed silent, before it was ready."""

    exit_status = 3


@dataclass
class Unit:
    """One process to keep up: a cell, or a server of its own."""

    name: str
    request: Mapping[str, Any]
    spawner: Spawner
    log_path: Path | None = None
    pid: int | None = None
    started: float = 0.0
    given_up: bool = False
    log: Log | None = None
    ready: "asyncio.Future[None] | None" = None
    crashes: deque[float] = field(default_factory=deque)


def likely_cause(status: int, tail: str) -> str:
    """A sentence about why a process ended, as far as its status and last words tell."""
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
        watch: Callable[[str, str], None] | None = None,
        ended: Callable[[Unit], None] | None = None,
        start_timeout: float = 600.0,
    ) -> None:
        """`watch` gets every line a process prints, `ended` every unit whose process has ended, however it did."""
        self._watch = watch
        self._ended = ended
        self._start_timeout = start_timeout
        self._units: dict[str, Unit] = {}
        self._by_pid: dict[int, Unit] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._outputs: set[asyncio.Future[None]] = set()
        self._early: dict[int, int] = {}
        self._stopping = False
        self._all_gone = asyncio.Event()

    @property
    def units(self) -> list[Unit]:
        return list(self._units.values())

    async def bring_up(self, units: list[Unit]) -> None:
        """Start all at once and return when every one is ready.

        Raises:
            ServerDidNotStart: the first that did not come up, with its last lines and the likely cause.
        """
        self._units.update({unit.name: unit for unit in units})
        starting = [asyncio.create_task(self._start(unit)) for unit in units]
        try:
            async with asyncio.timeout(self._start_timeout):
                await asyncio.gather(*starting)
        except TimeoutError:
            late = [unit for unit in units if unit.ready is None or not unit.ready.done()]
            names = ", ".join(unit.name for unit in late)
            raise ServerDidNotStart(
                f"not ready after {self._start_timeout:g} s; last lines:\n{late[0].log.tail() if late[0].log else ''}",
                where=names,
                fix="look at the log, or raise the start timeout",
            ) from None
        finally:
            for task in starting:
                task.cancel()

    async def _start(self, unit: Unit) -> None:
        loop = asyncio.get_running_loop()
        output_read, output_write = os.pipe()
        ready_read, ready_write = os.pipe()
        unit.log = Log(unit.name, unit.log_path, self._watch)
        unit.ready = loop.create_future()
        finished = await follow(unit.log, output_read)
        self._outputs.add(finished)
        finished.add_done_callback(self._outputs.discard)
        try:
            pid = await unit.spawner.spawn(unit.request, output_write, ready_write)
        except BaseException:
            os.close(ready_read)
            raise
        finally:
            os.close(output_write)
            os.close(ready_write)
        unit.pid, unit.started = pid, loop.time()
        self._by_pid[pid] = unit
        if pid in self._early:
            self.exited(pid, self._early.pop(pid))
        report = await self._report(ready_read)
        if report.get("ready"):
            if not unit.ready.done():
                unit.ready.set_result(None)
        else:
            await self._explain(unit, report)
        await unit.ready

    async def _report(self, fd: int) -> dict[str, Any]:
        """What the child says of itself: one JSON line, or nothing when it died first."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
        )
        try:
            line = await reader.readline()
        finally:
            transport.close()
        return dict(json.loads(line)) if line else {}

    async def _explain(self, unit: Unit, report: Mapping[str, Any]) -> None:
        """Turn a failed start into an error that says why."""
        assert unit.ready is not None
        if report.get("failed") and not unit.ready.done():
            unit.ready.set_exception(
                ServerDidNotStart(report["failed"], where=unit.name, fix=report.get("fix") or self._log_hint(unit))
            )
        # Without a report the exit status is on its way and completes the future.

    def _log_hint(self, unit: Unit) -> str | None:
        return f"read {unit.log_path}" if unit.log_path else None

    def exited(self, pid: int, status: int) -> None:
        """A process ended: fail its start, restart it, or count it as gone."""
        unit = self._by_pid.pop(pid, None)
        if unit is None:
            self._early[pid] = status
            return
        unit.pid = None
        if self._ended is not None:
            self._ended(unit)
        if self._stopping:
            if not self._by_pid:
                self._all_gone.set()
            return
        task = asyncio.create_task(self._after_exit(unit, status))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _after_exit(self, unit: Unit, status: int) -> None:
        assert unit.log is not None and unit.ready is not None
        if self._outputs:
            await asyncio.wait(list(self._outputs), timeout=0.2)  # its last words may still be in the pipe
        tail = unit.log.tail()
        if not unit.ready.done():
            unit.ready.set_exception(
                ServerDidNotStart(
                    f"{likely_cause(status, tail)}; last lines:\n{tail}", where=unit.name, fix=self._log_hint(unit)
                )
            )
            return
        await self._restart(unit, status, tail)

    async def _restart(self, unit: Unit, status: int, tail: str) -> None:
        now = asyncio.get_running_loop().time()
        unit.crashes.append(now)
        while unit.crashes and now - unit.crashes[0] > RESTART_WINDOW:
            unit.crashes.popleft()
        if len(unit.crashes) > MOST_RESTARTS:
            unit.given_up = True
            logger.error("%s crashed %d times in a minute and stays down: %s", unit.name, len(unit.crashes), tail)
            return
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (len(unit.crashes) - 1))
        logger.warning("%s ended (%s); restarting in %.1f s", unit.name, likely_cause(status, tail), pause)
        await asyncio.sleep(pause)
        if self._stopping:
            return
        try:
            await self._start(unit)
        except GymError as problem:
            unit.given_up = True
            logger.error("%s did not come back and stays down: %s", unit.name, problem)

    async def stop(self, grace: float = 5.0) -> None:
        """Ask every process to finish, then make sure; nothing is left when this returns."""
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()
        for pid, unit in self._by_pid.items():
            unit.spawner.signal(pid, signal.SIGTERM)
        if self._by_pid:
            try:
                async with asyncio.timeout(grace):
                    await self._all_gone.wait()
            except TimeoutError:
                for pid, unit in self._by_pid.items():
                    unit.spawner.signal(pid, signal.SIGKILL)
        for spawner in {id(unit.spawner): unit.spawner for unit in self._units.values()}.values():
            await spawner.close()
        if self._outputs:
            await asyncio.wait(list(self._outputs), timeout=1.0)
