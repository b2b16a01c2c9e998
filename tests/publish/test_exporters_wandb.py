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
def wandb_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Run the exporters in a separate program, because wandb leaves processes and hooks; return names and folder."""
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


def test_a_run_is_stored_below_the_results(wandb_run: tuple[list[str], Path]) -> None:
    """`wandb sync` looks for the run there."""
    opened, folder = wandb_run

    assert opened == ["wandb"]
    assert len(list(folder.glob("offline-run-*/run-*.wandb"))) == 1


def test_the_table_has_one_rollout_per_row(wandb_run: tuple[list[str], Path]) -> None:
    """Every environment has other fields, so a rollout is one JSON column."""
    (path,) = wandb_run[1].glob("offline-run-*/files/media/table/Rollouts*.table.json")
    table = json.loads(path.read_bytes())

    assert table["columns"] == ["Rollout"]
    assert [json.loads(row[0]) for row in table["data"]] == [{"reward": 1.0}, {"reward": 0.0}]


def test_the_log_has_metrics_and_no_secret(wandb_run: tuple[list[str], Path]) -> None:
    """Configuration and command line are uploaded, and the key must not be in them."""
    (path,) = wandb_run[1].glob("offline-run-*/run-*.wandb")
    stored = path.read_bytes()

    assert b"agent/pass@1/accuracy" in stored
    assert b"62.5" in stored
    assert b"left out" not in stored
    for file in wandb_run[1].rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes()
