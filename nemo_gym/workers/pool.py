"""A pool of worker processes behind a bounded queue, for callers in any thread, event loop or process.

A worker has one job at a time and two clocks, both started when it begins: its own CPU time, which the kernel ends and
which a busy machine does not shorten, and a much longer wall clock for work that sleeps. A worker that is ended takes
one job with it and is replaced by a fork. Time spent in the queue counts for nothing.
"""

import asyncio
import json
import os
import threading
import weakref
from concurrent.futures import Future
from typing import Any, Self

from nemo_gym.errors import EnvFailed
from nemo_gym.workers.dispatcher import Dispatcher
from nemo_gym.workers.jobs import Job, JobQueue, Limits, Result

MOST_WORKERS = 8


class WorkerPool:
    """Runs `work` ("module:function", JSON in and out) in processes of its own.

    Nothing is started before the first job. The processes end with this one, however it ends, or when nobody holds the
    pool any more. After a fork the child has a pool of its own.
    """

    def __init__(
        self,
        work: str,
        *,
        size: int | None = None,
        cpu_seconds: float = 3.0,
        wall_seconds: float = 60.0,
        memory_bytes: int = 1 << 30,
        most_waiting: int = 20_000,
    ) -> None:
        size = size or max(1, min(os.cpu_count() or 1, MOST_WORKERS))
        self.limits = Limits(work, size, cpu_seconds, wall_seconds, memory_bytes, most_waiting)
        self._begin_anew()
        _POOLS.add(self)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None
        self._closed = False

    def run(self, payload: Any) -> Result:
        """Do one job and wait for it."""
        return self.submit(payload).result()

    async def run_async(self, payload: Any) -> Result:
        """Do one job without holding up the event loop. Cancelling takes it out of the queue."""
        return await asyncio.wrap_future(self.submit(payload))

    def submit(self, payload: Any) -> "Future[Result]":
        """Queue one job.

        Raises:
            EnvFailed: too many jobs are waiting already, or the pool is closed.
        """
        job = Job(json.dumps(payload).encode())
        with self._lock:
            if self._closed:
                raise EnvFailed("the worker pool is closed", where=self.limits.work)
            if self._dispatcher is None or not self._dispatcher.is_alive:
                self._dispatcher = Dispatcher(self.limits, JobQueue(self.limits.most_waiting, self.limits.work))
                weakref.finalize(self, self._dispatcher.ask_to_stop).atexit = False
            self._dispatcher.add(job)
        return job.future

    def close(self) -> None:
        """End all processes. Jobs that have not ended fail."""
        with self._lock:
            self._closed = True
            if self._dispatcher is not None:
                self._dispatcher.close()

    def abandon(self) -> None:
        """Forget, without ending them, the processes of the parent this process was forked from."""
        if self._dispatcher is not None:
            self._dispatcher.let_go()
        self._begin_anew()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_POOLS: "weakref.WeakSet[WorkerPool]" = weakref.WeakSet()


def _after_fork() -> None:
    for pool in _POOLS:
        pool.abandon()


os.register_at_fork(after_in_child=_after_fork)
