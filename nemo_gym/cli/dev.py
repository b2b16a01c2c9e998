"""Contributors' commands as functions, for scripts of earlier versions."""

from nemo_gym.cli.scripts import run_command_line


def dev_test() -> None:
    """`gym dev test` with this process's arguments."""
    run_command_line("dev", "test")
