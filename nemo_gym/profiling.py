"""CPU profiler of a server. Re-exports `nemo_gym.serve.profiling`."""

from nemo_gym.serve.profiling import Profiler

__all__ = ["Profiler"]
