"""`RolloutStream`: start the rollouts of rows a bounded number at a time and return them as they end."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from nemo_gym.rollouts.outcome import Job
from nemo_gym.training.admission import Admission
from nemo_gym.training.types import Rollout
from nemo_gym.wire.stored_rollout import RolloutId, Row

Rows = Iterable[Row] | AsyncIterable[Row]

CLOSED = "the stream was closed"


@dataclass(eq=False, slots=True)
class Launch:
    """A rollout that was started."""

    job: Job
    """With the number of the current attempt."""
    group: str
    version: int
    """The weight version when it was started."""
    max_staleness: int | None
    problem: str | None = None
    """Why the row cannot be sent; None if it can."""
    cancel_reason: str | None = None
    work: "asyncio.Task[Rollout] | None" = field(default=None, repr=False)

    @property
    def rollout_id(self) -> str:
        return str(self.job.key)


class Launcher(Protocol):
    """What a stream needs of its session."""

    admission: Admission

    def prepare(self, row: Any, task: int, repeat: int, max_staleness: int | None) -> Launch: ...

    def next_task(self) -> int: ...

    async def run(self, launch: Launch) -> Rollout: ...

    def cancelled_rollout(self, launch: Launch) -> Rollout: ...

    async def abandon(self, launches: Iterable[Launch], reason: str) -> None: ...

    def count_delivered(self, rollout: Rollout) -> None: ...

    def count_undelivered(self, rollout: Rollout, reason: str) -> None: ...

    def forget_stream(self, stream: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class _StreamEvent:
    """The end of a launch, or of the rows, or the error of the rows."""

    launch: Launch | None = None
    rollout: Rollout | None = None
    error: BaseException | None = None


class RolloutStream:
    """Rollouts in the order in which they end: `async for rollout in stream`.

    Rows are read when there is room for their rollouts, also while the consumer is busy: at most `at_once` rollouts are
    in flight, and at most `room` are started and not delivered. Use `async with` or `aclose` to stop early: then the
    rollouts in flight are cancelled, and their tokens are counted in the session's `left_out`.
    """

    def __init__(
        self,
        launcher: Launcher,
        rows: Rows,
        *,
        group_size: int,
        at_once: int,
        room: int,
        max_staleness: int | None,
        unit: int = 1,
        wants: Callable[[str], bool] = lambda _: True,
        on_skip: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare a stream. `wants` says whether another rollout of a group is needed; `on_skip` is called if not.

        The staleness bound is raised to a multiple of `unit` rollouts.
        """
        self.max_staleness, self._unit = max_staleness, unit
        self._launcher = launcher
        self._rows = rows
        self._group_size = group_size
        self._slots, self._room = asyncio.Semaphore(at_once), asyncio.Semaphore(room)
        self._wants, self._on_skip = wants, on_skip
        self._ended: asyncio.Queue[_StreamEvent] = asyncio.Queue()
        self.in_flight: dict[RolloutId, Launch] = {}
        """The rollouts in flight by task and repeat."""
        self._is_exhausted = self._is_closed = False
        self._feeder = asyncio.create_task(self._feed())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Rollout:
        launch, rollout = await self.next_ended()
        return self.deliver(launch, rollout)

    async def next_ended(self) -> tuple[Launch, Rollout]:
        """Wait for the next rollout to end. It keeps its room until `deliver`.

        Raises:
            StopAsyncIteration: all rollouts have been returned, or the stream is closed.
        """
        while not self._is_closed and not (self._is_exhausted and not self.in_flight and self._ended.empty()):
            ended = await self._ended.get()
            if ended.error is not None:
                await self.aclose()
                raise ended.error
            if ended.launch is not None and ended.rollout is not None:
                return ended.launch, ended.rollout
        await self.aclose()
        raise StopAsyncIteration

    def deliver(self, launch: Launch, rollout: Rollout) -> Rollout:
        """Return a rollout for the consumer, checked for staleness, and make room for the next one."""
        self._room.release()
        self._launcher.count_delivered(rollout)
        checked = self._launcher.admission.check_staleness(rollout, launch.version, self.max_staleness)
        if rollout.trainable and not checked.trainable:
            self._launcher.admission.release()
        return checked

    def discard(self, rollout: Rollout, reason: str) -> None:
        """Count a rollout that is not delivered, and allow another rollout to start in its place."""
        self._launcher.count_undelivered(rollout, reason)
        if rollout.trainable:  # otherwise its admission was released when it ended
            self._launcher.admission.release()

    def release_admission(self) -> None:
        """Allow another rollout in place of one that the consumer does not use."""
        self._launcher.admission.release()

    def check_wants(self) -> None:
        """Call `wants` again for the rollout that waits to be started."""
        self._launcher.admission.notify()

    async def aclose(self) -> None:
        """Stop: cancel the rollouts in flight and count what is not delivered. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._feeder.cancel()
        await asyncio.wait({self._feeder})
        await self._launcher.abandon(list(self.in_flight.values()), CLOSED)
        while not self._ended.empty():
            ended = self._ended.get_nowait()
            if ended.rollout is not None:
                self.discard(ended.rollout, CLOSED)
        self._ended.put_nowait(_StreamEvent())  # wakes a consumer that waits
        self._launcher.forget_stream(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _feed(self) -> None:
        """Start rollouts as slots, room and admission permit, until the rows end."""
        error: BaseException | None = None
        try:
            async for row in _as_async(self._rows):
                task = self._launcher.next_task()
                for repeat in range(self._group_size):
                    await self._start(row, task, repeat)
        except asyncio.CancelledError:
            raise
        except Exception as problem:  # an iterator of the caller may raise anything; the consumer gets it
            error = problem
        self._is_exhausted = True
        self._ended.put_nowait(_StreamEvent(error=error))

    async def _start(self, row: Any, task: int, repeat: int) -> None:
        """Start one rollout when it is admitted; skip it if its group needs no more."""
        await self._room.acquire()
        await self._slots.acquire()
        launch = self._launcher.prepare(row, task, repeat, self.max_staleness)
        admission = self._launcher.admission
        if not await admission.admit(self.max_staleness, lambda: self._wants(launch.group), unit=self._unit):
            self._slots.release()
            self._room.release()
            self._on_skip(launch.group)
            return
        launch.version = admission.version
        self.in_flight[launch.job.key.rollout_id] = launch
        launch.work = asyncio.create_task(self._launcher.run(launch))
        launch.work.add_done_callback(lambda work: self._end(launch, work))

    def _end(self, launch: Launch, work: "asyncio.Task[Rollout]") -> None:
        """Queue an ended rollout and free its slot."""
        del self.in_flight[launch.job.key.rollout_id]
        self._slots.release()
        if work.cancelled():
            self._launcher.admission.release()
            is_rollout = launch.cancel_reason is not None  # cancelled before its task first ran
            rollout = self._launcher.cancelled_rollout(launch) if is_rollout else None
            self._ended.put_nowait(_StreamEvent(launch, rollout))
        elif (error := work.exception()) is not None:
            self._launcher.admission.release()
            self._ended.put_nowait(_StreamEvent(error=error))
        else:
            self._ended.put_nowait(_StreamEvent(launch, work.result()))


async def _as_async(rows: Rows) -> AsyncIterator[Any]:
    """Iterate over rows of either kind; let other tasks run between rows of an ordinary iterable."""
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
        return
    for row in rows:
        yield row
        await asyncio.sleep(0)
