"""Paths of the files beside an output: the public name."""

from nemo_gym.rollouts.run_files import failures_path_for

__all__ = ["failures_path_for"]
