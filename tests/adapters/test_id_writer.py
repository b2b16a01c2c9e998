"""`python -m nemo_gym.adapters.id_writer` writes the ids of a source in any search root."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.coin_source import write_source

IDS = """
def list_ids():
    yield "Tails-v0", {"refused": "it needs paper"}
    yield "Heads-v0", {"players": 2}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a source outside of the repository."""
    folder = write_source(tmp_path)
    (folder / "ids.py").write_text(IDS)
    return folder


def run_id_writer(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    root = folder.parents[1]
    command = [sys.executable, "-m", "nemo_gym.adapters.id_writer", *words, "--search-dir", str(root)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)


def test_the_ids_of_a_source_outside_of_the_repository_are_written(folder):
    """The author of an adapter has an installed package and a folder; without the list no name of theirs works."""
    result = run_id_writer(folder, "coins")

    assert result.returncode == 0, result.stderr
    content = json.loads((folder / "ids.json").read_text())
    assert content["ids"] == {"Heads-v0": {"players": 2}, "Tails-v0": {"refused": "it needs paper"}}
    assert content["version"] == pytest.__version__


def test_an_unknown_source_and_a_missing_package_are_errors_that_leave_the_list_as_it_is(folder):
    """Success without a written list would leave an old list in place, and the author with wrong ids."""
    (folder / "requirements.txt").write_text("not-a-package-of-anyone==1\n")
    before = (folder / "ids.json").read_text()

    unknown, missing = run_id_writer(folder, "coin"), run_id_writer(folder, "coins")

    assert unknown.returncode == 1
    assert "unknown source" in unknown.stderr
    assert missing.returncode == 1
    assert "install not-a-package-of-anyone==1" in missing.stderr
    assert (folder / "ids.json").read_text() == before
