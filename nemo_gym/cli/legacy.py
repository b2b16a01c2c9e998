"""Commands and functions of earlier versions: `ng_*` and `nemo_gym_*` programs, and functions for scripts."""

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.cli.terminal import output

REPLACEMENTS: dict[str, tuple[str, ...]] = {
    "run": ("env", "start"),
    "test": ("env", "test"),
    "test_all": ("env", "test"),
    "dev_test": ("dev", "test"),
    "init_resources_server": ("env", "init"),
    "list_benchmarks": ("list", "benchmarks"),
    "prepare_benchmark": ("eval", "prepare"),
    "collect_rollouts": ("eval", "run", "--no-serve"),
    "e2e_collect_rollouts": ("eval", "run"),
    "aggregate_rollouts": ("eval", "aggregate"),
    "materialize_prompts": ("dataset", "render"),
    "reward_profile": ("eval", "profile"),
    "upload_dataset_to_gitlab": ("dataset", "upload", "--storage", "gitlab"),
    "download_dataset_from_gitlab": ("dataset", "download", "--storage", "gitlab"),
    "prepare_data": ("dataset", "collate"),
    "upload_dataset_to_hf": ("dataset", "upload"),
    "download_dataset_from_hf": ("dataset", "download"),
    "gitlab_to_hf_dataset": ("dataset", "migrate"),
    "delete_dataset_from_gitlab": ("dataset", "rm"),
    "dump_config": ("env", "resolve"),
    "validate": ("env", "validate"),
    "help": ("--help",),
    "status": ("env", "status"),
    "pip_list": ("env", "packages"),
    "version": ("--version",),
    "viewer": ("view",),
    "reinstall": ("dev", "reinstall"),
}
"""Name of a program without its prefix -> arguments of `gym` that replace it."""


def main() -> int:
    """Run the `gym` command that replaces the program with the name `sys.argv[0]`."""
    return run(Path(sys.argv[0]).name, sys.argv[1:])


def run(program: str, words: Sequence[str]) -> int:
    """Print the `gym` command that replaces a program, and run it with the same arguments."""
    from nemo_gym.cli.main import main as gym

    name = program.removeprefix("nemo_gym_").removeprefix("ng_")
    if name not in REPLACEMENTS:
        output.report_error(f"{program} is not a command of this version; `gym --help` lists all commands")
        return 1
    replacement = REPLACEMENTS[name]
    output.notify(f"{program} is now `{' '.join(['gym', *replacement])}`; the old name will be removed.")
    return gym([*replacement, *words])


def command_function(*command: str) -> Callable[[], None]:
    """Return a function that runs a `gym` command with the arguments of the process.

    The function ends the process if the exit status of the command is not 0.
    """

    def run_command() -> None:
        from nemo_gym.cli.main import main as gym

        status = gym([*command, *sys.argv[1:]])
        if status:
            raise SystemExit(status)

    run_command.__doc__ = f"Run `gym {' '.join(command)}` with the arguments of this process."
    return run_command


version = command_function("--version")


def moved_names(module: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module whose names have moved: each is imported from its new module, with a warning.

    `homes` maps the new module to the names in it.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def import_moved(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"import {name} from {home_of[name]}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(home_of[name]), name)

    return import_moved
