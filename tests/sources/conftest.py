"""Real packages of other projects (python3 dev.py sources): each environment is played by their loop and by ours."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.adapters.rows import write_missing_rows
from nemo_gym.config import environment_sources
from nemo_gym.config.environment_sources import EnvironmentSource, find_environment_sources, parse_name

ROOT = Path(__file__).resolve().parents[2]
GYM = (sys.executable, "-m", "nemo_gym.cli.main")
POLICY = {"entrypoint": "app.py", "function": "tests.sources.policies:play"}

SEPARATE = ("test_gem.py", "test_verifiers_v1.py")
"""Tests in environments of their own, whose packages do not go with the others."""


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _has_tasksets() -> bool:
    return _is_installed("verifiers") and version("verifiers") >= "0.4"


if _is_installed("textarena"):
    collect_ignore = list(SEPARATE)
else:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in SEPARATE]
    collect_ignore += [] if _is_installed("gem") else ["test_gem.py"]
    collect_ignore += [] if _has_tasksets() else ["test_verifiers_v1.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test plays hundreds of episodes, on machines that do other work.

    What a package leaves open in one test is collected in any later one.
    """
    left_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(400))
            item.add_marker(left_open)


def source(name: str) -> EnvironmentSource:
    return find_environment_sources([ROOT])[name]


class Evaluation:
    """`gym eval run` in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed: list[dict[str, Any]] = []
        """The rollouts of the last run without a score, one for each task."""

    def run(self, names: Sequence[str], *words: str, may_fail: bool = False, **env: str) -> list[dict[str, Any]]:
        """Play the rows of several names through the servers of the first; return the records by task."""
        environment_sources.CACHE_DIR = self.folder / "cache"
        paths = [write_missing_rows({"config_paths": [name]}, [ROOT], notify=lambda _: None)[0] for name in names]
        lines = [line for path in paths for line in path.read_text().splitlines()]
        return self.run_rows(names, lines, *words, may_fail=may_fail, **env)

    def run_rows(
        self, names: Sequence[str], lines: list[str], *words: str, may_fail: bool = False, **env: str
    ) -> list[dict[str, Any]]:
        """Play rows through the servers of the first name."""
        rows = self.folder / "rows.jsonl"
        rows.write_text("".join(f"{line}\n" for line in lines))
        first = parse_name(names[0], [ROOT])
        model = self.folder / "model.yaml"
        model.write_text(json.dumps({"policy_model": {"responses_api_models": {"scripted_model": POLICY}}}))
        command = [*GYM, "eval", "run", "--environment", names[0], "--config", str(model), "--input", str(rows)]
        result = subprocess.run(
            [*command, "--agent", f"{first.instance}_agent", "-o", "out.jsonl", "--overwrite", "-q", *words],
            cwd=self.folder, capture_output=True, text=True, timeout=380, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        )  # fmt: skip
        assert result.returncode in ((0, 1) if may_fail else (0,)), result.stderr[-3000:]
        failed = self.folder / "out_failures.jsonl"
        self.failed = _read_lines(failed) if failed.exists() else []
        return sorted(_read_lines(self.folder / "out.jsonl"), key=lambda record: record["_ng_task_index"])


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    return Evaluation(tmp_path)


def actions_of(record: dict[str, Any]) -> list[str]:
    """The replies of the policy in a record, one for each turn."""
    turns = (item for item in record["response"]["output"] if item.get("role") == "assistant")
    return ["".join(part["text"] for part in item["content"]) for item in turns]


def family(name: str) -> str:
    """The game of an id, without its variants."""
    return re.sub(r"-v\d.*", "", name)
