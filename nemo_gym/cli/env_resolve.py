"""Print the configuration exactly as the servers will see it, secrets hidden."""

import argparse
from collections.abc import Sequence

from nemo_gym.cli import output
from nemo_gym.cli.inputs import add_config_arguments, config_overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from omegaconf import OmegaConf  # `--help` does without

    from nemo_gym.config.resolve import Request, resolve
    from nemo_gym.global_config import surroundings

    resolved = resolve(Request(overrides=config_overrides(args, rest), offline=True, hide_secrets=True), surroundings())
    for warning in resolved.warnings:
        output.talk(f"Warning: {warning}")
    output.data(OmegaConf.to_yaml(resolved.config, resolve=True))
    return 0
