"""The exporter for Weights & Biases: the public name of its module."""

from nemo_gym.config_types import WANDBConfig as WANDBConfig
from nemo_gym.exporters.wandb_exporter import WandbExporter as WandbExporter
