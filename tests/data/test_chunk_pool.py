"""Parallel work gives the same results, and no process outlives its parent."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from nemo_gym.data import chunk_pool
from nemo_gym.data.chunk_pool import ChunkWorkers, WorkerFailed, prepare_chunks
from nemo_gym.data.chunks import ChunkTask, line_span
from nemo_gym.data.row_metrics import Metrics
from tests.processes import PATIENCE, eventually, is_gone


def wait_until_gone(pids) -> None:
    waited_for = list(pids)
    assert eventually(lambda: all(map(is_gone, waited_for))), "a process is still there"


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"responses_create_params": {"input": f"What is {n} + {n}?"}, "answer": str(2 * n)} for n in range(300)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def tasks_of(path):
    return [ChunkTask(chunk, "agent") for chunk in line_span(path).chunks(2000)]


def test_two_processes_return_the_results_of_one_in_the_same_order(rows):
    """Also for distinct texts, which are counted by hashes that differ between processes."""
    tasks = tasks_of(rows)
    alone = list(prepare_chunks(tasks, processes=1))

    together = list(prepare_chunks(tasks, processes=2))

    assert len(tasks) > 6
    assert [chunk.written for chunk in together] == [chunk.written for chunk in alone]
    merged, expected = Metrics(), Metrics()
    for one, other in zip(together, alone, strict=True):
        merged.merge(one.metrics)
        expected.merge(other.metrics)
    assert merged.report() == expected.report()
    assert merged.report()["answer"] == {"unique_count": 300, "total_count": 300}


def test_stopping_early_ends_the_processes(rows):
    """Workers must not use the machine for results that are not needed."""
    with ChunkWorkers(2) as running:
        pids = [process.pid for process in running._workers]
        with closing(running.results(tasks_of(rows))) as results:
            next(results)

    wait_until_gone(pids)


def test_a_dead_worker_is_an_error_and_not_a_hang(rows):
    """The kernel kills processes when memory runs out."""
    with ChunkWorkers(1) as running:
        running._workers[0].kill()
        running._workers[0].wait(PATIENCE)

        with pytest.raises(WorkerFailed, match=r"rows\.jsonl ended with status -9"):
            list(running.results(tasks_of(rows)))


def test_an_error_in_a_worker_is_raised_unchanged(rows):
    """A missing file must not look like a failed worker."""
    tasks = tasks_of(rows)
    rows.unlink()

    with ChunkWorkers(1) as running, pytest.raises(FileNotFoundError):
        list(running.results(tasks))


def test_workers_exit_with_their_parent(tmp_path):
    """A killed parent cannot stop its workers."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time\n"
        "from nemo_gym.data.chunk_pool import ChunkWorkers\n"
        "running = ChunkWorkers(2)\n"
        "print(*[process.pid for process in running._workers], flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2

        os.kill(parent.pid, signal.SIGKILL)

        wait_until_gone(pids)


def test_one_process_starts_no_worker(rows, monkeypatch):
    """Starting a worker takes longer than a small file."""
    monkeypatch.setattr(chunk_pool, "_spawn_worker", lambda: pytest.fail("a process was started"))

    assert list(prepare_chunks(tasks_of(rows), processes=1))


FORKING = """
import os, sys
from pathlib import Path
from nemo_gym.data.chunks import ChunkTask, line_span

from nemo_gym.data.chunk_pool import ChunkWorkers, ForkedWorker
from nemo_gym.processes import has_single_thread

assert has_single_thread()
tasks = [ChunkTask(chunk, "agent") for chunk in line_span(Path(sys.argv[1])).chunks(2000)]
with ChunkWorkers(2) as running:
    assert all(isinstance(process, ForkedWorker) for process in running._workers)
    print(*[process.pid for process in running._workers], flush=True)
    if sys.argv[2] == "die":
        os.kill(os.getpid(), 9)
    print(sum(chunk.metrics.examples for chunk in running.results(tasks)), flush=True)
"""


def run_forking(path, how: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", FORKING, str(path), how], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_a_process_without_threads_forks_its_workers(rows):
    """A fork has everything imported and starts at once."""
    done = run_forking(rows, "work")

    pids, count = done.stdout.splitlines()
    assert (done.returncode, count, done.stderr) == (0, "300", "")
    wait_until_gone(map(int, pids.split()))


def test_forked_workers_exit_with_their_parent(rows):
    """A fork inherits the pipes of the others, and an open one would hide the end of the input."""
    done = run_forking(rows, "die")

    assert done.returncode == -signal.SIGKILL
    wait_until_gone([int(pid) for pid in done.stdout.split()])
