"""A run on disk and its index, both in a folder of the test's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.view.database import RunDatabase
from tests.view.records import failure, record, write


@pytest.fixture
def index_of(tmp_path: Path) -> Callable[..., RunDatabase]:
    """Write rollouts and give their index."""

    def make(*records: Any, failures: tuple[Any, ...] = (), name: str = "rollouts") -> RunDatabase:
        output = write(tmp_path / name / "rollouts.jsonl", *records)
        if failures:
            write(tmp_path / name / "rollouts_failures.jsonl", *failures)
        index = RunDatabase(RunFiles(output), tmp_path / f"{name}.sqlite")
        index.build()
        return index

    return make


@pytest.fixture
def index(index_of: Callable[..., RunDatabase]) -> RunDatabase:
    """Three tasks twice; one rollout failed."""
    scored = [record(task, repeat, float(task != 1)) for task in range(3) for repeat in range(2)]
    return index_of(*scored[:-1], failures=(failure(2, 1),))
