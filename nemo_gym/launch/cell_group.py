"""The cells of a run: calls to their instances, the causes of their crashes, and quarantine.

An instance that crashes or blocks a cell is found by the handler that was running. After `QUARANTINE_CRASHES` crashes
it gets a separate cell, so that it no longer stops the other servers: restarted cells do not host it and call it
over a link. A cell that still hosts it keeps its sessions until it crashes itself.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_gym.errors import ServerUnreachable
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.launch.ports import Listeners, listen_on_unix_socket, new_unix_name, refuse_connections, unix_name
from nemo_gym.launch.supervisor import CHECK_SECONDS, CLOSE_SECONDS, ServerUnit, Supervisor
from nemo_gym.serve.process_status import Crash, RunningHandler
from nemo_gym.transport import deadlines
from nemo_gym.transport.cell_link import CellLink, LoopLinks, RemoteInstance
from nemo_gym.transport.event_loop import PerLoop
from nemo_gym.wire.call_reply import Call, Reply

logger = logging.getLogger(__name__)

QUARANTINE_CRASHES = 2
BLOCKED_SECONDS = 1.0
"""A call that is cancelled while its cell has been blocked for this long names the server that blocks it."""
MAX_REMEMBERED_CRASHES = 100

MakeUnit = Callable[[str, Mapping[str, Any]], ServerUnit]
"""Makes a unit from its name and the spawn request of its process."""


class CellGroup:
    """The cells of one run, numbered from 0; the cells of quarantined instances have the numbers after them."""

    def __init__(self, instances: Sequence[Instance], listeners: Listeners, supervisor: Supervisor) -> None:
        self._instances = {instance.name: instance for instance in instances}
        self._hosted = [instance.name for instance in instances if instance.hosting == "cell"]
        self._listeners = listeners
        self._supervisor = supervisor
        self.addresses = [unix_name(listener) for listener in listeners.cells] + [new_unix_name() for _ in self._hosted]
        self.units: list[ServerUnit] = []
        """The shared cells; each of them runs all hosted instances, except those in quarantine."""
        self._links: list[tuple[CellLink, ServerUnit]] = []
        self._quarantined: dict[str, tuple[CellLink, ServerUnit]] = {}
        self._crashes: Counter[str] = Counter()
        self._token = ""
        self.lost_instances: set[str] = set()
        """Instances that no process serves or will serve."""
        self._ended: deque[tuple[float, ServerUnit, Crash]] = deque(maxlen=MAX_REMEMBERED_CRASHES)
        """When and why processes ended, oldest first."""
        self._end_reported = asyncio.Event()

    def create_units(self, make_unit: MakeUnit, token: str) -> list[ServerUnit]:
        """Create the units of the shared cells and the links to them; `token` is the run token that opens a link."""
        self._make_unit, self._token = make_unit, token
        for number, listener in enumerate(self._listeners.cells):
            name = f"cell {number}"
            self.units.append(make_unit(name, {"kind": "cell", "cell": number}))
            self._links.append((CellLink(unix_name(listener), token, name), self.units[-1]))
        return self.units

    @property
    def links(self) -> list[CellLink]:
        """The links to all cells that may answer."""
        return [link for link, unit in (*self._links, *self._quarantined.values()) if not unit.is_lost]

    def close(self) -> None:
        for link, _ in (*self._links, *self._quarantined.values()):
            link.close()

    def links_to(self, instance: str) -> Sequence[tuple[CellLink, ServerUnit]]:
        """Return the links to the cells that host an instance, and the units of the cells.

        Raises:
            ServerUnreachable: no such cell is left.
        """
        if instance in self.lost_instances:
            raise ServerUnreachable("ended and will not be restarted", where=instance, fix="read its log")
        quarantined = self._quarantined.get(instance)
        return [quarantined] if quarantined else self._links

    def handle_end(self, unit: ServerUnit) -> None:
        """Find the culprit of an ended process; quarantine an instance that ended QUARANTINE_CRASHES shared cells."""
        crash = unit.last_crash
        if crash is None:
            return
        own_name = unit.request.get("instance")
        handler, frames = crash.handler, [frame for frame in crash.frames if self._instance_at(frame.path)]
        if handler is None or not handler.server:  # outside any request: a thread or a background task of a server
            rollout = handler.rollout if handler else None
            name = own_name or (self._instance_at(frames[0].path) if frames else None)
            handler = RunningHandler(name, frames[0].function, rollout) if name and frames else None
        crash = unit.last_crash = replace(crash, handler=handler, frames=frames)
        self._ended.append((time.monotonic(), unit, crash))
        self._end_reported.set()
        self._end_reported = asyncio.Event()
        if handler is None or unit not in self.units or handler.server not in self._hosted:
            return
        self._crashes[handler.server] += 1
        if handler.server not in self._quarantined and self._crashes[handler.server] >= QUARANTINE_CRASHES:
            unit.crashes.clear()  # the restarted cell does not host the instance that crashed it
            self._quarantine(handler.server)

    async def find_crashes(self, instance: str, since: float) -> list[Crash]:
        """Return the crashes of processes that serve an instance, reported after the time `since`.

        A caller may learn of a lost connection before the exit of the process is reported, so wait for the report: for
        CLOSE_SECONDS, or while a handler blocks such a process, because it will recover or be ended.
        """
        limit = time.monotonic() + CLOSE_SECONDS
        while True:
            crashes = [crash for at, unit, crash in self._ended if at >= since and self._serves(unit, instance)]
            if crashes or (time.monotonic() >= limit and not self.blocking_handler(instance)):
                return crashes
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._end_reported.wait()

    def blocking_handler(self, instance: str) -> RunningHandler | None:
        """Return the handler that has blocked a process which serves an instance for BLOCKED_SECONDS; None without one.

        A process that is stopped from outside is blocked, but by no handler.
        """
        for unit in self._supervisor.units:
            if unit.pid is None or unit.status is None or not self._serves(unit, instance):
                continue
            if unit.status.seconds_blocked > BLOCKED_SECONDS and (handler := unit.status.handler()) is not None:
                return handler
        return None

    def is_suspended(self, instance: str) -> bool:
        """Return whether no process that serves an instance has run for BLOCKED_SECONDS, without a running handler."""
        units = [unit for unit in self._supervisor.units if unit.pid is not None and self._serves(unit, instance)]
        statuses = [unit.status for unit in units if unit.status is not None]
        return bool(statuses) and all(
            status.seconds_blocked > BLOCKED_SECONDS and status.handler() is None for status in statuses
        )

    def _serves(self, unit: ServerUnit, instance: str) -> bool:
        """Return whether the process of a unit may answer calls to an instance."""
        name = unit.request.get("instance")  # None for a shared cell
        return name == instance if name is not None else instance in self._hosted

    def _instance_at(self, path: str) -> str | None:
        """Return the name of the first instance whose folder contains the file `path`; None without one."""
        return next((name for name, one in self._instances.items() if Path(path).is_relative_to(one.folder)), None)

    def _quarantine(self, instance: str) -> None:
        """Start a separate cell for an instance; the shared cells no longer host it after their next start."""
        logger.warning(
            "%s ended a cell %d times; it now runs in a separate process, so that the other servers go on",
            instance,
            QUARANTINE_CRASHES,
        )
        number = len(self._listeners.cells) + self._hosted.index(instance)
        listener = listen_on_unix_socket(self.addresses[number])
        self._listeners.quarantine[instance] = listener
        unit = self._make_unit(instance, {"kind": "cell", "cell": number, "instance": instance})
        unit.passed = (listener.fileno(),)
        self._quarantined[instance] = CellLink(self.addresses[number], self._token, instance), unit
        cell_numbers = {name: one.request["cell"] for name, (_, one) in self._quarantined.items()}
        for cell in (*self.units, *(one for _, one in self._quarantined.values())):
            cell.request = {**cell.request, "quarantined": cell_numbers}
        self._supervisor.add(unit)

    def handle_lost(self, unit: ServerUnit) -> None:
        """Refuse calls to a unit that will not be restarted, so that callers fail at once instead of waiting.

        Add the instances that no other unit serves to `lost_instances`.
        """
        name = unit.request.get("instance")  # None for a shared cell
        if name in self._quarantined:
            refuse_connections(self._listeners.quarantine[name])
        elif unit in self.units:
            refuse_connections(self._listeners.cells[unit.request["cell"]])
            self._links = [pair for pair in self._links if pair[1] is not unit]
        if name is not None:
            workers = [one for one in self._supervisor.units if one.request.get("instance") == name]
            lost = [name] if all(worker.is_lost for worker in workers) else []
        else:
            lost = [] if self._links else [one for one in self._hosted if one not in self._quarantined]
        for instance in lost:
            self.lost_instances.add(instance)
            refuse_connections(self._listeners.instances[instance])


class CellInstance(RemoteInstance):
    """An instance that is hosted in cells, for calls of the process that runs the cells.

    The error of a call that gets no answer names the server that ended or blocks the cell.
    """

    def __init__(self, instance: str, cells: CellGroup) -> None:
        super().__init__(instance, ())
        self._cells = cells

    def _own_links(self) -> Sequence[tuple[CellLink, ServerUnit]]:
        """Return the links of the running loop to the cells, and the units of the cells."""
        return self._cells.links_to(self._instance)

    async def handle(self, call: Call, alarm: deadlines.Alarm | None = None) -> Reply:  # noqa: ARG002 - signature of `Handle`
        """Send a call over the link with the fewest calls in flight."""
        link, unit = min(self._own_links(), key=_calls_in_flight)
        start = unit.starts + (unit.pid is None)  # while it restarts, the next process answers
        try:
            return await link.send(self._instance, call)
        except ServerUnreachable as error:
            crash = await unit.wait_for_crash(start)
            if crash is None:
                raise
            server = crash.handler.server if crash.handler else unit.name
            raise ServerUnreachable(f"{unit.name} ended before it answered: {crash}", where=server) from error
        except asyncio.CancelledError:
            if unit.status is not None and unit.status.seconds_blocked > BLOCKED_SECONDS:
                handler = unit.status.handler()
                if handler is not None:
                    deadlines.note_awaited_server(handler.server)
            raise


class AnyLoopInstance(CellInstance):
    """An instance that is hosted in cells, for calls from event loops other than the run's.

    Every loop has separate links, so tens of thousands of calls need no further sockets.
    """

    def _own_links(self) -> Sequence[tuple[CellLink, ServerUnit]]:
        own_links = _loop_links.of(asyncio.get_running_loop())
        return [(own_links.link(link), unit) for link, unit in self._cells.links_to(self._instance)]


def _calls_in_flight(pair: tuple[CellLink, ServerUnit]) -> int:
    return pair[0].in_flight


_loop_links = PerLoop(LoopLinks)
