"""Runs in MLflow: configuration as parameters, metrics, and rollouts as a table its page can show."""

import json
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson

from nemo_gym.config_types import MLFlowConfig
from nemo_gym.exporters.base import BaseExporter, ExporterNotInstalled
from nemo_gym.exporters.names import LONGEST_PARAMETER, LONGEST_TAG, elided, flattened, mlflow_names

T = TypeVar("T")

CONFIG_FILE = "global_config.json"
ROLLOUTS_FILE = "rollouts.json"
TABLES_TAG = "mlflow.loggedArtifacts"
METRICS_AT_ONCE, PARAMETERS_AT_ONCE = 1000, 100

MANNERS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""MLflow's own settings, where nobody chose others.

It would retry an absent tracker for minutes, call home, and print to where a command's data goes.
"""


class MLflowExporter(BaseExporter):
    """One MLflow run. It uses the client, not the fluent API, so a run that the caller has open is left alone."""

    name = "mlflow"
    config: MLFlowConfig

    def setup(self, global_config: Mapping[str, Any]) -> None:
        for key, value in MANNERS.items():
            os.environ.setdefault(key, value)
        if self.config.mlflow_tracking_token:
            os.environ["MLFLOW_TRACKING_TOKEN"] = self.config.mlflow_tracking_token
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise ExporterNotInstalled(
                f"mlflow cannot be imported ({error})", fix="pip install 'nemo-gym[mlflow]'"
            ) from error
        self._client = MlflowClient(tracking_uri=self.config.mlflow_tracking_uri)
        run = self._client.create_run(self._experiment(), run_name=self.config.mlflow_run_name)
        self._run: str | None = run.info.run_id
        self._tables: list[str] = []
        address = (self.config.mlflow_tracking_uri or "").rstrip("/")
        self.url = f"{address}/#/experiments/{run.info.experiment_id}/runs/{self._run}"
        self._log_config(global_config)

    def _experiment(self) -> str:
        """The experiment's id; it is created by whoever needs it first."""
        from mlflow.exceptions import MlflowException

        name = self.config.mlflow_experiment_name
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:
                found = self._client.get_experiment_by_name(name)  # another run was quicker
                if found is None:
                    raise
        return str(found.experiment_id)

    def teardown(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._client.set_terminated(run)

    def _log_config(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        self._client.log_dict(self._run, dict(config), CONFIG_FILE)
        leaves = dict(flattened(config))
        names = mlflow_names(leaves)
        parameters = [Param(names[key], elided(_text(value), LONGEST_PARAMETER)) for key, value in leaves.items()]
        for some in _parts(parameters, PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, params=some)

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        from mlflow.entities import Metric, RunTag

        now, names = int(time.time() * 1000), mlflow_names(metrics)
        numbers = [
            Metric(names[key], float(value), now, step or 0)
            for key, value in metrics.items()
            if not isinstance(value, str) and math.isfinite(value)
        ]
        tags = [
            RunTag(names[key], elided(value, LONGEST_TAG)) for key, value in metrics.items() if isinstance(value, str)
        ]
        for some in _parts(numbers, METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=some)
        for few in _parts(tags, PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, tags=few)

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        """A table as `mlflow.log_table` writes it, but line by line: pandas is not needed, nor memory for all."""
        number = len(self._tables) + 1
        name = ROLLOUTS_FILE if number == 1 else f"rollouts_{number}.json"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            with path.open("wb") as table:
                table.writelines(_table_lines(rollouts))
            self._client.log_artifact(self._run, str(path))
        self._tables.append(name)
        shown = [{"path": table, "type": "table"} for table in self._tables]
        self._client.set_tag(self._run, TABLES_TAG, json.dumps(shown))  # MLflow searches for this very spelling


def _table_lines(rollouts: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    yield b'{"columns":["Rollout"],"data":['
    before = b"\n"
    for rollout in rollouts:
        yield before + orjson.dumps([orjson.dumps(rollout).decode()])
        before = b",\n"
    yield b"\n]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
