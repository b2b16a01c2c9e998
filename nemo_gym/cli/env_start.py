"""Start the servers of a configuration and keep them up until interrupted.

A server that crashes is started again, a few times. Exit status: 0 interrupted once all were up, 3 they did not come up
or none is left, 130 interrupted before that or twice.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli import rounds
from nemo_gym.cli.inputs import add_config_arguments, config_overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    import uvloop  # servers have no place in `--help`

    from nemo_gym.cli.starting import start
    from nemo_gym.launch.ahead import forked_ahead

    with forked_ahead(rounds.USUAL):
        return uvloop.run(start(config_overrides(args, rest)))
