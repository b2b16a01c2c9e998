"""`gym eval`: run evaluations and score them, one module per command.

The functions here run a command with the arguments of the process, for scripts written for earlier versions.
"""

from typing import Any

from nemo_gym.cli.legacy import command_function

e2e_rollout_collection = command_function("eval", "run")
collect_rollouts = command_function("eval", "run", "--no-serve")
aggregate_rollouts = command_function("eval", "aggregate")
reward_profile = command_function("eval", "profile")
prepare_benchmark = command_function("eval", "prepare")
list_benchmarks = command_function("list", "benchmarks")


def __getattr__(name: str) -> Any:
    if name == "PrepareBenchmarkConfig":
        from nemo_gym.catalog.benchmarks import PrepareBenchmarkConfig  # expensive, and --help imports this package

        return PrepareBenchmarkConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
