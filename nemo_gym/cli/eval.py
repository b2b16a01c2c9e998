"""Evaluation commands as functions that read the command line of the process, for scripts of earlier versions."""

from nemo_gym.benchmarks import PrepareBenchmarkConfig
from nemo_gym.cli.scripts import run_command_line

__all__ = [
    "PrepareBenchmarkConfig",
    "aggregate_rollouts",
    "collect_rollouts",
    "e2e_rollout_collection",
    "list_benchmarks",
    "prepare_benchmark",
    "reward_profile",
]


def e2e_rollout_collection() -> None:
    """`gym eval run` with this process's arguments."""
    run_command_line("eval", "run")


def collect_rollouts() -> None:
    """`gym eval run --no-serve` with this process's arguments."""
    run_command_line("eval", "run", "--no-serve")


def aggregate_rollouts() -> None:
    """`gym eval aggregate` with this process's arguments."""
    run_command_line("eval", "aggregate")


def reward_profile() -> None:
    """`gym eval profile` with this process's arguments."""
    run_command_line("eval", "profile")


def prepare_benchmark() -> None:
    """`gym eval prepare` with this process's arguments."""
    run_command_line("eval", "prepare")


def list_benchmarks() -> None:
    """`gym list benchmarks` with this process's arguments."""
    run_command_line("list", "benchmarks")
