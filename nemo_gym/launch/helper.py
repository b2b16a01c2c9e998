"""A run for synchronous callers: it lives on a thread of its own, whatever threads and loops the caller has."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from nemo_gym.launch.endpoints import wait_for_endpoints
from nemo_gym.launch.registry import registered
from nemo_gym.launch.run import CELLS_KEY, Run
from nemo_gym.launch.supervisor import ServerDidNotStart
from nemo_gym.launch.venv_rehearsal import rehearse

logger = logging.getLogger(__name__)

LONGEST_STOP = 30.0
"""Seconds a caller waits for the end; servers get five of them before they are killed."""

T = TypeVar("T")


class BackgroundRun:
    """The servers of `config`, or with `dry_run` their rehearsal, on a thread with an event loop of its own.

    The real ports are in `config` once `start` has returned.
    """

    def __init__(self, config: DictConfig, roots: Sequence[Path]) -> None:
        self.config = config
        self._roots = roots
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_LateThreads())
        self._thread = threading.Thread(target=self._main, name="nemo-gym-run", daemon=True)
        self._asked_to_stop = asyncio.Event()
        self._ready: Future[Run | None] = Future()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> Run | None:
        """Return the run when every server and every model endpoint answers; None after a dry run.

        Raises:
            GymError: why one does not; nothing is left running.
        """
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:  # also an impatient Ctrl-C
            self.stop()
            raise

    def stop(self) -> None:
        """End the servers and the thread. Safe to repeat, and from any thread; in a fork of this process, nothing."""
        with suppress(RuntimeError):  # the loop is closed: it has ended by itself
            self._loop.call_soon_threadsafe(self._asked_to_stop.set)
        self._thread.join(LONGEST_STOP)
        if self._thread.is_alive():
            logger.error("the servers did not end within %g s; they end with this process", LONGEST_STOP)

    def wait(self, seconds: float) -> None:
        """Wait, but not longer than the run lasts."""
        self._thread.join(seconds)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, done on the run's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def wait_for_endpoints(self) -> None:
        plain: Any = OmegaConf.to_container(self.config, resolve=True)
        await wait_for_endpoints({str(key): value for key, value in plain.items()}, logger.info)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            problem = runner.run(self._until_stopped())
        # Told last: whoever hears of a failure may rely on everything being gone.
        if not self._ready.done():
            self._ready.set_exception(problem or ServerDidNotStart("stopped before every server was ready"))
        elif problem is not None:
            logger.error("the servers did not end as they should: %s", problem)

    async def _until_stopped(self) -> BaseException | None:
        work = asyncio.create_task(self._rehearse() if self.config.get("dry_run") else self._serve())
        asked = asyncio.create_task(self._asked_to_stop.wait())
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        asked.cancel()
        await asyncio.wait({work, asked})
        return None if work.cancelled() else work.exception()

    async def _serve(self) -> None:
        folder = self.config.get("nemo_gym_log_dir")
        run = Run(
            self.config,
            self._roots,
            cells=int(self.config.get(CELLS_KEY) or 1),
            log_dir=Path(folder) if folder else None,
            watch=log_line,
            links=False,
        )
        async with run:
            await self.wait_for_endpoints()
            with registered(self.config):
                self._ready.set_result(run)
                await asyncio.Event().wait()  # until cancelled

    async def _rehearse(self) -> None:
        await rehearse(self.config, self._roots, watch=log_line)
        self._ready.set_result(None)


def log_line(name: str, line: str) -> None:
    """What a server prints goes to our log, as loud as it was meant."""
    loud = line.startswith(("WARNING", "ERROR", "CRITICAL"))
    logger.log(logging.WARNING if loud else logging.INFO, "(%s) %s", name, line)


class _LateThreads(ThreadPoolExecutor):
    """A thread for every piece of work, also while the interpreter ends: `atexit` comes after the usual pools close."""

    def __init__(self) -> None:
        super().__init__()
        self._working: set[threading.Thread] = set()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # the boundary of a thread: whoever awaits the future gets it
                future.set_exception(error)

        self._working = {thread for thread in self._working if thread.is_alive()}
        thread = threading.Thread(target=work, name="nemo-gym-run-work", daemon=True)
        thread.start()
        self._working.add(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the threads too: their work is told a moment before they have ended."""
        until = time.monotonic() + LONGEST_STOP
        for thread in self._working if wait else ():
            thread.join(max(until - time.monotonic(), 0.0))
        super().shutdown(wait, cancel_futures=cancel_futures)
