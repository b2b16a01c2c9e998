"""Call a function in worker processes with hard limits on time and memory, from any thread, event loop or process.

Each slot of a pool is a thread that owns one worker, sends it one payload at a time and waits for the reply. Two limits
apply to a call: CPU time, which the kernel enforces independently of other load, and a longer wall-clock time for calls
that sleep. Both start when the worker begins the call; time in the queue does not count. If a call exceeds a limit, it
fails and its worker is replaced by another fork of the host process (`nemo_gym.workers.host`).
"""

import asyncio
import os
import signal
import socket
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Literal, Self, TypeAlias

from nemo_gym.errors import EnvFailed
from nemo_gym.workers.host import encode_line
from nemo_gym.workers.process import Worker, WorkerHost

MAX_WORKERS = 8
END_SECONDS = 5.0
"""Time for the host to exit before it is killed."""
CALLS_PER_WORKER = 2000
"""A worker is replaced after this many calls, to limit the memory of caches in libraries."""
MAX_STARTS = 3
"""Attempts to start a worker before a call fails."""
MAX_ATTEMPTS = 2
"""Attempts at a call whose worker ended for an unknown reason, such as the machine running out of memory."""


@dataclass(frozen=True)
class WorkerResult:
    """The function returned `value`."""

    value: Any


@dataclass(frozen=True)
class WorkerFailure:
    """The call exceeded a limit, raised an exception, or its worker crashed."""

    kind: Literal["time", "memory", "crash"]
    reason: str


WorkerReply: TypeAlias = WorkerResult | WorkerFailure


@dataclass(frozen=True)
class PoolSettings:
    """The function ("module:function"), the number of workers, the limits of one call and the length of the queue."""

    function: str
    size: int
    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int
    max_queued: int


class WorkerPool:
    """Calls `function` ("module:function", with JSON as argument and result) in worker processes.

    No process is started before the first call. The processes exit with this one, even if it is killed, or when the
    pool is garbage-collected. After a fork the child process starts its own workers.
    """

    def __init__(
        self,
        function: str,
        *,
        size: int | None = None,
        cpu_seconds: float = 3.0,
        wall_seconds: float = 60.0,
        memory_bytes: int = 1 << 30,
        max_queued: int = 20_000,
    ) -> None:
        size = size or max(1, min(os.cpu_count() or 1, MAX_WORKERS))
        self.settings = PoolSettings(function, size, cpu_seconds, wall_seconds, memory_bytes, max_queued)
        self._use_new_dispatcher()
        _POOLS.add(self)

    def _use_new_dispatcher(self) -> None:
        self._dispatcher = _Dispatcher(self.settings)
        self._finalizer = weakref.finalize(self, _close_in_background, self._dispatcher)
        self._finalizer.atexit = False

    def run(self, payload: Any) -> WorkerReply:
        """Call the function and wait for the reply."""
        return self.submit(payload).result()

    async def run_async(self, payload: Any) -> WorkerReply:
        """Call the function without blocking the event loop. Cancelling the caller removes a queued call."""
        return await asyncio.wrap_future(self.submit(payload))

    def submit(self, payload: Any) -> "Future[WorkerReply]":
        """Queue a call and return the future of its reply.

        Raises:
            EnvFailed: the queue is full or the pool is closed.
        """
        return self._dispatcher.submit(encode_line(payload))

    def close(self) -> None:
        """Stop all processes. Queued and running calls fail."""
        self._dispatcher.close()

    def reset_after_fork(self) -> None:
        """In a forked process, release the parent's workers and use new ones."""
        self._finalizer.detach()
        self._dispatcher.release_inherited_sockets()
        self._use_new_dispatcher()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_QueuedCall: TypeAlias = tuple[bytes, Future[WorkerReply]]


