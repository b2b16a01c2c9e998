"""Where the files beside an output live, under the public name."""

from nemo_gym.rollouts.paths import failures_path_for

__all__ = ["failures_path_for"]
