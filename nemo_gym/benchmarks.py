# mypy: implicit-reexport
# ruff: noqa: F401 - the imported names are the public names of this module
"""Benchmarks: the public names of `nemo_gym.catalog.benchmarks`."""

from nemo_gym.catalog.benchmarks import (
    BenchmarkConfig,
    Preparation,
    PrepareBenchmarkConfig,
    PreparedBenchmark,
    PrepareFailed,
    discover_benchmarks,
    preparations,
    prepare_all,
)
