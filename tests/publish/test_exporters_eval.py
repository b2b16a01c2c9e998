"""`gym eval run` reports to a real MLflow server and to Weights & Biases in one go."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("wandb")

from mlflow import MlflowClient

SECRET = "sk-very-secret-0123"


def test_a_run_reaches_its_trackers_and_one_that_is_down_costs_a_warning(mlflow_server: str, tmp_path: Path) -> None:
    """Metrics per agent, rollouts as a table, no secret anywhere, and stdout is still one JSON object."""
    script = [{"text": "It is 4."}]
    model = {"scripted_model": {"entrypoint": "app.py", "script": script, "note_api_key": SECRET}}
    (tmp_path / "model.json").write_text(json.dumps({"policy_model": {"responses_api_models": model}}))
    command = [sys.executable, "-m", "nemo_gym.cli.main", "eval", "run", "--environment", "arithmetic"]
    command += ["--config", "model.json", "--limit", "4", "-o", "out.jsonl", "--json", f"+policy_api_key={SECRET}"]
    tracked = [f"+mlflow_tracking_uri={mlflow_server}", "+mlflow_experiment_name=eval", "+mlflow_run_name=r"]
    tracked += ["+wandb_project=p", "+wandb_name=n", f"+wandb_api_key={'k' * 40}", "+results_dir=results"]
    env = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path)}

    done = subprocess.run(
        [*command, *tracked], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=170, check=False
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["pages"]) == {"mlflow", "wandb"}
    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name("eval")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["key_metrics/arithmetic_simple_agent/mean/reward"] == result["mean_reward"]
    assert "arithmetic_simple_agent/mean/reward" in run.data.metrics
    table = Path(client.download_artifacts(run.info.run_id, "rollouts.json", str(tmp_path))).read_text()
    assert len(json.loads(table)["data"]) == 4
    assert SECRET not in str(run.data) + table
    (stored,) = (tmp_path / "results" / "wandb").glob("offline-run-*/run-*.wandb")
    content = stored.read_bytes()
    assert b"key_metrics/arithmetic_simple_agent/mean/reward" in content
    assert SECRET.encode() not in content

    down = ["+mlflow_tracking_uri=http://127.0.0.1:9", "+mlflow_experiment_name=eval", "+mlflow_run_name=r"]
    env["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    done = subprocess.run(
        [*command, *down], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=170, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "not exporting to mlflow" in done.stderr
    assert json.loads(done.stdout)["pages"] == {}
