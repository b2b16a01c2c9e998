"""Merge the rollouts of several runs and compute their scores together.

Reads every file that --input-glob matches and writes the merged rollouts to --output with their metrics beside them.
Without --output one file is scored where it is. No server runs, unless a configuration is named and one of its servers
has metrics of its own: then just that one is started and asked. Exit status: 0 done, 1 a server gave no metrics or the
files cannot be used, 2 wrong usage, 3 a server did not start, 130 interrupted.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.inputs import add_config_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--input-glob", metavar="GLOB", help="rollout files; several patterns parted by commas")
    parser.add_argument("-o", "--output", metavar="FILE", help="the merged rollouts (default: none for a single file)")
    parser.add_argument("--by", metavar="FIELD", help="also score each value of this field of the rollouts apart")
    parser.add_argument("--json", action="store_true", help="print the scores as one JSON object, and nothing else")
    add_config_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.aggregating import aggregate  # `--help` does without

    return aggregate(args, rest)
