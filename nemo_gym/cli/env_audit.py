"""Try a verifier with right, odd, wrong, cheating and malformed answers, and show every verdict that is off.

NAME is a resources server with an audit.py; --all takes every one that has one. Its server runs in process, or in the
environment it needs. Nothing is asked of a model: the folder's audit.py knows what is right. Exit status: 0 nothing is
off, 1 something is or it could not be tried, 2 there is nothing of that name.
"""

import argparse
from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", metavar="NAME", help="a resources server; several are tried in turn")
    parser.add_argument("--all", action="store_true", help="every resources server that has an audit.py")
    parser.add_argument("--rows", type=int, metavar="N", help="generate N rows beside the examples (default: 10)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="for the generated rows (default: 1)")
    parser.add_argument("--update-readme", action="store_true", help="write the result into the folder's README.md")
    parser.add_argument("--search-dir", action="append", default=[], metavar="DIR", help="look here first; repeatable")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.auditing import audit  # `--help` does without

    return audit(args, rest)
