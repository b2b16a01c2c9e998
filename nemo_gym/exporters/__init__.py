"""Report runs to trackers: Weights & Biases, MLflow, OpenTelemetry and any exporter that a package declares.

A tracker is used if the configuration has its keys (`wandb_*`, `mlflow_*`, `otel_*`). Errors of a tracker are logged as
warnings and do not end the run. A new exporter is a subclass of `BaseExporter` and one line in
`[project.entry-points."nemo_gym.exporters"]`.

- `base`: `BaseExporter`, `ExporterKey`; `registry`: finding and opening exporters, sending to all of them
- `wandb_exporter`, `mlflow_exporter`, `otel_exporter`: the built-in exporters; `wandb`, `mlflow`: their public names
- `EXPORTER_REGISTRY`: all exporter classes by name, found on first use
"""

from typing import Any

from nemo_gym.exporters.base import BaseExporter as BaseExporter
from nemo_gym.exporters.base import ExporterKey as ExporterKey
from nemo_gym.exporters.base import ExporterNotInstalled as ExporterNotInstalled
from nemo_gym.exporters.registry import export_metrics as export_metrics
from nemo_gym.exporters.registry import export_rollouts as export_rollouts
from nemo_gym.exporters.registry import find_exporters as find_exporters
from nemo_gym.exporters.registry import get_exporters as get_exporters
from nemo_gym.exporters.registry import register_exporter_keys as register_exporter_keys
from nemo_gym.exporters.registry import setup_exporters as setup_exporters
from nemo_gym.exporters.registry import teardown_exporters as teardown_exporters


def __getattr__(name: str) -> Any:
    if name != "EXPORTER_REGISTRY":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return find_exporters()
