"""Arguments of commands about one server folder rather than a configuration of several."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_gym.cli.inputs import MODEL_KEYS, SELECTORS, config_overrides

if TYPE_CHECKING:
    from omegaconf import DictConfig


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Which folder: a resources server by name, or `+entrypoint=<type>/<name>` among the overrides."""
    parser.add_argument("--resources-server", metavar="NAME", help="a resources server by name")
    parser.add_argument("--search-dir", action="append", default=[], metavar="DIR", help="look here first; repeatable")


def target_config(args: argparse.Namespace, rest: Sequence[str]) -> "DictConfig":
    """The configuration that flags and overrides make; its `entrypoint` names the folder."""
    from nemo_gym.config.resolve import Request, resolve  # `--help` does without
    from nemo_gym.global_config import surroundings

    unset = dict.fromkeys([*SELECTORS, *MODEL_KEYS])
    inputs = argparse.Namespace(**{**unset, "config": [], "verbose": False, "search_dir": args.search_dir})
    named = [f"+entrypoint=resources_servers/{args.resources_server}"] if args.resources_server else []
    overrides = [*named, *config_overrides(inputs, rest)]
    return resolve(Request(overrides=overrides, offline=True), surroundings()).config
