"""Export runs to MLflow: the configuration as parameters, metrics, and rollouts as a table."""

import json
import math
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson

from nemo_gym.config.keys import KEYS
from nemo_gym.config_types import MLFlowConfig
from nemo_gym.exporters.base import BaseExporter, ExporterKey

T = TypeVar("T")

CONFIG_FILE = "global_config.json"
ROLLOUTS_FILE = "rollouts.json"
TABLES_TAG = "mlflow.loggedArtifacts"
METRICS_PER_CALL, PARAMETERS_PER_CALL = 1000, 100
LONGEST_NAME, LONGEST_PARAMETER, LONGEST_TAG = 250, 6000, 5000
ELISION = "___"

DEFAULT_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""MLflow settings that the user has not set. MLflow's own defaults retry an unreachable tracker for minutes, send
telemetry and print to the standard output of the command."""

_INVALID_CHARACTER = re.compile(r"[^\w\-. :/]", re.ASCII)
# MLflow refuses names that are not normal paths: with `//`, `./`, `../` or a final `/`.
_EMPTY_PATH_PARTS = re.compile(r"(?:^|(?<=/))(?:\.{0,2}/)+|(?:^|/)\.{1,2}$|/+$")


class MLflowExporter(BaseExporter):
    """Export to one MLflow run. Uses the client, not the fluent API, to leave an active run of the caller unchanged."""

    name = "mlflow"
    title = "MLflow"
    package = "mlflow"
    install_command = "pip install 'nemo-gym[mlflow]'"
    config: MLFlowConfig
    config_class = MLFlowConfig
    keys = (
        ExporterKey("mlflow_tracking_uri", KEYS["mlflow_tracking_uri"].meaning),
        ExporterKey("mlflow_tracking_token", KEYS["mlflow_tracking_token"].meaning, is_required=False),
        ExporterKey("mlflow_experiment_name", "MLflow experiment of the run.", implies_export=True),
        ExporterKey("mlflow_run_name", "Name of the MLflow run.", implies_export=True),
    )

    def setup(self, global_config: Mapping[str, Any]) -> None:
        for key, value in DEFAULT_SETTINGS.items():
            os.environ.setdefault(key, value)
        if self.config.mlflow_tracking_token:
            os.environ["MLFLOW_TRACKING_TOKEN"] = self.config.mlflow_tracking_token
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise self.not_installed(error) from error
        self._client = MlflowClient(tracking_uri=self.config.mlflow_tracking_uri)
        run = self._client.create_run(self._experiment_id(), run_name=self.config.mlflow_run_name)
        self._run_id: str | None = run.info.run_id
        self._tables: list[str] = []
        address = (self.config.mlflow_tracking_uri or "").rstrip("/")
        self.url = f"{address}/#/experiments/{run.info.experiment_id}/runs/{self._run_id}"
        self._log_config(global_config)

    def _experiment_id(self) -> str:
        """Return the id of the experiment; create it if it does not exist."""
        from mlflow.exceptions import MlflowException

        name = self.config.mlflow_experiment_name
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(name)  # another run created it in between
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def teardown(self) -> None:
        run_id, self._run_id = self._run_id, None
        if run_id is not None:
            self._client.set_terminated(run_id)

    def _log_config(self, config: Mapping[str, Any]) -> None:
        """Log the configuration as a file, and each of its values as a parameter."""
        from mlflow.entities import Param

        self._client.log_dict(self._run_id, dict(config), CONFIG_FILE)
        leaves = dict(flatten(config))
        names = mlflow_names(leaves)
        parameters = [Param(names[key], elide(_text(value), LONGEST_PARAMETER)) for key, value in leaves.items()]
        for batch in _batches(parameters, PARAMETERS_PER_CALL):
            self._client.log_batch(self._run_id, params=batch)

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log finite numbers as metrics and texts as tags."""
        from mlflow.entities import Metric, RunTag

        now, names = int(time.time() * 1000), mlflow_names(metrics)
        numbers = [
            Metric(names[key], float(value), now, step or 0)
            for key, value in metrics.items()
            if not isinstance(value, str) and math.isfinite(value)
        ]
        tags = [
            RunTag(names[key], elide(value, LONGEST_TAG)) for key, value in metrics.items() if isinstance(value, str)
        ]
        for metric_batch in _batches(numbers, METRICS_PER_CALL):
            self._client.log_batch(self._run_id, metrics=metric_batch)
        for tag_batch in _batches(tags, PARAMETERS_PER_CALL):
            self._client.log_batch(self._run_id, tags=tag_batch)

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        """Write a table like `mlflow.log_table`, but line by line: without pandas, and not all rows in memory."""
        number = len(self._tables) + 1
        name = ROLLOUTS_FILE if number == 1 else f"rollouts_{number}.json"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            with path.open("wb") as table:
                table.writelines(_table_lines(rollouts))
            self._client.log_artifact(self._run_id, str(path))
        self._tables.append(name)
        tables = [{"path": table, "type": "table"} for table in self._tables]
        self._client.set_tag(self._run_id, TABLES_TAG, json.dumps(tables))  # MLflow searches for this exact spelling


def _table_lines(rollouts: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield the JSON of a table with one column, which holds each rollout as a JSON text."""
    yield b'{"columns":["Rollout"],"data":['
    separator = b"\n"
    for rollout in rollouts:
        yield separator + orjson.dumps([orjson.dumps(rollout).decode()])
        separator = b",\n"
    yield b"\n]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def mlflow_name(name: str) -> str:
    """Return a valid MLflow name: `pass_at_1_avg-of-4_/accuracy` for `pass@1[avg-of-4]/accuracy`; long ones are cut."""
    valid = _INVALID_CHARACTER.sub("_", name.replace("@", "_at_"))
    return elide(_EMPTY_PATH_PARTS.sub("", valid) or "_", LONGEST_NAME)


def elide(text: str, longest: int) -> str:
    """Return `text`; if it has more than `longest` characters, replace its middle by `___`."""
    if len(text) <= longest:
        return text
    kept = longest - len(ELISION)
    return text[: kept - kept // 2] + ELISION + text[len(text) - kept // 2 :]


def mlflow_names(names: Iterable[str]) -> dict[str, str]:
    """Map each name to an MLflow name; if two names have the same MLflow name, the second gets a number."""
    used: set[str] = set()
    chosen: dict[str, str] = {}
    for name in names:
        base, number = mlflow_name(name), 2
        unique = base
        while unique in used:
            ending = f"_{number}"
            unique = base[: LONGEST_NAME - len(ending)] + ending
            number += 1
        used.add(unique)
        chosen[name] = unique
    return chosen


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and value of every leaf; the items of a list with mappings have their index in the path."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        children = value
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            children = {str(index): item for index, item in enumerate(value)}
        if isinstance(children, Mapping) and children:
            yield from flatten(children, f"{path}.")
        else:
            yield path, value
