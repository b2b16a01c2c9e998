"""Commands as functions without arguments, for scripts of earlier versions: they read the process's command line."""

import sys

from nemo_gym.cli.main import main


def run_command_line(*command: str) -> None:
    """Run a `gym` command with this process's arguments; a status other than 0 ends the process with it."""
    status = main([*command, *sys.argv[1:]])
    if status:
        raise SystemExit(status)
