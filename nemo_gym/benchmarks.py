"""Benchmarks: the public names of `nemo_gym.catalog.benchmarks` and `nemo_gym.catalog.preparation`."""

from nemo_gym.catalog.benchmarks import BenchmarkConfig, PrepareBenchmarkConfig, discover_benchmarks
from nemo_gym.catalog.preparation import Preparation, PreparedBenchmark, PrepareFailed, preparations, prepare_all

__all__ = [
    "BenchmarkConfig",
    "Preparation",
    "PrepareBenchmarkConfig",
    "PrepareFailed",
    "PreparedBenchmark",
    "discover_benchmarks",
    "preparations",
    "prepare_all",
]
