"""The virtual environments of `dev.py`: a working one is never lost, and the active one does not matter."""

import importlib.util
import sys
import venv
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("dev", Path(__file__).resolve().parent.parent / "dev.py")
assert SPEC is not None and SPEC.loader is not None
dev = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(dev)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working virtual environment."""
    folder = tmp_path / ".venv"
    folder.mkdir()
    (folder / "stamp").write_text("working")
    return folder


def test_an_environment_that_cannot_be_built_leaves_the_earlier_one(folder):
    """Without the registry, or with a wrong lock, everything that worked before still works."""
    with pytest.raises(SystemExit), dev.replacing(folder):
        folder.mkdir()
        raise SystemExit(2)

    assert (folder / "stamp").read_text() == "working"
    assert list(folder.parent.iterdir()) == [folder]


def test_a_new_environment_replaces_the_earlier_one(folder):
    """The earlier one takes a GB that is of no more use."""
    with dev.replacing(folder):
        folder.mkdir()
        (folder / "stamp").write_text("new")

    assert (folder / "stamp").read_text() == "new"
    assert list(folder.parent.iterdir()) == [folder]


def test_a_build_that_was_killed_is_undone_by_the_next_command(folder):
    """A killed process cannot clean up, so the next one does."""
    folder.rename(folder.with_name(".venv.previous"))
    folder.mkdir()

    dev.restore_previous(folder)

    assert (folder / "stamp").read_text() == "working"


def test_environments_are_built_with_the_python_outside_of_the_active_one():
    """The active environment may have no pip, as those of uv, or be the one that is replaced."""
    assert not Path(dev.BASE_PYTHON).is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix


def test_an_environment_that_the_user_made_with_uv_is_left_alone(tmp_path):
    """`uv venv && uv sync --extra dev` and `dev.py` can be used in one checkout."""
    venv.create(tmp_path / "ours", with_pip=False)
    venv.create(tmp_path / "theirs", with_pip=False)
    with (tmp_path / "theirs/pyvenv.cfg").open("a") as file:
        file.write("uv = 0.9.1\n")

    assert [dev.is_made_by_uv(tmp_path / name) for name in ("ours", "theirs", "missing")] == [False, True, False]


def write_suite(folder: Path, passes: str) -> Path:
    """Write a suite with a test that passes always and one that passes if `passes` is true."""
    suite = folder / "test_suite.py"
    suite.write_text(
        "from pathlib import Path\n\n"
        "def test_that_passes(): pass\n\n"
        f"def test_that_may_fail(): assert {passes}\n"
    )  # fmt: skip
    return suite


def test_a_test_that_passes_when_repeated_is_reported_as_unstable(tmp_path, capfd):
    """A process that starts late on a busy machine must not block every change, but must not be hidden either."""
    marker = tmp_path / "ran"
    suite = write_suite(tmp_path, f"Path({str(marker)!r}).exists() or Path({str(marker)!r}).touch()")

    status = dev.run_tests(Path(sys.executable), str(suite))

    assert status == 0
    assert "UNSTABLE, passed when repeated" in capfd.readouterr().err


def test_a_test_that_fails_twice_fails_the_suite(tmp_path, capfd):
    """Repeating a test must not make a defect pass."""
    status = dev.run_tests(Path(sys.executable), str(write_suite(tmp_path, "False")))

    assert status == dev.FAILED_TESTS
    assert "UNSTABLE" not in capfd.readouterr().err


def test_many_failures_are_not_repeated(tmp_path, capfd, monkeypatch):
    """Six failures are a broken change, and a second run of them would only cost time."""
    monkeypatch.setattr(dev, "MAX_REPEATED_TESTS", 0)

    status = dev.run_tests(Path(sys.executable), str(write_suite(tmp_path, "False")))

    assert status == dev.FAILED_TESTS
    assert "run once more" not in capfd.readouterr().err
