"""The guards of `tests/conftest.py` work: no test affects the configuration of the next."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEAVES = """
import os

def test_it_leaves_something_behind():
    os.environ["NEMO_GYM_EXTRA_ROOTS"] = "elsewhere"
"""
LOOKS = """
import os
import pytest

@pytest.fixture(scope="module")
def seen():
    return os.environ.get("NEMO_GYM_EXTRA_ROOTS")

def test_nothing_is_there(seen):
    assert seen is None
"""


def test_a_changed_environment_variable_does_not_reach_the_next_module(tmp_path: Path) -> None:
    """Tests run in random order and in parallel: a leak would make failures irreproducible."""
    (tmp_path / "test_a.py").write_text(LEAVES)
    (tmp_path / "test_b.py").write_text(LOOKS)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tests.conftest",
         "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
