"""A pool of processes that prepare chunks in parallel and return the results in order.

If this process has no other threads, workers are forks of it, which need no imports. Otherwise they are new
interpreters (`python -m nemo_gym.data.chunk_pool`), because a fork would inherit locks that other threads hold. A
worker reads pickled tasks from one pipe, writes pickled results to another and exits at the end of its input, so it
exits with its parent.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, BinaryIO, NoReturn, Self, TypeAlias

from nemo_gym.data.chunks import ChunkPreparer, ChunkTask, PreparedChunk
from nemo_gym.data.row_metrics import token_counter
from nemo_gym.errors import GymError
from nemo_gym.processes import ForkedChild, has_single_thread

MIN_PARALLEL_BYTES = 16 * 1024 * 1024
"""Minimum size of the data, in bytes, for which worker processes are started."""
MAX_PROCESSES = 8
"""Default maximum number of worker processes; each uses about 100 MB."""
EXIT_SECONDS = 5.0

_Worker: TypeAlias = "subprocess.Popen[bytes] | ForkedWorker"


class WorkerFailed(GymError):
    """A worker process exited unexpectedly."""

    exit_status = 3


def usable_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_chunks(tasks: Iterable[ChunkTask], *, processes: int) -> Generator[PreparedChunk, None, None]:
    """Yield the results of the tasks in task order; `processes=1` runs them in this process."""
    if processes <= 1:
        yield from map(ChunkPreparer().prepare, tasks)
        return
    with ChunkWorkers(processes) as workers:
        yield from workers.results(tasks)


class ChunkWorkers:
    """A group of worker processes, as a context manager that kills them on exit."""

    def __init__(self, count: int) -> None:
        self._workers = fork_workers(count) if has_single_thread() else [_spawn_worker() for _ in range(count)]
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="dataset")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()  # workers have no state to save; threads that wait for a result wake up
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.wait(EXIT_SECONDS)
            for pipe in (worker.stdin, worker.stdout):
                with suppress(OSError):  # flushing a buffered task fails without a reader
                    if pipe is not None:
                        pipe.close()

    def results(self, tasks: Iterable[ChunkTask]) -> Iterator[PreparedChunk]:
        """Yield results in task order; at most two tasks per worker are submitted in advance."""
        pending: deque[Future[PreparedChunk]] = deque()
        for task in tasks:
            pending.append(self._threads.submit(self._prepare, task))
            if len(pending) > 2 * len(self._workers):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _prepare(self, task: ChunkTask) -> PreparedChunk:
        """Send a task to an idle worker and return its reply, or raise the exception it sent."""
        worker = self._idle.get()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            pickle.dump(task, worker.stdin)
            worker.stdin.flush()
            reply: PreparedChunk | Exception = pickle.load(worker.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            status = worker.poll()
            problem = f"the worker process of {task.chunk.path} ended" + (f" with status {status}" if status else "")
            raise WorkerFailed(problem, fix="check the free memory, or use fewer processes") from None
        finally:
            self._idle.put(worker)  # also after its exit, so that the next task fails instead of waiting
        if isinstance(reply, Exception):
            raise reply
        return reply


class ForkedWorker(ForkedChild):
    """A fork of this process that prepares chunks."""

    def __init__(self, others: "Sequence[ForkedWorker]") -> None:
        task_reader, task_writer = os.pipe()
        reply_reader, reply_writer = os.pipe()
        super().__init__(os.fork())
        if self.pid == 0:
            inherited = [task_writer, reply_reader, *(fd for other in others for fd in other.descriptors)]
            _run_forked(task_reader, reply_writer, inherited)
        os.close(task_reader)
        os.close(reply_writer)
        self.stdin: IO[bytes] = os.fdopen(task_writer, "wb")
        self.stdout: IO[bytes] = os.fdopen(reply_reader, "rb")

    @property
    def descriptors(self) -> tuple[int, int]:
        return self.stdin.fileno(), self.stdout.fileno()


def fork_workers(count: int) -> list[_Worker]:
    """Fork this process `count` times."""
    token_counter()  # loaded before the forks, which share it
    workers: list[ForkedWorker] = []
    for _ in range(count):
        workers.append(ForkedWorker(workers))
    return list(workers)


def _run_forked(tasks: int, replies: int, inherited: Sequence[int]) -> NoReturn:
    """Serve tasks in a fork, then exit: the fork must not return into the code of its parent."""
    status = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C goes to the parent, which then kills its workers
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in inherited:  # while a write end is open, workers do not see the end of their input
            os.close(descriptor)
        with os.fdopen(tasks, "rb") as task_pipe, os.fdopen(replies, "wb") as reply_pipe:
            serve_tasks(task_pipe, reply_pipe)
        status = 0
    finally:
        os._exit(status)


def _spawn_worker() -> _Worker:
    """Start a worker as a new interpreter."""
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "nemo_gym.data.chunk_pool"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C goes to the parent, which then kills its workers
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "PYTHONHASHSEED": "0",
        },  # `DistinctCounter` needs the same hash seed in all processes
    )


def serve_tasks(tasks: BinaryIO, replies: BinaryIO) -> None:
    """Read tasks and write replies until the input ends."""
    preparer = ChunkPreparer()
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            return
        try:
            reply: PreparedChunk | Exception = preparer.prepare(task)
        except (GymError, OSError) as error:
            reply = error
        try:
            pickle.dump(reply, replies)
            replies.flush()
        except BrokenPipeError:
            return


def main() -> None:
    """Serve tasks from standard input."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not mix with the replies
    serve_tasks(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
