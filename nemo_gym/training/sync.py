"""Sessions for trainers without an event loop: `sync_session`, and `SyncGym` for other threads of a session."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.training.groups import Group, GroupStream
from nemo_gym.training.sessions import Gym, WeightMode, session
from nemo_gym.training.stream import RolloutStream, Rows
from nemo_gym.training.types import Rollout, TokenAccount

Result = TypeVar("Result")

STOP_SECONDS = 60.0
"""Longest time that leaving a session waits for its servers; they end with this process in any case."""


class SyncGym:
    """A `Gym` for code outside its event loop's thread. Every method blocks; the loop's thread reads rows."""

    def __init__(self, gym: Gym, loop: asyncio.AbstractEventLoop) -> None:
        self._gym = gym
        self._loop = loop

    @property
    def head(self) -> BaseServerConfig:
        return self._gym.head

    @property
    def version(self) -> int:
        return self._gym.version

    @property
    def capacity(self) -> int | None:
        return self._gym.capacity

    @property
    def left_out(self) -> dict[str, int]:
        return dict(self._gym.left_out)

    def token_account(self) -> TokenAccount:
        return self._call(self._gym.token_account())

    @property
    def in_flight(self) -> list[str]:
        return self._call(_as_coroutine(lambda: self._gym.in_flight))

    def stream(self, rows: Rows, **options: Any) -> Generator[Rollout, None, None]:
        """Yield rollouts as they end; `options` are those of `Gym.stream`. Closing the iterator cancels the rest."""
        return self._iterate(lambda: self._gym.stream(rows, **options))

    def groups(self, rows: Rows, group_size: int, **options: Any) -> Generator[Group, None, None]:
        """Yield groups as they are complete; `options` are those of `Gym.groups`. Closing cancels the rest."""
        return self._iterate(lambda: self._gym.groups(rows, group_size, **options))

    def cancel(self, rollout_id: str, *, keep_prefix: bool = True) -> bool:
        """Cancel a rollout; return False if it is not in flight."""
        return self._call(self._gym.cancel(rollout_id, keep_prefix=keep_prefix))

    @contextmanager
    def weights(self, version: int, *, mode: WeightMode = "pause") -> Iterator[None]:
        """Update the weights in the block, as `Gym.weights` does."""
        update = self._gym.weights(version, mode=mode)
        self._call(update.__aenter__())
        try:
            yield
        except BaseException as error:
            self._call(update.__aexit__(type(error), error, error.__traceback__))
            raise
        self._call(update.__aexit__(None, None, None))

    def _iterate(self, start: Callable[[], RolloutStream | GroupStream]) -> Generator[Any, None, None]:
        """Start a stream on the loop now, and yield its items."""
        items = self._call(_as_coroutine(start))

        def iterator() -> Generator[Any, None, None]:
            try:
                while True:
                    try:
                        item = self._call(anext(items))
                    except StopAsyncIteration:
                        return
                    yield item
            finally:
                if self._loop.is_running():  # a session that has ended has closed its streams
                    self._call(items.aclose())

        return iterator()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and return its result; cancel it if the wait is interrupted.

        Raises:
            RuntimeError: the caller is on the loop itself, which could then never answer.
        """
        if _running_loop() is self._loop:
            work.close()
            raise RuntimeError("SyncGym blocks; on the event loop of the session, await the methods of Gym")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _as_coroutine(function: Callable[[], Result]) -> Result:
    return function()


@contextmanager
def sync_session(*args: Any, **options: Any) -> Iterator[SyncGym]:
    """Start or connect to servers for synchronous code; takes the arguments of `session`."""
    ready: Future[tuple[Gym, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    stopped: Future[None] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with session(*args, **options) as gym:
            ready.set_result((gym, asyncio.get_running_loop(), stop))
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
            stopped.set_result(None)
        except BaseException as error:  # handed to the thread that waits
            if not ready.done():
                ready.set_exception(error)
            stopped.set_exception(error)

    thread = threading.Thread(target=run, name="nemo-gym-session", daemon=True)
    thread.start()
    gym, loop, stop = ready.result()
    try:
        yield SyncGym(gym, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        stopped.result(STOP_SECONDS)
