"""Make the environments of a configuration's servers ahead of time, and start nothing.

Afterwards `gym env start` and `gym eval run` need no package registry. Exits with the installer's own status when one
cannot be made.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.inputs import add_config_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.prefetching import prefetch  # `--help` does without

    return prefetch(args, rest)
