"""Verify stored rollouts again, without playing them anew.

Starts the resources servers that verified them (and the models these call), sends each stored response to /verify, and
stops what it started. A server must say that it needs no session for that; --force does without, into a file named
unsafe_…. --judge-failed-only copies what is scored and verifies only rollouts whose judge failed. Exit status: 0 all
verified, 1 some failed or the files cannot be used, 2 wrong usage, 3 servers did not start, 130 interrupted.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.inputs import add_config_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("files")
    files.add_argument("--rollouts", metavar="FILE", help="the rollouts of a run")
    files.add_argument("--inputs", metavar="FILE", help="its materialized inputs (default: those beside the rollouts)")
    files.add_argument("-o", "--output", metavar="FILE", help="where rollouts with their new verdicts go")
    how = parser.add_argument_group("verification")
    how.add_argument("--concurrency", type=int, metavar="N", help="responses verified at once")
    how.add_argument("--limit", type=int, metavar="N", help="only the first N rollouts")
    how.add_argument("--force", action="store_true", help="also with servers that do not say they can do it again")
    how.add_argument("--overwrite", action="store_true", help="remove an earlier output first")
    how.add_argument("--resume", action="store_true", help="keep what is verified and do the rest")
    how.add_argument("--judge-failed-only", action="store_true", help="copy what is scored, verify failed judgements")
    how.add_argument("--append", action="store_true", help="with --judge-failed-only: add to the output")
    how.add_argument("--disable-aggregation", action="store_true", help="do not compute metrics at the end")
    how.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")
    add_config_arguments(parser)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.reverifying import reverify  # `--help` does without

    return reverify(args, rest)
