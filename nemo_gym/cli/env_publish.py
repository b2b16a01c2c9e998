"""Check that an environment or benchmark is ready for others to use. Nothing is uploaded.

Everything `gym env validate NAME` and `gym env test NAME` ask for, and: no placeholder is left in its manifest and
READMEs, its licence is known, and its name finds it and nothing else. Exit status: 0 ready, 1 not, 2 when there is
nothing of that name.
"""

import argparse
from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an environment or benchmark with a manifest")
    parser.add_argument("--kind", choices=("environment", "benchmark"), help="which of two that share the name")
    parser.add_argument("--search-dir", action="append", default=[], metavar="DIR", help="look here first; repeatable")
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object, and nothing else")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.publishing import publish  # `--help` does without

    return publish(args, rest)
