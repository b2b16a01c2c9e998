"""The state of a running collection in a file next to its output, for `gym view` in another process.

The output has only what ended. The file has what runs: counts, rate, time left, and what the oldest rollouts wait for.
It is replaced every few seconds and removed at the end; a shorter run has no live file.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.cli.terminal.live import WaitQuery
from nemo_gym.cli.terminal.progress import Progress
from nemo_gym.rollouts.run_files import live_path_for
from nemo_gym.transport.endpoint_waits import rejection_status, split_reason
from nemo_gym.wire.stored_rollout import RolloutId

logger = logging.getLogger("nemo_gym.rollouts")

WRITE_SECONDS = 2.0
REPLY_SECONDS = 1.5
OLDEST = 12
MAX_QUERIED = 1024
"""Most rollouts in flight whose calls are queried, the oldest first."""
MAX_MINUTES = 24 * 60


@asynccontextmanager
async def live_file(progress: Progress, output: Path, wait_query: WaitQuery | None = None) -> AsyncIterator[None]:
    """Keep the live file of a run up to date while the block runs."""
    writer = LiveFile(progress, live_path_for(output), wait_query)
    task = asyncio.create_task(writer.keep_writing())
    try:
        yield
    finally:
        task.cancel()
        (problem,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(problem, Exception):  # the run has its results; it does not fail because of a display
            logger.warning("%s was not kept up to date: %r", writer.path, problem)
        writer.remove()


class LiveFile:
    """Writes the state of a collection."""

    def __init__(self, progress: Progress, path: Path, wait_query: WaitQuery | None = None) -> None:
        self.path = path
        self._progress = progress
        self._wait_query = wait_query
        self._started_at = datetime.now(UTC)
        self._start = time.monotonic()
        self._minutes: deque[int] = deque(maxlen=MAX_MINUTES)
        """Number of rollouts that ended in each minute since the start, the last one not complete."""
        self._rejected_minutes: set[int] = set()
        """Minutes in which rollouts waited because an endpoint had rejected calls."""
        self._skipped_minutes = self._counted = 0
        self._lock = threading.Lock()
        self._is_removed = False

    async def keep_writing(self) -> None:
        """Write the file periodically until cancelled; a problem with the disk ends only the writing."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            if self._progress.plan is None:
                continue
            content = self.content(await self._awaited_calls())
            try:
                await asyncio.to_thread(self._write, orjson.dumps(content))
            except OSError as error:
                logger.debug("%s: %s", self.path, error)
                return

    def content(self, awaited_calls: Mapping[RolloutId, str]) -> dict[str, Any]:
        """Return the state as JSON data."""
        progress, tally = self._progress, self._progress.tally
        progress.take_sample()
        self._count_minute()
        running, left = len(progress.in_flight), progress.seconds_left()
        seconds = time.monotonic() - self._start
        calls = self._calls_in_flight(awaited_calls)
        rejections = _count_rejections(calls.values())
        if rejections:
            self._rejected_minutes.add(self._skipped_minutes + len(self._minutes) - 1)
        rates = [rate for rate in (progress.rate.per_second(), tally.total / max(seconds, 1e-9)) if rate > 0]
        content: dict[str, Any] = {
            "updated_at": _now(),
            "started_at": self._started_at.isoformat(timespec="seconds"),
            "seconds": seconds,
            "planned": progress.total,
            "done": progress.ended_count,
            "running": running,
            "queued": progress.queue_length,
            "rate": {"per_minute": 60 * progress.rate.per_second(), **(self._earlier_rate() if rejections else {})},
            "minutes": [
                {"minute": minute, "done": count, **({"rejected": True} if minute in self._rejected_minutes else {})}
                for minute, count in enumerate(self._minutes, start=self._skipped_minutes)
            ],
            "rejections": rejections,
            "oldest": [
                {
                    "task": rollout.key.task,
                    "rollout": rollout.key.rollout,
                    "agent": rollout.agent,
                    "seconds": rollout.seconds,
                    **_wait_facts(calls[rollout.key.rollout_id]),
                }
                for rollout in progress.in_flight.oldest(OLDEST)
            ],
            "waiting": Counter(split_reason(call)[0] for call in calls.values()),
        }
        if left is not None and rates:
            queued = progress.queue_length or 0
            tail = max(0.0, left - queued / max(rates[0], 1e-9))
            bounds = sorted((queued / rate + tail) for rate in (1.25 * max(rates), 0.8 * min(rates)))
            content["left"] = {"seconds": left, "low": min(bounds[0], left), "high": max(bounds[1], left)}
        return content

    def _calls_in_flight(self, awaited_calls: Mapping[RolloutId, str]) -> dict[RolloutId, str]:
        """Return the calls that the oldest rollouts in flight wait for, with the reason of the wait if there is one."""
        return {
            rollout.key.rollout_id: awaited_calls.get(rollout.key.rollout_id) or rollout.waiting_for or ""
            for rollout in self._progress.in_flight.oldest(MAX_QUERIED)
        }

    def _earlier_rate(self) -> dict[str, float]:
        """Return the mean rate of the complete minutes without rejections; empty without such minutes."""
        complete = enumerate(list(self._minutes)[:-1], start=self._skipped_minutes)
        counts = [count for minute, count in complete if minute not in self._rejected_minutes]
        return {"earlier_per_minute": sum(counts) / len(counts)} if counts else {}

    def _count_minute(self) -> None:
        """Add the rollouts that ended since the last call to the current minute."""
        minute = int((time.monotonic() - self._start) // 60)
        while self._skipped_minutes + len(self._minutes) <= minute:
            self._skipped_minutes += len(self._minutes) == MAX_MINUTES
            self._minutes.append(0)
        total = self._progress.tally.total
        self._minutes[-1] += total - self._counted
        self._counted = total

    async def _awaited_calls(self) -> Mapping[RolloutId, str]:
        """Return the calls that the rollouts wait for; empty if the servers do not answer in time."""
        rollouts = self._progress.in_flight.oldest(MAX_QUERIED)
        if self._wait_query is None or not rollouts:
            return {}
        with contextlib.suppress(Exception):  # a server may be restarting; the next query may succeed
            async with asyncio.timeout(REPLY_SECONDS):
                return await self._wait_query([rollout.key.rollout_id for rollout in rollouts])
        return {}

    def remove(self) -> None:
        """Remove the file. A write that a thread has begun ends first, and later ones do nothing."""
        with self._lock, suppress(OSError):
            self._is_removed = True
            self.path.unlink(missing_ok=True)

    def _write(self, content: bytes) -> None:
        with self._lock:
            if not self._is_removed:
                with whole_file(self.path) as file:
                    file.write(content)


def _wait_facts(call: str) -> dict[str, str]:
    server_path, reason = split_reason(call)
    return {"waits_for": server_path, **({"reason": reason} if reason else {})}


def _count_rejections(calls: Iterable[str]) -> list[dict[str, Any]]:
    """Return by server and status how many rollouts wait because the endpoint rejected calls, most rollouts first."""
    counts: Counter[tuple[str, int]] = Counter()
    for text in calls:
        call, reason = split_reason(text)
        if status := rejection_status(reason):
            counts[call.partition(" ")[0], status] += 1
    return [{"server": server, "status": status, "rollouts": n} for (server, status), n in counts.most_common()]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
