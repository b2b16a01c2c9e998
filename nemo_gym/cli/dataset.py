"""Dataset commands as functions that read the command line of the process, for scripts of earlier versions."""

import sys

from nemo_gym.cli.main import main


def prepare_data() -> None:
    """`gym dataset collate` with this process's overrides; a status other than 0 ends the process with it."""
    _run("collate")


def materialize_prompts_cli() -> None:
    """`gym dataset render`, likewise."""
    _run("render")


def _run(command: str) -> None:
    status = main(["dataset", command, *sys.argv[1:]])
    if status:
        raise SystemExit(status)
