"""Report runs to trackers: Weights & Biases, MLflow and any exporter that a package declares.

A tracker is used if the configuration has its keys (`wandb_*`, `mlflow_*`). Errors of a tracker are logged as warnings
and do not end the run. A new exporter is a subclass of `BaseExporter` and one line in
`[project.entry-points."nemo_gym.exporters"]`.

- `base`: `BaseExporter`, `ExporterKey`; `registry`: finding and opening exporters, sending to all of them
- `wandb_exporter`, `mlflow_exporter`: the built-in exporters
"""

from nemo_gym.exporters.base import BaseExporter, ExporterKey, ExporterNotInstalled
from nemo_gym.exporters.registry import (
    export_metrics,
    export_rollouts,
    find_exporters,
    get_exporters,
    register_exporter_keys,
    setup_exporters,
    teardown_exporters,
)

__all__ = [
    "BaseExporter",
    "ExporterKey",
    "ExporterNotInstalled",
    "export_metrics",
    "export_rollouts",
    "find_exporters",
    "get_exporters",
    "register_exporter_keys",
    "setup_exporters",
    "teardown_exporters",
]
