"""Create boxes in advance. Each box is used once, so that no program can read the files of another."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from nemo_gym.sandbox.providers.local.box import Box
from nemo_gym.sandbox.providers.local.bubblewrap import BoxShape
from nemo_gym.sandbox.spec import SandboxCreateError

_log = logging.getLogger(__name__)


class BoxPool:
    """Creates boxes with `launcher` and keeps `warm` unused boxes of one shape ready; `close` kills all boxes."""

    def __init__(self, launcher: Callable[..., Box], shape: BoxShape, warm: int) -> None:
        self._launcher = launcher
        self._shape = shape
        self._warm = warm
        self._ready: deque[Box] = deque()
        self._boxes: set[Box] = set()
        self._filling: asyncio.Task[None] | None = None
        self._end_tasks: set[asyncio.Task[None]] = set()
        # One thread, because boxes that start at the same time only slow each other down.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sandbox-launcher")
        self._closed = False

    async def take(self, shape: BoxShape) -> Box:
        """Return an unused box: one created in advance if it has this shape, or a new one.

        Raises:
            SandboxCreateError: no box can be created.
        """
        while shape == self._shape and self._ready:
            box = self._ready.popleft()
            if box.alive:
                return box
            await self.end(box)
        return await self._create(shape)

    def fill(self) -> None:
        """Start creating boxes in the background until `warm` are ready."""
        is_filling = self._filling is not None and not self._filling.done()
        if not self._closed and self._warm and not is_filling:
            self._filling = asyncio.create_task(self._fill())

    async def wait_until_full(self) -> None:
        """Wait until `warm` boxes are ready, or until creating one fails."""
        self.fill()
        if self._filling is not None:
            await asyncio.shield(self._filling)

    async def end(self, box: Box) -> None:
        """Kill a box and wait until it has exited; then start a replacement in the background.

        Starting a box takes processor time from running programs, so the replacement waits until this box has ended.
        """
        is_gone = await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, box.close))
        self._boxes.discard(box)
        if not is_gone:
            _log.warning("sandbox %s: processes or control groups remain after its end", box.name)
        self.fill()

    async def close(self) -> None:
        """Kill every box and end the launcher thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._filling
        await asyncio.to_thread(self._thread.shutdown)
        self._ready.clear()
        await asyncio.gather(*self._end_tasks, *(self.end(box) for box in list(self._boxes)))

    async def _fill(self) -> None:
        """Create boxes until `warm` are ready, or until creating one fails."""
        while len(self._ready) < self._warm and not self._closed:
            try:
                self._ready.append(await self._create(self._shape, preload=True))
            except SandboxCreateError as error:
                # Not retried here: the next `take` creates a box and raises the error.
                _log.warning("no box could be created in advance: %s", error)
                return

    async def _create(self, shape: BoxShape, *, preload: bool = False) -> Box:
        """Create a box on the launcher thread; if the caller is cancelled, kill the box once it exists."""
        if self._closed:
            raise SandboxCreateError("the provider is closed", where="local")
        new_box = asyncio.get_running_loop().run_in_executor(self._thread, self._launch, shape, preload)
        try:
            return await asyncio.shield(new_box)
        except asyncio.CancelledError:
            new_box.add_done_callback(self._end_abandoned)
            raise

    def _end_abandoned(self, new_box: "asyncio.Future[Box]") -> None:
        """Kill a box whose `take` was cancelled while the box was created."""
        if new_box.cancelled() or new_box.exception() is not None:
            return
        task = asyncio.ensure_future(self.end(new_box.result()))
        self._end_tasks.add(task)
        task.add_done_callback(self._end_tasks.discard)

    def _launch(self, shape: BoxShape, preload: bool) -> Box:
        """Create and register a box; runs on the launcher thread, so it completes even if the caller is cancelled."""
        box = self._launcher(shape, preload=preload)
        self._boxes.add(box)
        return box
