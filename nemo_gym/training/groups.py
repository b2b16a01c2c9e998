"""`Group`: the rollouts of one prompt, with the baseline over those that count; `GroupStream` collects whole groups."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from nemo_gym.training.advantages import relative_rewards
from nemo_gym.training.stream import CLOSED, Launch, RolloutStream
from nemo_gym.training.types import Rollout

NOT_STARTED = "not started"
ENOUGH = "its group had enough rollouts"

CancelLaunch = Callable[[Launch, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts that answer one prompt, in the order in which they ended.

    Only scored, trainable rollouts count: they alone are in `usable`, `rewards`, `baseline` and `advantages`.
    """

    group: str
    task: int
    need: int
    """The number of usable rollouts that the trainer asked for."""
    rollouts: Sequence[Rollout]
    """All rollouts that were started: usable, failed, cancelled with their prefix, and not trainable ones."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """The number of rollouts that do not count, by reason."""

    @property
    def usable(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if is_usable(rollout)]

    @property
    def is_complete(self) -> bool:
        """True if there are as many usable rollouts as the trainer asked for."""
        return len(self.usable) >= self.need

    @property
    def rewards(self) -> list[float]:
        """The rewards of the usable rollouts."""
        return [rollout.reward for rollout in self.usable if rollout.reward is not None]

    @property
    def baseline(self) -> float | None:
        """The mean reward of the usable rollouts; None without any."""
        rewards = self.rewards
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def advantages(self) -> list[float]:
        """The reward of each usable rollout minus the baseline."""
        return relative_rewards(self.rewards, normalize=False)

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.left_out.items())
        left_out = f", {sum(self.left_out.values())} left out ({reasons})" if reasons else ""
        return f"group {self.group}: {len(self.usable)} usable of {self.need}{left_out}"


def is_usable(rollout: Rollout) -> bool:
    """Return whether a rollout counts in the baseline of its group."""
    return rollout.outcome == "scored" and rollout.trainable


@dataclass(eq=False, slots=True)
class _GroupProgress:
    """A group whose rollouts have not all ended."""

    ended: list[tuple[Launch, Rollout]] = field(default_factory=list)
    skipped: int = 0
    has_enough: bool = False


class GroupStream:
    """Whole groups in the order in which they are completed: `async for group in stream`.

    When a group has `need` usable rollouts, the others are cancelled and those not yet started are not started. A group
    in which fewer succeed is returned too (`is_complete` is False). A slow rollout delays only its own group.
    """

    def __init__(
        self,
        make_stream: Callable[[Callable[[str], bool], Callable[[str], None]], RolloutStream],
        cancel: CancelLaunch,
        forget: Callable[["GroupStream"], None],
        *,
        group_size: int,
        need: int,
    ) -> None:
        """Prepare a stream of groups. `forget` is called when it is closed."""
        self._group_size, self._need = group_size, need
        self._cancel, self._forget = cancel, forget
        self._open: dict[str, _GroupProgress] = {}
        self._done: asyncio.Queue[_GroupProgress | BaseException | None] = asyncio.Queue()
        self._stream = make_stream(self._wants, self._skip)
        self._cancellations: set[asyncio.Future[None]] = set()
        self._collector = asyncio.create_task(self._collect())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        progress = await self._done.get()
        if isinstance(progress, _GroupProgress):
            return self._build(progress)
        self._done.put_nowait(None)  # every later call ends as well
        await self.aclose()
        raise progress or StopAsyncIteration

    async def aclose(self) -> None:
        """Stop: cancel the rollouts in flight and drop the groups that were not returned. Idempotent.

        The tokens of both are counted in the session's `left_out`.
        """
        await self._stream.aclose()
        if self._collector is not asyncio.current_task():
            await asyncio.wait({self._collector})
        dropped = list(self._open.values())
        self._open.clear()
        while not self._done.empty():
            progress = self._done.get_nowait()
            if isinstance(progress, _GroupProgress):
                dropped.append(progress)
        for _, rollout in (ended for progress in dropped for ended in progress.ended):
            self._stream.discard(rollout, CLOSED)
        self._done.put_nowait(None)
        self._forget(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _collect(self) -> None:
        """Sort rollouts into groups as they end, also while the consumer is busy."""
        try:
            while True:
                launch, rollout = await self._stream.next_ended()
                progress = self._open.setdefault(launch.group, _GroupProgress())
                progress.ended.append((launch, rollout))
                usable = sum(is_usable(one) for _, one in progress.ended)
                if usable >= self._need and not progress.has_enough:
                    progress.has_enough = True
                    self._cancel_rest(launch.group)
                    self._stream.check_wants()
                self._finish_if_done(launch.group)
        except StopAsyncIteration:
            self._done.put_nowait(None)
        except Exception as error:  # of the caller's rows; the consumer gets it
            self._done.put_nowait(error)

    def _cancel_rest(self, group: str) -> None:
        for launch in self._stream.in_flight.values():
            if launch.group == group:
                cancellation = asyncio.ensure_future(self._cancel(launch, ENOUGH))
                self._cancellations.add(cancellation)
                cancellation.add_done_callback(self._cancellations.discard)

    def _wants(self, group: str) -> bool:
        progress = self._open.get(group)
        return progress is None or not progress.has_enough

    def _skip(self, group: str) -> None:
        if group in self._open:
            self._open[group].skipped += 1
            self._finish_if_done(group)

    def _finish_if_done(self, group: str) -> None:
        """Queue a group when all its rollouts have ended or were skipped."""
        progress = self._open[group]
        if len(progress.ended) + progress.skipped == self._group_size:
            self._done.put_nowait(self._open.pop(group))

    def _build(self, progress: _GroupProgress) -> Group:
        """Deliver the rollouts of a group; one that arrived after the group had enough is left out."""
        rollouts: list[Rollout] = []
        left_out: Counter[str] = Counter()
        usable = 0
        for launch, ended in progress.ended:
            rollout = self._stream.deliver(launch, ended)
            if is_usable(rollout):
                usable += 1
                if usable > self._need:
                    rollout = replace(rollout, trainable=False, why_not=ENOUGH)
                    self._stream.release_admission()
            if not is_usable(rollout):
                left_out[rollout.why_not or rollout.outcome] += 1
            rollouts.append(rollout)
        if progress.skipped:
            left_out[NOT_STARTED] += progress.skipped
        launch = progress.ended[0][0]
        return Group(launch.group, launch.job.key.task, self._need, rollouts, dict(left_out))
