"""Parallel work gives the same results, and no process outlives its parent."""

import json
import signal
import subprocess
import sys
import threading

import pytest

from nemo_gym.data import chunks
from nemo_gym.data.chunks import ChunkSpec, line_span, prepare_chunks
from tests.processes import PATIENCE, eventually, is_gone


def wait_until_gone(pids) -> None:
    waited_for = list(pids)
    assert eventually(lambda: all(map(is_gone, waited_for))), "a process is still there"


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [
        {"responses_create_params": {"input": f"What is {n} + {n}?"}, "answer": str(2 * n)} for n in range(6000)
    ]  # more than a pipe holds
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def tasks_of(path):
    return [ChunkSpec(chunk, "agent") for chunk in line_span(path).chunks(2000)]


# Only a process with one thread starts workers, and the process of the tests may have several.
SCRIPT = """
import multiprocessing, os, signal, sys
from pathlib import Path

from nemo_gym.data.chunks import ChunkSpec, line_span, prepare_chunks
from nemo_gym.data.row_metrics import Metrics

path = Path(sys.argv[1])
tasks = [ChunkSpec(chunk, "agent") for chunk in line_span(path).chunks(2000)]
results = prepare_chunks(tasks, processes=2)
if sys.argv[2] == "missing file":
    path.unlink()
first = next(results)
pids = [child.pid for child in multiprocessing.active_children()]
assert len(pids) == 2
print(*pids, flush=True)
if sys.argv[2] == "parent dies":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "stop early":
    results.close()
    sys.exit()
if sys.argv[2] == "worker dies":
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

alone = list(prepare_chunks(tasks, processes=1))
together = [first, *results]
assert len(tasks) > 6
assert [task for task, _ in together] == tasks
assert [chunk.written for _, chunk in together] == [chunk.written for _, chunk in alone]
merged, expected = Metrics(), Metrics()
for (_, one), (_, other) in zip(together, alone):
    merged.merge(one.metrics)
    expected.merge(other.metrics)
assert merged.report() == expected.report()
assert merged.report()["answer"] == {"unique_count": 6000, "total_count": 6000}
"""


def run_script(path, case: str) -> "subprocess.CompletedProcess[str]":
    """Prepare the chunks of a file in two workers; the script prints their process ids."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), case], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_two_processes_return_the_results_of_one_in_the_same_order(rows):
    """Also for distinct texts, which are counted by hashes."""
    done = run_script(rows, "work")

    assert (done.returncode, done.stderr) == (0, "")
    wait_until_gone(map(int, done.stdout.split()))


def test_stopping_early_ends_the_processes(rows):
    """Workers must not use the machine for results that are not needed."""
    done = run_script(rows, "stop early")

    assert (done.returncode, done.stderr) == (0, "")
    wait_until_gone(map(int, done.stdout.split()))


def test_a_dead_worker_is_an_error_and_not_a_hang(rows):
    """The kernel kills processes when memory runs out."""
    done = run_script(rows, "worker dies")

    assert "rows.jsonl ended unexpectedly" in done.stderr
    wait_until_gone(map(int, done.stdout.split()))


def test_an_error_in_a_worker_is_raised_unchanged(rows):
    """A missing file must not look like a failed worker."""
    assert "FileNotFoundError" in run_script(rows, "missing file").stderr.splitlines()[-1]


def test_workers_exit_with_their_parent(rows):
    """A killed parent cannot stop its workers."""
    done = run_script(rows, "parent dies")

    assert done.returncode == -signal.SIGKILL
    wait_until_gone(map(int, done.stdout.split()))


def test_one_process_or_several_threads_start_no_worker(rows, monkeypatch):
    """Starting a worker takes longer than a small file, and a fork copies the locks of other threads."""
    monkeypatch.setattr(chunks.multiprocessing, "get_context", lambda *_: pytest.fail("a process was started"))

    assert list(prepare_chunks(tasks_of(rows), processes=1))

    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert list(prepare_chunks(tasks_of(rows), processes=2))
    finally:
        done.set()
        other.join()
