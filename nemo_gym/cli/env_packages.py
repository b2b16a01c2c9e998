"""List the packages of a server's environment.

A server whose requirements this installation already meets has no environment of its own: then this one is listed.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.env_target import add_target_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument("--outdated", action="store_true", help="only those of which there is a newer version")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.installed import packages  # `--help` does without

    return packages(args, rest)
