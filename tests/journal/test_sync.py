"""A power cut costs what was written in the last second, not the night."""

import errno
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from nemo_gym.journal import LineWriter, StoreError
from nemo_gym.rollouts.outcome import Job, ScoredRollout
from nemo_gym.rollouts.store import RolloutStore

PATIENCE = 30.0


def job(task: int) -> Job:
    return Job.of({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})


@pytest.fixture
def sync_count(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts how often the system was asked to write through."""
    real, count = os.fsync, threading.Semaphore(0)

    def counting(descriptor: int) -> None:
        real(descriptor)
        count.release()

    monkeypatch.setattr("nemo_gym.journal.os.fsync", counting)
    return count


def test_results_reach_the_disk_while_the_run_goes_on(tmp_path: Path, sync_count: threading.Semaphore) -> None:
    """A power cut before the end of a run must cost seconds, and syncing must not block the writer."""
    with RolloutStore(tmp_path / "x.jsonl", sync_seconds=0.01) as store:
        store.open()
        for task in range(2):
            store.write(ScoredRollout(job(task), {"reward": 1.0}))
            assert sync_count.acquire(timeout=PATIENCE)


def test_a_file_that_did_not_grow_is_left_alone(tmp_path: Path, sync_count: threading.Semaphore) -> None:
    """A run that waits for its model does not keep the disk awake."""
    with closing(LineWriter(tmp_path / "x.jsonl")) as writer:
        writer.append(b'{"a":1}\n')
        writer.sync()
        writer.sync()

    assert sync_count.acquire(blocking=False)
    assert not sync_count.acquire(blocking=False)


def test_a_disk_that_lost_what_it_was_given_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails in the background must not go unnoticed until the end."""
    writer = LineWriter(tmp_path / "x.jsonl")
    writer.append(b'{"a":1}\n')

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr("nemo_gym.journal.os.fsync", failing)
        writer.sync()

    with pytest.raises(StoreError, match="Input/output error"):
        writer.append(b'{"a":2}\n')
    writer.close()
    assert (tmp_path / "x.jsonl").read_bytes() == b'{"a":1}\n'


def test_without_an_interval_there_is_no_thread(tmp_path: Path) -> None:
    """`sync_seconds: null` means: at the end only."""
    with RolloutStore(tmp_path / "x.jsonl") as store:
        store.open()

        assert not [thread for thread in threading.enumerate() if thread.name == "sync"]
