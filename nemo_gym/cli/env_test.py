"""Run the tests of server folders where their servers would run, or try the verifier of an environment.

NAME is an environment or benchmark with a manifest: the cases of its verifier's fixture are tried. One folder's tests
are named by --resources-server NAME or +entrypoint=<type>/<name>; without any name, every folder with a README.md is
tested and its example data checked (one folder: +should_validate_data=true). Resources servers with an audit.py are
audited too (see gym env audit). Exit status: pytest's own for one folder; 1 when a case or a folder failed, had no
tests, has incomplete data or an audit that is off; 2 when there is nothing of that name.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.env_target import add_target_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an environment or benchmark: try its verifier")
    parser.add_argument("--kind", choices=("environment", "benchmark"), help="which of two that share the name")
    parser.add_argument("--update-expected", action="store_true", help="write the rewards found into the cases")
    parser.add_argument("--no-audit", action="store_true", help="leave the audit out")
    add_target_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON; what pytest prints goes to stderr"
    )


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.testing import try_out  # `--help` does without

    return try_out(args, rest)
