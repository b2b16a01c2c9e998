"""Benchmarks under their public names."""

from nemo_gym.catalog.benchmarks import BenchmarkConfig, PrepareBenchmarkConfig, discover_benchmarks
from nemo_gym.catalog.prepare import Preparation, Prepared, PrepareFailed, preparations, prepare_all

__all__ = [
    "BenchmarkConfig",
    "Preparation",
    "PrepareBenchmarkConfig",
    "PrepareFailed",
    "Prepared",
    "discover_benchmarks",
    "preparations",
    "prepare_all",
]
