"""Profiling under its public name."""

from nemo_gym.serve.profiling import Profiler

__all__ = ["Profiler"]
