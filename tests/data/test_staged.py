"""Files appear together, and what a killed process left is swept away by the next."""

import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.data.staged import StagedFiles


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_seen_until_everything_is_there(tmp_path):
    """Rows and their metrics belong together."""
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


def test_an_error_leaves_no_trace(tmp_path):
    """Not even the folder that was made for the files."""
    with pytest.raises(RuntimeError), StagedFiles() as staged:
        staged.write(tmp_path / "deep" / "er" / "a", b"new")
        raise RuntimeError

    assert names(tmp_path) == []


def test_an_interrupt_at_the_moment_a_file_appears_leaves_no_trace(tmp_path, monkeypatch):
    """A signal is answered right after the call that made the file, before anybody holds it."""
    opened = Path.open

    def interrupted(path, mode):
        opened(path, mode).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), StagedFiles() as staged:
        staged.create(tmp_path / "deep" / "a")

    assert names(tmp_path) == []


def test_an_interrupt_before_a_folder_is_made_is_no_other_error(tmp_path, monkeypatch):
    """What was only meant to be made cannot be removed, and need not be."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), StagedFiles() as staged:
        staged.create(tmp_path / "deep" / "a")

    assert names(tmp_path) == []


def test_folders_of_others_stay(tmp_path):
    """Only what is empty and ours is removed."""
    with StagedFiles() as staged:
        staged.write(tmp_path / "deep" / "a", b"new")
        (tmp_path / "deep" / "theirs").write_text("")

    assert names(tmp_path / "deep") == ["theirs"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    """Gigabytes under a hidden name are found by nobody."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from nemo_gym.data.staged import StagedFiles\n"
        "StagedFiles().create(Path(sys.argv[1])).write(b'half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=False, timeout=60)
    assert len(names(tmp_path)) == 1

    with StagedFiles() as staged:
        staged.write(tmp_path / "a", b"whole")
        staged.commit()

    assert names(tmp_path) == ["a"]


def test_what_another_process_is_writing_is_left_alone(tmp_path):
    """Two runs at once: the last one to finish wins, and both finish."""
    with StagedFiles() as first, StagedFiles() as second:
        first.write(tmp_path / "a", b"first")
        second.write(tmp_path / "a", b"second")
        second.commit()
        first.commit()

    assert (tmp_path / "a").read_text() == "first"
