# mypy: implicit-reexport
# ruff: noqa: F401 - the imported names are the public names of this module
"""Benchmarks: the public names of `nemo_gym.catalog.benchmarks` and `nemo_gym.catalog.benchmark_preparation`."""

from nemo_gym.catalog.benchmark_preparation import (
    Preparation,
    PreparedBenchmark,
    PrepareFailed,
    preparations,
    prepare_all,
)
from nemo_gym.catalog.benchmarks import BenchmarkConfig, PrepareBenchmarkConfig, discover_benchmarks
