"""Runs reported to trackers people already use: Weights & Biases and MLflow.

A tracker is used when the configuration says where it is (`wandb_*`, `mlflow_*`). Whatever goes wrong with one is a
warning and never the end of a run.
"""

from nemo_gym.exporters.base import BaseExporter, ExporterNotInstalled
from nemo_gym.exporters.mlflow_exporter import MLflowExporter
from nemo_gym.exporters.open import (
    EXPORTERS,
    export_metrics,
    export_rollouts,
    get_exporters,
    setup_exporters,
    teardown_exporters,
)
from nemo_gym.exporters.wandb_exporter import WandbExporter

__all__ = [
    "EXPORTERS",
    "BaseExporter",
    "ExporterNotInstalled",
    "MLflowExporter",
    "WandbExporter",
    "export_metrics",
    "export_rollouts",
    "get_exporters",
    "setup_exporters",
    "teardown_exporters",
]
