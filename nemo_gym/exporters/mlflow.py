"""The exporter for MLflow: the public name of its module."""

from nemo_gym.config_types import MLFlowConfig as MLFlowConfig
from nemo_gym.exporters.mlflow_exporter import MLflowExporter as MLflowExporter