class _Dispatcher:
    """The queue, slot threads and host of a pool. Has no reference to the pool, so that it can be garbage-collected."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_QueuedCall | None] = SimpleQueue()
        self._idle_slots = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._channels: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._host: WorkerHost | None = None
        self._closed = False

    def submit(self, payload: bytes) -> "Future[WorkerReply]":
        """Queue a call; start another slot thread if none is idle and fewer than `size` exist."""
        future: Future[WorkerReply] = Future()
        with self._lock:
            if self._closed:
                raise self._failure("the worker pool is closed")
            if self._queue.qsize() >= self._settings.max_queued:
                raise self._failure(f"{self._settings.max_queued:,} calls are queued already")
            self._queue.put((payload, future))
            if not self._idle_slots.acquire(blocking=False) and len(self._threads) < self._settings.size:
                name = f"workers:{self._settings.function}:{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run_slot, name=name, daemon=True))
                self._threads[-1].start()
        return future

    def close(self) -> None:
        """Stop the host with its workers and wait for the slot threads, which fail the queued calls."""
        with self._lock:
            self._closed = True
            host, self._host = self._host, None
        for _ in self._threads:
            self._queue.put(None)
        if host is not None:
            host.stop(grace=END_SECONDS)
        for thread in self._threads:
            thread.join()

    def release_inherited_sockets(self) -> None:
        """In a forked process, close the inherited sockets: they would keep the parent's workers running."""
        for channel in self._channels:
            channel.close()
        if self._host is not None:
            self._host.control.close()

    def _failure(self, problem: str) -> EnvFailed:
        return EnvFailed(problem, where=self._settings.function)

    def _run_slot(self) -> None:
        """Perform queued calls with one worker until the dispatcher is closed: the main function of a slot thread."""
        worker: Worker | None = None
        while (call := self._next_call()) is not None:
            payload, future = call
            if future.set_running_or_notify_cancel():
                try:
                    worker, reply = self._perform(worker, payload)
                except EnvFailed as problem:
                    worker = None
                    future.set_exception(problem)
                else:
                    future.set_result(reply)
            del call, future  # an idle slot must not reference the future
        if worker is not None:
            worker.channel.close()

    def _next_call(self) -> _QueuedCall | None:
        """Return the next queued call, waiting as an idle slot; None if the dispatcher is closed."""
        try:
            return self._queue.get_nowait()
        except Empty:
            self._idle_slots.release()
            return self._queue.get()

    def _perform(self, worker: "Worker | None", payload: bytes) -> "tuple[Worker | None, WorkerReply]":
        """Make a call; return the worker (None if it cannot take another call) and the reply."""
        reason = ""
        for _ in range(MAX_ATTEMPTS):
            worker = worker or self._start_worker()
            reply = worker.call(payload, self._settings.wall_seconds)
            if "value" in reply and worker.calls < CALLS_PER_WORKER:
                return worker, WorkerResult(reply["value"])
            worker.channel.close()
            worker = None
            if "value" in reply:
                return None, WorkerResult(reply["value"])
            if "failure" in reply:
                return None, WorkerFailure(reply["failure"], reply["reason"])
            if reply["exit"] == -signal.SIGPROF:
                return None, WorkerFailure("time", f"more than {self._settings.cpu_seconds:g} s of CPU time")
            reason = f"the worker ended with status {reply['exit']}"
        return None, WorkerFailure("crash", reason)

    def _start_worker(self) -> "Worker":
        """Start a worker, and its host if necessary; raise EnvFailed after MAX_STARTS failures."""
        problem = ""
        for _ in range(MAX_STARTS):
            with self._lock:
                if self._closed:
                    raise self._failure("the worker pool was closed")
                host = self._host = self._host or _start_host(self._settings)
                worker = Worker(host.fork_worker())
                self._channels.add(worker.channel)
            if worker.wait_until_ready():
                return worker
            worker.channel.close()
            with self._lock:
                if self._host is host:  # another slot may have replaced it
                    self._host = None
            problem = host.stop()
        raise self._failure(f"no worker could be started: {problem}")


def _start_host(settings: PoolSettings) -> WorkerHost:
    return WorkerHost(settings.function, cpu_seconds=settings.cpu_seconds, memory_bytes=settings.memory_bytes)


def _close_in_background(dispatcher: _Dispatcher) -> None:
    """Close without waiting: the garbage collector may call this on any thread, even on a slot thread."""
    with suppress(RuntimeError):  # no thread can be started at interpreter exit; the host exits with this process
        threading.Thread(target=dispatcher.close, daemon=True).start()


_POOLS: "weakref.WeakSet[WorkerPool]" = weakref.WeakSet()


def _reset_pools_after_fork() -> None:
    for pool in _POOLS:
        pool.reset_after_fork()


os.register_at_fork(after_in_child=_reset_pools_after_fork)
