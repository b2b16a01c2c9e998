"""What a real MLflow server has after a run was exported to it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from mlflow import MlflowClient
from mlflow.entities import Run

from nemo_gym import exporters

SECRET = "sk-very-secret-0123"


@pytest.fixture(autouse=True)
def _nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield
    exporters.teardown_exporters()


def config(server: str, experiment: str) -> dict[str, Any]:
    return {
        "mlflow_tracking_uri": server,
        "mlflow_experiment_name": experiment,
        "mlflow_run_name": "first",
        "policy_api_key": SECRET,
        "policy_model": {"responses_api_models": {"openai_model": {"openai_api_key": SECRET, "replicas": 2}}},
        "long": "x" * 10_000,
    }


def only_run(server: str, experiment: str) -> Run:
    client = MlflowClient(server)
    experiment_entry = client.get_experiment_by_name(experiment)
    assert experiment_entry is not None
    (run,) = client.search_runs([experiment_entry.experiment_id])
    return run


def download_json(server: str, run: Run, name: str, folder: Path) -> Any:
    path = MlflowClient(server).download_artifacts(run.info.run_id, name, str(folder))
    return json.loads(Path(path).read_bytes())


def test_a_run_has_its_configuration_metrics_and_rollouts(
    mlflow_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user compares two runs on their pages."""
    opened = exporters.setup_exporters(config(mlflow_server, "whole"))
    assert [exporter.name for exporter in opened] == ["mlflow"]
    metrics = {"agent/pass@1[avg-of-2]/accuracy": 50.0, "agent/done": True, "agent/note": "fine"}
    metrics |= {f"agent/many/{number}": number for number in range(1200)}

    exporters.export_metrics(metrics)
    exporters.export_rollouts([{"reward": 1.0, "text": "ä \n"}, {"reward": 0.0, "ng_trajectory": {}}])
    exporters.teardown_exporters()

    assert capsys.readouterr().out == ""  # stdout carries the command's data
    run = only_run(mlflow_server, "whole")
    assert opened[0].url.endswith(run.info.run_id)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.metrics["agent/pass_at_1_avg-of-2_/accuracy"] == 50.0
    assert run.data.metrics["agent/done"] == 1.0
    assert run.data.metrics["agent/many/1199"] == 1199.0
    assert run.data.tags["agent/note"] == "fine"
    assert run.data.params["policy_model.responses_api_models.openai_model.replicas"] == "2"
    assert SECRET not in str(run.data.params)
    assert SECRET not in str(download_json(mlflow_server, run, "global_config.json", tmp_path))
    table = download_json(mlflow_server, run, "rollouts.json", tmp_path)
    assert table["columns"] == ["Rollout"]
    assert [json.loads(row[0]) for row in table["data"]] == [{"reward": 1.0, "text": "ä \n"}, {"reward": 0.0}]


def test_mlflow_can_load_the_table(mlflow_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """We write the table without pandas, and users of pandas must be able to read it."""
    exporters.setup_exporters(config(mlflow_server, "table"))
    exporters.export_rollouts([{"reward": 1.0}])
    exporters.export_rollouts([{"reward": 2.0}])
    exporters.teardown_exporters()

    run = only_run(mlflow_server, "table")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    client = MlflowClient(mlflow_server)
    first = client.load_table(run.info.experiment_id, "rollouts.json", [run.info.run_id])
    second = client.load_table(run.info.experiment_id, "rollouts_2.json", [run.info.run_id])

    assert [json.loads(text)["reward"] for text in first["Rollout"]] == [1.0]
    assert [json.loads(text)["reward"] for text in second["Rollout"]] == [2.0]


def test_metrics_of_several_steps_form_a_line(mlflow_server: str) -> None:
    """Trainers report metrics of every step."""
    exporters.setup_exporters(config(mlflow_server, "steps"))
    for step, value in enumerate([0.1, 0.2]):
        exporters.export_metrics({"mean/reward": value, "broken": float("nan")}, step=step)
    exporters.teardown_exporters()

    run = only_run(mlflow_server, "steps")
    history = MlflowClient(mlflow_server).get_metric_history(run.info.run_id, "mean/reward")
    assert [(point.step, point.value) for point in history] == [(0, 0.1), (1, 0.2)]
    assert "broken" not in run.data.metrics


def test_a_second_run_joins_the_experiment(mlflow_server: str) -> None:
    """Runs are compared within an experiment."""
    for name in ("one", "two"):
        exporters.setup_exporters({**config(mlflow_server, "shared"), "mlflow_run_name": name})
        exporters.teardown_exporters()

    client = MlflowClient(mlflow_server)
    experiment_entry = client.get_experiment_by_name("shared")
    assert experiment_entry is not None
    assert {run.info.run_name for run in client.search_runs([experiment_entry.experiment_id])} == {"one", "two"}


def test_an_absent_server_is_a_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable tracker must not fail the run."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    opened = exporters.setup_exporters(config("http://127.0.0.1:9", "unreachable"))

    assert opened == []
    assert "not exporting to mlflow" in caplog.text
    assert SECRET not in caplog.text
