"""One worker process for each session: code of another package, isolated from other sessions and with a deadline.

The processes are forks of a host that has imported the package, so that a session starts in milliseconds. A call that
takes too long ends the worker, and a worker that ends or raises fails the call; other sessions do not notice.
"""

import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from nemo_gym.errors import DeadlineExceeded, EnvFailed, SessionLost
from nemo_gym.serve.blocking import run_blocking
from nemo_gym.workers.host import encode_line
from nemo_gym.workers.process import Worker, WorkerHost

LONG_SECONDS = 86_400.0
"""CPU time of a call without another limit: the wall-clock time limits it."""
THREAD_SECONDS = 5.0
"""Time that a call may take longer than its worker, which is then killed."""

HOST_SECONDS = 2.0
"""Time that a host has to exit, in which it removes the temporary files of its package."""


@dataclass(frozen=True)
class SessionLimits:
    """The limits of one call and of all sessions."""

    seconds: float = 60.0
    """Wall-clock time of a call."""
    memory_bytes: int = 8 << 30
    max_sessions: int = 512


_shared: "weakref.WeakValueDictionary[tuple[str, SessionLimits], SessionWorkers]" = weakref.WeakValueDictionary()


def shared_workers(function: str, limits: SessionLimits) -> "SessionWorkers":
    """Return the workers of a function in this process: instances of one adapter share the host that imported it."""
    workers = _shared.get((function, limits))
    if workers is None:
        workers = _shared[(function, limits)] = SessionWorkers(function, limits)
    return workers


class SessionWorkers:
    """Calls `function` ("module:function", with JSON as argument and result) in the worker process of a session."""

    def __init__(self, function: str, limits: SessionLimits | None = None) -> None:
        self._function = function
        self._limits = limits or SessionLimits()
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self._starting: dict[str, object] = {}
        """The current start of a session whose worker is not made yet."""
        self._host: WorkerHost | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None

    def __len__(self) -> int:
        return len(self._workers)

    async def start(self, session: str, payload: Any) -> Any:
        """Give the session a new worker and make its first call.

        Raises:
            EnvFailed: too many sessions, or no worker could be started, or the call failed.
            DeadlineExceeded: the call took too long.
        """
        await self.end(session)
        start = object()
        with self._lock:
            if len(self._workers) + len(self._starting) >= self._limits.max_sessions:
                problem = f"{self._limits.max_sessions:,} sessions are open already"
                raise EnvFailed(problem, where=self._function, fix="lower --concurrency, or raise max_sessions")
            self._starting[session] = start
        try:
            worker = await run_blocking(self._start_worker, session, start)
            return await self._call(worker, payload)
        except BaseException:  # also a cancellation
            await self.end(session)
            raise

    async def call(self, session: str, payload: Any) -> Any:
        """Make a call in the worker of the session.

        Raises:
            SessionLost: the session has no worker.
            EnvFailed: the call failed, or the worker ended.
            DeadlineExceeded: the call took too long.
        """
        worker = self._workers.get(session)
        if worker is None:
            raise SessionLost("the process of this session has ended", where=self._function)
        try:
            return await self._call(worker, payload)
        except BaseException:  # the state of the worker is unknown
            await self.end(session)
            raise

    async def end(self, session: str) -> None:
        """End the worker of the session. Idempotent."""
        with self._lock:
            self._starting.pop(session, None)
            worker = self._workers.pop(session, None)
        if worker is not None:
            worker.channel.close()  # an idle worker exits when it reads the end of its input

    def close(self) -> None:
        """End all workers and their host."""
        with self._lock:
            workers, self._workers, self._starting = list(self._workers.values()), {}, {}
            host, self._host = self._host, None
        for worker in workers:
            worker.channel.close()
        if host is not None:
            host.stop(HOST_SECONDS)

    def _start_worker(self, session: str, start: object) -> Worker:
        """Start the worker of a session, and the host if necessary; not if the session has ended meanwhile."""
        with self._lock:
            if self._starting.get(session) is not start:
                raise SessionLost("this session has ended before its process was started", where=self._function)
            del self._starting[session]
            host = self._host = self._host or self._start_host()
            worker = Worker(host.fork_worker())
            self._workers[session] = worker
        if worker.wait_until_ready():
            return worker
        with self._lock:
            self._workers.pop(session, None)
            if self._host is host:  # another session may have replaced it
                self._host = None
        worker.channel.close()
        raise EnvFailed(f"no process could be started: {host.stop()}", where=self._function)

    def _start_host(self) -> WorkerHost:
        """Start the host; it ends with the garbage collection of this object, or with this process."""
        limits = self._limits
        host = WorkerHost(
            self._function, cpu_seconds=LONG_SECONDS, memory_bytes=limits.memory_bytes, environment=dict(os.environ)
        )
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, host.stop, HOST_SECONDS)
        return host

    async def _call(self, worker: Worker, payload: Any) -> Any:
        """Make a call on a thread; the worker is killed at its time limit, or when the caller gives up."""
        seconds = self._limits.seconds
        try:
            reply = await run_blocking(worker.call, encode_line(payload), seconds, timeout=seconds + THREAD_SECONDS)
        except BaseException:  # the deadline of the rollout, or a cancellation: the thread ends with the worker
            worker.kill()
            raise
        if "value" in reply:
            return reply["value"]
        if reply.get("failure") == "time":
            raise DeadlineExceeded(f"the environment did not answer within {seconds:g} s", where=self._function)
        if "failure" in reply:
            raise EnvFailed(reply["reason"], where=self._function)
        status = reply.get("exit")
        reason = "its process ended" if status is None else f"its process ended with status {status}"
        raise EnvFailed(f"{reason} during a call", where=self._function)
