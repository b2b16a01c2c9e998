"""Print the configuration as the servers receive it, with secrets hidden."""

import argparse

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from omegaconf import OmegaConf

    resolved = options.resolve_config(args, hide_secrets=True)
    output.write(OmegaConf.to_yaml(resolved.config, resolve=True))
    return 0
