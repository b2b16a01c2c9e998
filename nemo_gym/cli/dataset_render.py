"""Fill a prompt template from every row of a file, and show the first ones.

Rows that already have responses_create_params.input, or that lack a field the template asks for, are all named, and
then nothing is written; exit status 1.
"""

import argparse
from collections.abc import Sequence

PREVIEWED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--input", metavar="FILE", help="the rows, without responses_create_params.input")
    parser.add_argument("--prompt-config", metavar="FILE", help="the prompt: YAML with 'user' and perhaps 'system'")
    parser.add_argument("-o", "--output", metavar="FILE", help="where the finished rows go")
    parser.add_argument("--preview", type=int, metavar="N", help=f"show the first N rows (default: {PREVIEWED})")
    parser.add_argument("--search-dir", action="append", default=[], metavar="DIR", help="look here first; repeatable")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.rendering import render_rows  # `--help` does without

    return render_rows(args, rest)
