"""Boxes made ahead of need. Each is used once: what one program left is never there for the next."""

import asyncio
import contextlib
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from nemo_gym.sandbox.providers.local.bubblewrap import Shape
from nemo_gym.sandbox.providers.local.cgroups import Cgroups
from nemo_gym.sandbox.providers.local.launch import Box, launch
from nemo_gym.sandbox.spec import SandboxCreateError

_log = logging.getLogger(__name__)


class Pool:
    """Makes boxes and keeps `warm` of one shape ready; every box it made ends with `close` or before."""

    def __init__(self, bwrap: str, cgroups: Cgroups | None, shape: Shape, warm: int) -> None:
        self._bwrap = bwrap
        self._cgroups = cgroups
        self._shape = shape
        self._warm = warm
        self._ready: deque[Box] = deque()
        self._boxes: set[Box] = set()
        self._filling: asyncio.Task[None] | None = None
        self._unwanted: set[asyncio.Task[None]] = set()
        # A box dies with the thread that started it, so that thread is ours and lives as long as the pool.
        self._launcher = ThreadPoolExecutor(1, thread_name_prefix="sandbox-launcher")
        self._closed = False

    @property
    def ready(self) -> int:
        """How many boxes wait for a program."""
        return len(self._ready)

    async def take(self, shape: Shape) -> Box:
        """A box nobody used yet: a waiting one, or a new one.

        Raises:
            SandboxCreateError: there is none.
        """
        while shape == self._shape and self._ready:
            box = self._ready.popleft()
            if box.alive:
                return box
            await self.end(box)
        return await self._make(shape)

    def fill(self) -> None:
        """Begin to make what is missing, in the background."""
        loop = asyncio.get_running_loop()
        busy = self._filling is not None and not self._filling.done() and self._filling.get_loop() is loop
        if not self._closed and self._warm and not busy:
            self._filling = loop.create_task(self._fill())

    async def full(self) -> None:
        """Wait until as many boxes as wanted are ready.

        Raises:
            SandboxCreateError: one cannot be made.
        """
        self.fill()
        if self._filling is not None:
            await asyncio.shield(self._filling)
        if len(self._ready) < self._warm:
            self._ready.append(await self._make(self._shape, preload=True))

    async def end(self, box: Box) -> None:
        """End a box and wait until it is gone. Only then is another one made: its program had the processor."""
        gone = await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, box.close))
        self._boxes.discard(box)
        if not gone:
            _log.warning("sandbox %s: something of it is still there after its end", box.name)
        self.fill()

    async def close(self) -> None:
        """End every box and let the thread go; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._filling is not None and self._filling.get_loop() is asyncio.get_running_loop():
            self._filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._filling
        await asyncio.to_thread(self._launcher.shutdown)
        self._ready.clear()
        loop = asyncio.get_running_loop()
        ending = [task for task in self._unwanted if task.get_loop() is loop]
        await asyncio.gather(*ending, *(self.end(box) for box in list(self._boxes)))

    async def _fill(self) -> None:
        while len(self._ready) < self._warm and not self._closed:
            try:
                self._ready.append(await self._make(self._shape, preload=True))
            except SandboxCreateError as error:
                # Whoever needs a box next makes its own and is told; nothing is tried again until then.
                _log.warning("no box could be made ahead: %s", error)
                return

    async def _make(self, shape: Shape, *, preload: bool = False) -> Box:
        if self._closed:
            raise SandboxCreateError("the provider is closed", where="local")
        made = asyncio.get_running_loop().run_in_executor(self._launcher, self._launch, shape, preload)
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            made.add_done_callback(self._end_unwanted)
            raise

    def _end_unwanted(self, made: "asyncio.Future[Box]") -> None:
        """End a box whose taker left while it was made; nobody else knows of it."""
        if made.cancelled() or made.exception() is not None:
            return
        ending = asyncio.ensure_future(self.end(made.result()))
        self._unwanted.add(ending)
        ending.add_done_callback(self._unwanted.discard)

    def _launch(self, shape: Shape, preload: bool) -> Box:
        """In the launcher's thread: what was made is known at once, so nothing is lost if nobody waits for it."""
        box = launch(self._bwrap, shape, self._cgroups, preload=preload)
        self._boxes.add(box)
        return box
