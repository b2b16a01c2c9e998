"""Make boxes in advance. Each is used once, so that no program sees the traces of another."""

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
    """Makes boxes with `launcher` and keeps `warm` of one shape ready; all its boxes end with `close` at the latest."""

    def __init__(self, launcher: Callable[..., Box], shape: BoxShape, warm: int) -> None:
        self._launcher = launcher
        self._shape = shape
        self._warm = warm
        self._ready: deque[Box] = deque()
        self._boxes: set[Box] = set()
        self._filling: asyncio.Task[None] | None = None
        self._abandoned: set[asyncio.Task[None]] = set()
        # A box ends with the thread that started it, so this thread lives as long as the pool.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sandbox-launcher")
        self._closed = False

    async def take(self, shape: BoxShape) -> Box:
        """Return an unused box: one made in advance, or a new one.

        Raises:
            SandboxCreateError: no box can be made.
        """
        while shape == self._shape and self._ready:
            box = self._ready.popleft()
            if box.alive:
                return box
            await self.end(box)
        return await self._make(shape)

    def fill(self) -> None:
        """Start making the missing boxes in the background."""
        loop = asyncio.get_running_loop()
        busy = self._filling is not None and not self._filling.done() and self._filling.get_loop() is loop
        if not self._closed and self._warm and not busy:
            self._filling = loop.create_task(self._fill())

    async def full(self) -> None:
        """Wait until `warm` boxes are ready.

        Raises:
            SandboxCreateError: a box cannot be made.
        """
        self.fill()
        if self._filling is not None:
            await asyncio.shield(self._filling)
        if len(self._ready) < self._warm:
            self._ready.append(await self._make(self._shape, preload=True))

    async def end(self, box: Box) -> None:
        """End a box and wait until it is gone; only then make another one, so that programs keep the processor."""
        gone = await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, box.close))
        self._boxes.discard(box)
        if not gone:
            _log.warning("sandbox %s: processes or control groups remain after its end", box.name)
        self.fill()

    async def close(self) -> None:
        """End every box and the launcher thread; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._filling is not None and self._filling.get_loop() is asyncio.get_running_loop():
            self._filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._filling
        await asyncio.to_thread(self._thread.shutdown)
        self._ready.clear()
        loop = asyncio.get_running_loop()
        ending = [task for task in self._abandoned if task.get_loop() is loop]
        await asyncio.gather(*ending, *(self.end(box) for box in list(self._boxes)))

    async def _fill(self) -> None:
        while len(self._ready) < self._warm and not self._closed:
            try:
                self._ready.append(await self._make(self._shape, preload=True))
            except SandboxCreateError as error:
                # The next `take` makes a box itself and reports the error; no retry until then.
                _log.warning("no box could be made in advance: %s", error)
                return

    async def _make(self, shape: BoxShape, *, preload: bool = False) -> Box:
        if self._closed:
            raise SandboxCreateError("the provider is closed", where="local")
        made = asyncio.get_running_loop().run_in_executor(self._thread, self._launch, shape, preload)
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            made.add_done_callback(self._end_abandoned)
            raise

    def _end_abandoned(self, made: "asyncio.Future[Box]") -> None:
        """End a box whose `take` was cancelled while it was made."""
        if made.cancelled() or made.exception() is not None:
            return
        ending = asyncio.ensure_future(self.end(made.result()))
        self._abandoned.add(ending)
        ending.add_done_callback(self._abandoned.discard)

    def _launch(self, shape: BoxShape, preload: bool) -> Box:
        """Make a box in the launcher thread and register it at once, so that a cancelled caller cannot lose it."""
        box = self._launcher(shape, preload=preload)
        self._boxes.add(box)
        return box
