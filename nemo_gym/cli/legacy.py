"""The commands of earlier versions, `ng_*` and `nemo_gym_*`: each says what it is called now, and runs that."""

import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_gym.cli import output
from nemo_gym.cli.main import main as gym

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
PREFIXES = ("nemo_gym_", "ng_")


def main() -> int:
    """Run the command this program was called by."""
    return run(Path(sys.argv[0]).name, sys.argv[1:])


def run(called: str, words: Sequence[str]) -> int:
    """Run what `called` is called now, with the same words."""
    name = called
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    if name not in REPLACEMENTS:
        output.error(f"{called} is not a command of this version; `gym --help` lists what there is")
        return 1
    replacement = REPLACEMENTS[name]
    output.talk(f"{called} is now `{' '.join(['gym', *replacement])}`; the old name will go away.")
    return gym([*replacement, *words])
