"""What Weights & Biases stores of a run, in its offline mode."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("wandb")

SECRET = "sk-very-secret-0123"

PROGRAM = """
    import json, sys
    from nemo_gym import exporters
    config = json.loads(sys.argv[1])
    opened = exporters.setup_exporters(config)
    exporters.export_metrics({"agent/pass@1/accuracy": 62.5, "note": "fine", "left out": [1]})
    exporters.export_rollouts([{"reward": 1.0, "ng_trajectory": {}}, {"reward": 0.0}])
    exporters.teardown_exporters()
    print(json.dumps([exporter.name for exporter in opened]))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """The exporters that opened, and the folder they left. A program of its own: wandb leaves processes and hooks."""
    folder = tmp_path_factory.mktemp("wandb")
    config = {
        "wandb_project": "project",
        "wandb_name": "first",
        "wandb_api_key": "k" * 40,
        "policy_api_key": SECRET,
        "results_dir": str(folder / "results"),
    }
    env = {**os.environ, "WANDB_MODE": "offline", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), json.dumps(config)],
        env=env, cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder / "results" / "wandb"


def test_a_run_is_stored_below_the_results(exported: tuple[list[str], Path]) -> None:
    """`wandb sync` finds it there later."""
    opened, folder = exported

    assert opened == ["wandb"]
    assert len(list(folder.glob("offline-run-*/run-*.wandb"))) == 1


def test_the_table_has_one_rollout_per_row(exported: tuple[list[str], Path]) -> None:
    """One column of JSON: every environment has fields of its own."""
    (path,) = exported[1].glob("offline-run-*/files/media/table/Rollouts*.table.json")
    table = json.loads(path.read_bytes())

    assert table["columns"] == ["Rollout"]
    assert [json.loads(row[0]) for row in table["data"]] == [{"reward": 1.0}, {"reward": 0.0}]


def test_the_log_has_metrics_and_no_secret(exported: tuple[list[str], Path]) -> None:
    """The key stands in the configuration and even on the command line; neither is uploaded with it."""
    (path,) = exported[1].glob("offline-run-*/run-*.wandb")
    stored = path.read_bytes()

    assert b"agent/pass@1/accuracy" in stored
    assert b"62.5" in stored
    assert b"left out" not in stored
    for file in exported[1].rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes()
