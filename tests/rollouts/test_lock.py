"""One collector per output."""

import errno
import os
import subprocess
import sys

import pytest

from nemo_gym.journal import StoreError
from nemo_gym.rollouts.lock import OutputInUse, RunLock

HOLDER = """
import sys, time
from pathlib import Path
from nemo_gym.rollouts.lock import RunLock

RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_collector_is_refused_and_sees_the_holder(tmp_path):
    """Two writers would mix their results."""
    first, second = RunLock(tmp_path / "x.lock"), RunLock(tmp_path / "x.lock")
    first.acquire()

    with pytest.raises(OutputInUse, match=f"process {os.getpid()} on .* is collecting"):
        second.acquire()

    first.release()
    second.acquire()
    second.release()


def test_nothing_is_left_behind(tmp_path):
    """A lock file that stays makes users wonder whether a run is active."""
    lock = RunLock(tmp_path / "deep" / "x.lock")
    lock.acquire()
    lock.release()
    lock.release()

    assert list((tmp_path / "deep").iterdir()) == []


def test_a_holder_that_was_killed_lets_go(tmp_path):
    """`kill -9` must not leave an output that cannot be resumed; the file that stays means nothing."""
    path = tmp_path / "x.lock"
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(OutputInUse, match=f"process {child.pid} "):
            RunLock(path).acquire()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert path.exists()

    lock = RunLock(path)
    lock.acquire()
    lock.release()


def test_a_lock_that_says_nothing_is_still_a_lock(tmp_path):
    """Between taking the lock and writing who has it there is a moment."""
    first = RunLock(tmp_path / "x.lock")
    first.acquire()
    (tmp_path / "x.lock").write_bytes(b"")

    with pytest.raises(OutputInUse, match="another process"):
        RunLock(tmp_path / "x.lock").acquire()
    first.release()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    """The message must come before the servers start."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="cannot write"):
        RunLock(tmp_path / "file" / "x.lock").acquire()


def test_a_full_disk_names_the_file_and_leaves_no_lock(tmp_path, monkeypatch):
    """The lock is the first file of a run, so that a full disk shows here; the next run must find no trace of it."""

    def full_disk(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full_disk)

    with pytest.raises(StoreError, match="cannot write: No space left on device") as caught:
        RunLock(tmp_path / "out.jsonl").acquire()

    assert caught.value.where.startswith(str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []
