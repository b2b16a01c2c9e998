"""Paths of the files beside an output: the public name."""

from nemo_gym.rollouts.run_files import aggregate_metrics_path_for, failures_path_for, materialized_path_for

__all__ = ["aggregate_metrics_path_for", "failures_path_for", "materialized_path_for"]
