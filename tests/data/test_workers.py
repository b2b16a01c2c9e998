"""Processes change how long it takes, and nothing else."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from nemo_gym.data import workers
from nemo_gym.data.chunks import span_of
from nemo_gym.data.measure import Metrics
from nemo_gym.data.prepare import Task
from nemo_gym.data.workers import WorkerFailed, Workers, prepare_all
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
    return [Task(chunk, "agent") for chunk in span_of(path).chunks(2000)]


def test_two_processes_find_what_one_finds_in_the_same_order(rows):
    """Distinct texts too, which are known by hashes that differ between processes."""
    tasks = tasks_of(rows)
    alone = list(prepare_all(tasks, processes=1))

    together = list(prepare_all(tasks, processes=2))

    assert len(tasks) > 6
    assert [found.written for found in together] == [found.written for found in alone]
    merged, expected = Metrics(), Metrics()
    for one, other in zip(together, alone, strict=True):
        merged.merge(one.metrics)
        expected.merge(other.metrics)
    assert merged.report() == expected.report()
    assert merged.report()["answer"] == {"unique_count": 300, "total_count": 300}


def test_stopping_early_ends_the_processes(rows):
    """Nobody works on for a result that is not wanted."""
    with Workers(2) as running:
        pids = [process.pid for process in running._processes]
        with closing(running.results(tasks_of(rows))) as results:
            next(results)

    wait_until_gone(pids)


def test_a_process_that_dies_is_told_and_does_not_hang(rows):
    """The kernel ends processes when memory runs out."""
    with Workers(1) as running:
        running._processes[0].kill()
        running._processes[0].wait(PATIENCE)

        with pytest.raises(WorkerFailed, match=r"rows\.jsonl ended with status -9"):
            list(running.results(tasks_of(rows)))


def test_a_file_that_vanishes_is_an_error_of_the_file(rows):
    """What goes wrong in a process is raised here as what it is."""
    tasks = tasks_of(rows)
    rows.unlink()

    with Workers(1) as running, pytest.raises(FileNotFoundError):
        list(running.results(tasks))


def test_processes_end_with_the_one_that_started_them(tmp_path):
    """Even if that one is killed and can tell nobody."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time\n"
        "from nemo_gym.data.workers import Workers\n"
        "running = Workers(2)\n"
        "print(*[process.pid for process in running._processes], flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2

        os.kill(parent.pid, signal.SIGKILL)

        wait_until_gone(pids)


def test_one_process_starts_none(rows, monkeypatch):
    """Small files are done before a process would have started."""
    monkeypatch.setattr(workers, "_started", lambda: pytest.fail("a process was started"))

    assert list(prepare_all(tasks_of(rows), processes=1))


FORKING = """
import os, sys
from pathlib import Path
from nemo_gym.data.chunks import span_of
from nemo_gym.data.prepare import Task
from nemo_gym.data.workers import Forked, Workers
from nemo_gym.forks import is_alone

assert is_alone()
tasks = [Task(chunk, "agent") for chunk in span_of(Path(sys.argv[1])).chunks(2000)]
with Workers(2) as running:
    assert all(isinstance(process, Forked) for process in running._processes)
    print(*[process.pid for process in running._processes], flush=True)
    if sys.argv[2] == "die":
        os.kill(os.getpid(), 9)
    print(sum(found.metrics.examples for found in running.results(tasks)), flush=True)
"""


def run_forking(path, how: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", FORKING, str(path), how], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_a_process_without_threads_forks_its_workers(rows):
    """They begin at once, with everything imported; the same rows come back, and nobody is left."""
    done = run_forking(rows, "work")

    pids, count = done.stdout.splitlines()
    assert (done.returncode, count, done.stderr) == (0, "300", "")
    wait_until_gone(map(int, pids.split()))


def test_forked_workers_end_with_the_process_that_made_them(rows):
    """Also when it is killed: each sees the end of its own input, because none holds another one's pipe open."""
    done = run_forking(rows, "die")

    assert done.returncode == -signal.SIGKILL
    wait_until_gone([int(pid) for pid in done.stdout.split()])
