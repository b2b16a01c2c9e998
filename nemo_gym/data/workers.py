"""Processes that work on chunks side by side, and the order in which their results come back.

Each runs `nemo_gym.data.worker`: as a fork, which has everything imported already, where this process has no other
threads; otherwise as a fresh interpreter, because a fork would keep their locks and lose the threads.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, NoReturn, Self, TypeAlias

from nemo_gym.data.prepare import Prepared, Preparer, Task
from nemo_gym.data.tokens import token_counter
from nemo_gym.data.worker import work
from nemo_gym.errors import GymError
from nemo_gym.forks import Child, is_alone

PARALLEL_FROM = 16 * 1024 * 1024
"""Bytes from which starting processes pays."""

MOST = 8
"""Processes by default; each takes about 100 MB."""

PATIENCE = 5.0

_Process: TypeAlias = "subprocess.Popen[bytes] | Forked"


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
        self._processes: list[_Process] = forked(count) if is_alone() else [_started() for _ in range(count)]
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


class Forked(Child):
    """A fork of this process that works on chunks."""

    def __init__(self, others: "Sequence[Forked]") -> None:
        tasks, own_tasks = os.pipe()
        own_answers, answers = os.pipe()
        super().__init__(os.fork())
        if self.pid == 0:
            _be_a_worker(
                tasks, answers, [own_tasks, own_answers, *(fd for other in others for fd in other.descriptors)]
            )
        os.close(tasks)
        os.close(answers)
        self.stdin: IO[bytes] = os.fdopen(own_tasks, "wb")
        self.stdout: IO[bytes] = os.fdopen(own_answers, "rb")

    @property
    def descriptors(self) -> tuple[int, int]:
        return self.stdin.fileno(), self.stdout.fileno()


def forked(count: int) -> list[_Process]:
    """So many forks of this process."""
    token_counter()  # loaded once, for all of them
    found: list[Forked] = []
    for _ in range(count):
        found.append(Forked(found))
    return list(found)


def _be_a_worker(tasks: int, answers: int, not_mine: Sequence[int]) -> NoReturn:
    """Work in a fork, and never return into what the process was doing."""
    status = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the one that started it, who then ends it
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in not_mine:  # or it would not see that its input has ended
            os.close(descriptor)
        with os.fdopen(tasks, "rb") as given, os.fdopen(answers, "wb") as answered:
            work(given, answered)
        status = 0
    finally:
        os._exit(status)


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
