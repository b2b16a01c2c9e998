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

from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.launch.model_endpoints import wait_for_endpoints
from nemo_gym.launch.run import Run, construct_servers
from nemo_gym.launch.supervisor import ServerDidNotStart
from nemo_gym.serve.run_registry import registering

logger = logging.getLogger(__name__)

STOP_SECONDS = 30.0
"""Longest time that `stop` waits; servers are killed after five seconds of it."""

T = TypeVar("T")


class BackgroundRun:
    """Runs the servers of `config` on a background thread; with `dry_run` they are only constructed.

    After `start`, `config` contains the chosen ports.
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
        """Start the thread; return the run when all servers and model endpoints respond, or None after a dry run.

        Raises:
            GymError: a server or an endpoint does not respond; all servers are stopped.
        """
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:  # also Ctrl-C
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the servers and the thread. Idempotent, callable from any thread, no effect in a forked process."""
        with suppress(RuntimeError):  # the loop is closed: the run has ended already
            self._loop.call_soon_threadsafe(self._stop_requested.set)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            logger.error("the servers did not end within %g s; they end with this process", STOP_SECONDS)

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for the end of the run."""
        self._thread.join(seconds)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the run's event loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def wait_for_endpoints(self) -> None:
        await wait_for_endpoints(as_dict(self.config), logger.info)

    def _main(self) -> None:
        """Run the event loop of the thread until the run ends; make `start` fail if no server was ready by then."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            problem = runner.run(self._run_until_stopped())
        # Reported after the runner is closed: then no server, task or socket of the run is left.
        if not self._ready.done():
            self._ready.set_exception(problem or ServerDidNotStart("stopped before every server was ready"))
        elif problem is not None:
            logger.error("stopping the servers failed: %s", problem)

    async def _run_until_stopped(self) -> BaseException | None:
        """Serve until `stop` is called, or only construct the servers in a dry run; return the error, if any."""
        serve_task = asyncio.create_task(self._construct() if self.config.get("dry_run") else self._serve())
        stop_wait = asyncio.create_task(self._stop_requested.wait())
        await asyncio.wait({serve_task, stop_wait}, return_when=asyncio.FIRST_COMPLETED)
        serve_task.cancel()
        stop_wait.cancel()
        await asyncio.wait({serve_task, stop_wait})
        return None if serve_task.cancelled() else serve_task.exception()

    async def _serve(self) -> None:
        async with Run(self.config, self._roots, watch=log_line, own_loop=False) as run:
            await self.wait_for_endpoints()
            with registering(self.config):
                self._ready.set_result(run)
                await asyncio.Event().wait()  # until cancelled

    async def _construct(self) -> None:
        await construct_servers(self.config, self._roots, watch=log_line)
        self._ready.set_result(None)


def log_line(name: str, line: str) -> None:
    """Log a line that a server printed: as a warning if it starts with the name of such a level, else as info."""
    is_warning = line.startswith(("WARNING", "ERROR", "CRITICAL"))
    logger.log(logging.WARNING if is_warning else logging.INFO, "(%s) %s", name, line)
