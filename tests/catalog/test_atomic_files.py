"""Files appear complete or not at all, alone and in groups."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.catalog.atomic_files import StagedFiles, whole_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_appears_when_the_block_ends(tmp_path):
    """A reader of the folder must never see half a file."""
    path = tmp_path / "new" / "out.jsonl"

    with whole_file(path) as stream:
        stream.write(b"one\n")
        assert not path.exists()

    assert path.read_bytes() == b"one\n"
    assert os.listdir(path.parent) == ["out.jsonl"]


def test_a_failure_leaves_the_earlier_file(tmp_path):
    """A complete earlier result is better than half a new one."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"earlier\n")

    with pytest.raises(RuntimeError, match="half way"), whole_file(path) as stream:
        stream.write(b"new")
        raise RuntimeError("half way")

    assert path.read_bytes() == b"earlier\n"
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_the_file_has_the_mode_of_any_new_file(tmp_path):
    """Other users of the same group must be able to read results."""
    with whole_file(tmp_path / "whole") as stream:
        stream.write(b"")
    (tmp_path / "plain").write_bytes(b"")

    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_no_file_appears_before_commit(tmp_path):
    """Rows and their metrics must not be from different runs."""
    (tmp_path / "a").write_text("old")

    with StagedFiles() as staged:
        staged.create(tmp_path / "a").write(b"new")
        staged.write(tmp_path / "deep" / "b", b"new")
        assert (tmp_path / "a").read_text() == "old"
        assert not (tmp_path / "deep" / "b").exists()
        staged.commit()

    assert (tmp_path / "a").read_text() == "new"
    assert (tmp_path / "deep" / "b").read_text() == "new"
    assert names(tmp_path) == ["a", "deep"]


def test_an_error_leaves_no_file_or_folder(tmp_path):
    """An empty folder looks like the result of a run."""
    with pytest.raises(RuntimeError), StagedFiles() as staged:
        staged.write(tmp_path / "deep" / "er" / "a", b"new")
        raise RuntimeError

    assert names(tmp_path) == []


def test_an_interrupt_right_after_creating_a_file_leaves_no_file(tmp_path, monkeypatch):
    """Python handles a signal after the call that created the file, before its result is stored."""
    open_file = Path.open

    def open_and_interrupt(path, mode):
        open_file(path, mode).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "open", open_and_interrupt)
    with pytest.raises(KeyboardInterrupt), StagedFiles() as staged:
        staged.create(tmp_path / "deep" / "a")

    assert names(tmp_path) == []


def test_an_interrupt_before_a_folder_is_created_is_raised_unchanged(tmp_path, monkeypatch):
    """Removing a folder that was never created would hide the interrupt behind another error."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupt)
    with pytest.raises(KeyboardInterrupt), StagedFiles() as staged:
        staged.create(tmp_path / "deep" / "a")

    assert names(tmp_path) == []


def test_a_folder_with_other_files_stays(tmp_path):
    """Another process may have written into the new folder meanwhile."""
    with StagedFiles() as staged:
        staged.write(tmp_path / "deep" / "a", b"new")
        (tmp_path / "deep" / "theirs").write_text("")

    assert names(tmp_path / "deep") == ["theirs"]


def test_files_of_a_killed_process_are_removed(tmp_path):
    """Gigabytes under a hidden name would fill the disk unnoticed."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from nemo_gym.catalog.atomic_files import StagedFiles\n"
        "StagedFiles().create(Path(sys.argv[1])).write(b'half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=False, timeout=60)
    assert len(names(tmp_path)) == 1

    with StagedFiles() as staged:
        staged.write(tmp_path / "a", b"whole")
        staged.commit()

    assert names(tmp_path) == ["a"]


def test_files_of_a_running_process_are_kept(tmp_path):
    """Two runs at once must both finish; the last one wins."""
    with StagedFiles() as first, StagedFiles() as second:
        first.write(tmp_path / "a", b"first")
        second.write(tmp_path / "a", b"second")
        second.commit()
        first.commit()

    assert (tmp_path / "a").read_text() == "first"


def test_a_name_with_brackets_is_no_pattern(tmp_path):
    """An abandoned file is recognised by its exact name, so a file of a similar name must survive."""
    other = tmp_path / ".a1.0123abcd"
    other.write_text("another file")

    with whole_file(tmp_path / "a[1]") as stream:
        stream.write(b"content")

    assert names(tmp_path) == [".a1.0123abcd", "a[1]"]


def test_a_full_disk_names_the_file_that_was_written(tmp_path: Path) -> None:
    """The error of a write has no file name, and a user has several disks."""
    target = tmp_path / "rows.jsonl"

    with pytest.raises(OSError, match="No space left") as caught, whole_file(target):
        raise OSError(errno.ENOSPC, "No space left on device")

    assert caught.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_folder_of_several_files(tmp_path: Path) -> None:
    """Any of the files may be the one that did not fit."""
    with pytest.raises(OSError, match="No space left") as caught, StagedFiles() as staged:
        staged.create(tmp_path / "a")
        staged.create(tmp_path / "b")
        raise OSError(errno.ENOSPC, "No space left on device")

    assert caught.value.filename == str(tmp_path)
