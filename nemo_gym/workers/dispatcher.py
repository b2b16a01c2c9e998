"""The thread that owns a pool's host process, its workers and their clocks."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO

from nemo_gym.workers.host import FRAME, HEADER
from nemo_gym.workers.jobs import Finished, Job, JobQueue, Limits, Lost

START_SECONDS = 120.0
"""Longest wait for a worker to be ready."""
END_SECONDS = 5.0
"""Longest wait for the host to end by itself."""
JOBS_PER_WORKER = 2000
"""Then it is replaced, so that nothing a library remembers grows for ever."""
MOST_STARTS = 3
"""A host or a worker that ends this often before it is ready is given up."""

_PYTHON_NEEDS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")
"""What an interpreter may need to start. Workers drop it like all of their environment."""


@dataclass(eq=False)
class _Worker:
    number: int
    channel: socket.socket
    ends: float
    """When the clock of what it does now runs out; 0 for none."""
    received: bytearray = field(default_factory=bytearray)
    job: Job | None = None
    is_ready: bool = False
    is_leaving: bool = False
    jobs: int = 0
    out_of_time: bool = False


class Dispatcher:
    """Begins with its first job and runs until it is closed."""

    def __init__(self, limits: Limits, queue: JobQueue) -> None:
        self.limits = limits
        self.queue = queue
        self.wake, self.woken = socket.socketpair()
        self.wake.setblocking(False)
        self.selector = DefaultSelector()
        self.host: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.complaints: IO[bytes] | None = None
        self.workers: dict[int, _Worker] = {}
        self.forked = 0
        self.starts = 0
        self.closing = False
        self.thread = threading.Thread(target=self.run, name=f"workers:{limits.work}", daemon=True)
        self.thread.start()

    # -- called by other threads

    @property
    def is_alive(self) -> bool:
        return self.thread.is_alive()

    def add(self, job: Job) -> None:
        self.queue.add(job)
        with suppress(BlockingIOError):  # then it is woken already
            self.wake.send(b"!")

    def close(self) -> None:
        self.ask_to_stop()
        self.thread.join()

    def ask_to_stop(self) -> None:
        self.closing = True
        with suppress(OSError):  # it is awake, or gone
            self.wake.send(b"!")

    def let_go(self) -> None:
        """In a forked child: close what would keep the parent's processes alive."""
        for one in (self.wake, self.woken, self.control, *(worker.channel for worker in self.workers.values())):
            if one is not None:
                one.close()

    # -- the thread

    def run(self) -> None:
        self.selector.register(self.woken, EVENT_READ, self.wake_up)
        try:
            while not self.closing:
                self.assign()
                for key, _ in self.selector.select(self.patience()):
                    hear: Callable[[], object] = key.data
                    hear()
                self.check_clocks()
        finally:
            self.stop()

    def wake_up(self) -> None:
        self.woken.recv(65536)

    def patience(self) -> float | None:
        ends = [worker.ends for worker in self.workers.values() if worker.ends]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def assign(self) -> None:
        """Give waiting jobs to idle workers; while jobs wait, fork one more worker at a time."""
        for worker in [w for w in self.workers.values() if w.is_ready and not w.is_leaving and w.job is None]:
            job = self.queue.take()
            if job is None:
                return
            worker.job, worker.ends = job, time.monotonic() + self.limits.wall_seconds
            with suppress(OSError):  # it has ended; the host says so next
                worker.channel.sendall(HEADER.pack(len(job.payload)) + job.payload)
        staying = [worker for worker in self.workers.values() if not worker.is_leaving]
        if self.queue and len(staying) < self.limits.size and all(worker.is_ready for worker in staying):
            self.fork()

    def fork(self) -> None:
        control = self.control or self.start_host()
        ours, theirs = socket.socketpair()
        self.forked += 1
        worker = _Worker(self.forked, ours, time.monotonic() + START_SECONDS)
        self.workers[worker.number] = worker
        self.selector.register(ours, EVENT_READ, lambda: self.hear_worker(worker))
        with theirs, suppress(OSError):  # the host has ended; its socket says so next
            socket.send_fds(control, [FRAME.pack(b"F", worker.number, 0)], [theirs.fileno()])

    def start_host(self) -> socket.socket:
        self.control, theirs = socket.socketpair()
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the host
        limits = self.limits
        with theirs:
            self.host = subprocess.Popen(
                [
                    sys.executable,
                    "-P",  # nothing is imported from where it happens to run
                    "-m",
                    "nemo_gym.workers.host",
                    limits.work,
                    str(limits.cpu_seconds),
                    str(limits.memory_bytes),
                ],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self.complaints,
                cwd="/",
                env={
                    **{name: os.environ[name] for name in _PYTHON_NEEDS if name in os.environ},
                    "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
                    "PYTHONHASHSEED": "0",  # the same order of everything, hence the same verdict, every time
                    "LC_ALL": "C.UTF-8",
                },
            )
        self.selector.register(self.control, EVENT_READ, self.hear_host)
        self.starts += 1
        return self.control

    def hear_worker(self, worker: _Worker) -> bool:
        """Take what a worker says; False when there is nothing (more)."""
        try:
            received = worker.channel.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if not received:
            self.stop_listening(worker.channel)  # the host says how it ended
            return False
        worker.received += received
        while len(worker.received) >= HEADER.size:
            (size,) = HEADER.unpack(worker.received[: HEADER.size])
            end = HEADER.size + size
            if len(worker.received) < end:
                break
            reply = bytes(worker.received[HEADER.size : end])
            del worker.received[:end]
            self.deliver(worker, reply)
        return True

    def deliver(self, worker: _Worker, reply: bytes) -> None:
        job, worker.job, worker.ends = worker.job, None, 0.0
        if job is None:
            worker.is_ready, self.starts = True, 0
            return
        said = json.loads(reply)
        worker.jobs += 1
        if "lost" in said:
            worker.is_leaving = True
            job.future.set_result(Lost(said["lost"], said.get("reason", "out of memory")))
        else:
            if worker.jobs >= JOBS_PER_WORKER:
                worker.is_leaving = True
                self.kill(worker)
            job.future.set_result(Finished(said["value"]))

    def kill(self, worker: _Worker) -> None:
        with suppress(OSError):  # the host is gone, and its workers with it
            if self.control is not None:
                self.control.sendall(FRAME.pack(b"K", worker.number, 0))

    def hear_host(self) -> None:
        if self.control is None:
            return
        try:
            data = self.control.recv(FRAME.size, socket.MSG_WAITALL)
        except OSError:
            data = b""
        if len(data) < FRAME.size:
            self.host_ended()
            return
        _, number, status = FRAME.unpack(data)
        worker = self.workers.get(number)
        if worker is not None:
            worker.channel.setblocking(False)
            while self.hear_worker(worker):  # what it said before it ended
                pass
            self.drop(worker)
            self.worker_ended(worker, status)

    def worker_ended(self, worker: _Worker, status: int) -> None:
        job = worker.job
        if not worker.is_ready:
            self.starts += 1
            if self.starts > MOST_STARTS:
                self.host_ended()
        if job is None:
            return
        if status == -signal.SIGPROF:
            job.future.set_result(Lost("time", f"more than {self.limits.cpu_seconds:g} s of CPU time"))
        elif worker.out_of_time:
            job.future.set_result(Lost("time", f"more than {self.limits.wall_seconds:g} s"))
        elif not job.tried_again:  # killed by somebody else, perhaps for somebody else's memory: once more
            job.tried_again = True
            self.queue.give_back(job)
        else:
            job.future.set_result(Lost("crash", f"the worker ended with status {status}"))

    def host_ended(self) -> None:
        """Without its host a worker is dead or dying: its job is done again, unless no host lives."""
        problem = self.close_host()
        for worker in list(self.workers.values()):
            self.drop(worker)
            if worker.job is not None:
                self.queue.give_back(worker.job)
        if self.starts >= MOST_STARTS:
            self.starts = 0
            self.queue.fail_all(f"no worker gets ready: {problem}")

    def check_clocks(self) -> None:
        now = time.monotonic()
        for worker in list(self.workers.values()):
            if not worker.ends or worker.ends > now:
                continue
            worker.ends = 0.0
            if worker.is_ready:
                worker.out_of_time = True
                self.kill(worker)
            elif self.host is not None:
                self.host.kill()  # it hangs in its import

    def stop_listening(self, channel: socket.socket) -> None:
        with suppress(KeyError, ValueError):  # already
            self.selector.unregister(channel)

    def drop(self, worker: _Worker) -> None:
        self.workers.pop(worker.number, None)
        self.stop_listening(worker.channel)
        worker.channel.close()

    def close_host(self) -> str:
        """End the host, which ends its workers; returns the last thing it complained about."""
        if self.control is not None:
            self.stop_listening(self.control)
            self.control.close()
            self.control = None
        said = ""
        if self.host is not None:
            try:
                self.host.wait(END_SECONDS if any(w.is_ready for w in self.workers.values()) else 0.2)
            except subprocess.TimeoutExpired:
                self.host.kill()
                self.host.wait()
            said = f"status {self.host.returncode}"
            self.host = None
        if self.complaints is not None:
            self.complaints.seek(0)
            lines = self.complaints.read(1 << 20).decode(errors="replace").strip().splitlines()
            self.complaints.close()
            self.complaints = None
            said = lines[-1] if lines else said
        return said

    def stop(self) -> None:
        unfinished = [worker.job for worker in self.workers.values() if worker.job is not None]
        self.close_host()
        for worker in list(self.workers.values()):
            self.drop(worker)
        for job in unfinished:
            self.queue.give_back(job)
        self.queue.close("the worker pool was closed")
        self.wake.close()
        self.woken.close()
        self.selector.close()
