"""Benchmarks under their public names."""

from nemo_gym.catalog.benchmarks import BenchmarkConfig, PrepareBenchmarkConfig, discover_benchmarks

__all__ = ["BenchmarkConfig", "PrepareBenchmarkConfig", "discover_benchmarks"]
