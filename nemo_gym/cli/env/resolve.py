"""Print the configuration as the servers receive it, with secrets hidden."""

import argparse

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from omegaconf import OmegaConf

    from nemo_gym.config.omegaconf_adapter import resolve_leaves

    resolved = options.resolve_config(args, hide_secrets=True)
    output.write(OmegaConf.to_yaml(OmegaConf.create(resolve_leaves(resolved.config))))
    return 0
