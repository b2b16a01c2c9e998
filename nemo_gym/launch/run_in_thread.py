"""A run for synchronous callers, on a separate thread with its own event loop."""

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig

from nemo_gym.config.omega import as_dict
from nemo_gym.launch.dry_run import construct_servers
from nemo_gym.launch.endpoint_readiness import wait_for_endpoints
from nemo_gym.launch.run import Run
from nemo_gym.launch.run_registry import registering
from nemo_gym.launch.settings import LaunchSettings
from nemo_gym.launch.supervisor import ServerDidNotStart

logger = logging.getLogger(__name__)

STOP_SECONDS = 30.0
"""Longest time a caller waits for the end; servers get five seconds of it before they are killed."""

T = TypeVar("T")


class BackgroundRun:
    """The servers of `config` on a background thread; with `dry_run` they are only constructed.

    The real ports are in `config` once `start` has returned.
    """

    def __init__(self, config: DictConfig, roots: Sequence[Path]) -> None:
        self.config = config
        self._roots = roots
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="nemo-gym-run", daemon=True)
        self._stop_requested = asyncio.Event()
        self._ready: Future[Run | None] = Future()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> Run | None:
        """Return the run when every server and every model endpoint responds; None after a dry run.

        Raises:
            GymError: a server or an endpoint does not; nothing is left running.
        """
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:  # also Ctrl-C
            self.stop()
            raise

    def stop(self) -> None:
        """End the servers and the thread. Safe to repeat, and from any thread; a no-op in a fork."""
        with suppress(RuntimeError):  # the loop is closed: the run has ended by itself
            self._loop.call_soon_threadsafe(self._stop_requested.set)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            logger.error("the servers did not end within %g s; they end with this process", STOP_SECONDS)

    def wait(self, seconds: float) -> None:
        """Wait until the run ends, at most `seconds`."""
        self._thread.join(seconds)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the run's event loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def wait_for_endpoints(self) -> None:
        await wait_for_endpoints(as_dict(self.config), logger.info)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            problem = runner.run(self._run_until_stopped())
        # Reported last: the caller may rely on everything being gone.
        if not self._ready.done():
            self._ready.set_exception(problem or ServerDidNotStart("stopped before every server was ready"))
        elif problem is not None:
            logger.error("stopping the servers failed: %s", problem)

    async def _run_until_stopped(self) -> BaseException | None:
        dry_run = LaunchSettings.from_config(self.config).dry_run
        work = asyncio.create_task(self._construct() if dry_run else self._serve())
        stop = asyncio.create_task(self._stop_requested.wait())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        stop.cancel()
        await asyncio.wait({work, stop})
        return None if work.cancelled() else work.exception()

    async def _serve(self) -> None:
        async with Run(self.config, self._roots, watch=log_line, links=False) as run:
            await self.wait_for_endpoints()
            with registering(self.config):
                self._ready.set_result(run)
                await asyncio.Event().wait()  # until cancelled

    async def _construct(self) -> None:
        await construct_servers(self.config, self._roots, watch=log_line)
        self._ready.set_result(None)


def log_line(name: str, line: str) -> None:
    """Log a line that a server printed, at the level the line itself names."""
    is_warning = line.startswith(("WARNING", "ERROR", "CRITICAL"))
    logger.log(logging.WARNING if is_warning else logging.INFO, "(%s) %s", name, line)
