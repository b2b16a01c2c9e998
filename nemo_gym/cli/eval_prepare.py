"""Prepare benchmarks: run the script that writes a benchmark's rows.

All benchmarks of the configuration are checked before the script of any is run. Pass arguments to the scripts with
+prepare_script_args.NAME=VALUE. Exit status: 0 all prepared, 1 a script failed or the configuration cannot be used.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.inputs import add_config_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--use-cached", action="store_true", help="leave a benchmark alone whose rows are there")
    parser.add_argument("--processes", type=int, metavar="N", help="how many are prepared at once (default: 1)")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="for each script (default: 21600, six hours)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")
    add_config_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.preparing import prepare  # `--help` does without

    return prepare(args, rest)
