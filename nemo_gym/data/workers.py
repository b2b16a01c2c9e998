"""Processes that work on chunks side by side, and the order in which their results come back.

Each is a fresh interpreter that runs `nemo_gym.data.worker`.
"""

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Self, TypeAlias

from nemo_gym.data.prepare import Prepared, Preparer, Task
from nemo_gym.errors import GymError

PARALLEL_FROM = 16 * 1024 * 1024
"""Bytes from which starting processes pays."""

MOST = 8
"""Processes by default; each takes about 100 MB."""

PATIENCE = 5.0

_Process: TypeAlias = "subprocess.Popen[bytes]"


class WorkerFailed(GymError):
    """A process that worked on the rows is gone."""

    exit_status = 3


def usable_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_all(tasks: Iterable[Task], *, processes: int) -> Generator[Prepared, None, None]:
    """The results of the tasks, in their order; with one process, in this one."""
    if processes <= 1:
        preparer = Preparer()
        yield from map(preparer.prepare, tasks)
        return
    with Workers(processes) as workers:
        yield from workers.results(tasks)


class Workers:
    """A few processes. Leaving the block ends them, whatever they are doing."""

    def __init__(self, count: int) -> None:
        self._processes = [_started() for _ in range(count)]
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="dataset")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()  # they hold nothing but a chunk that was read; a thread that waits for one is woken
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.wait(PATIENCE)
            for pipe in (process.stdin, process.stdout):
                _close(pipe)

    def results(self, tasks: Iterable[Task]) -> Iterator[Prepared]:
        """Results in the order of the tasks; only a few tasks are ahead of the result that is waited for."""
        waiting: deque[Future[Prepared]] = deque()
        for task in tasks:
            waiting.append(self._threads.submit(self._prepared, task))
            if len(waiting) > 2 * len(self._processes):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _prepared(self, task: Task) -> Prepared:
        process = self._idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(task, process.stdin)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            status = process.poll()
            what = f"a process working on {task.chunk.path} ended" + (f" with status {status}" if status else "")
            raise WorkerFailed(what, fix="look at the memory of the machine, or use fewer processes") from None
        finally:
            self._idle.put(process)  # also a dead one: whoever is next must fail, not wait
        if isinstance(answer, Exception):
            raise answer
        found: Prepared = answer
        return found


def _started() -> _Process:
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "nemo_gym.data.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C is for the one that started them, who then ends them
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},  # one seed, or hashes could not be compared
    )


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        try:
            pipe.close()
        except OSError:  # what was still to be written has no reader any more
            return
