"""Check the datasets of agents row by row, measure them, and collate them for training.

Every row that cannot be used is named, and then nothing is written; exit status 1. Otherwise: <type>.jsonl and
<type>_metrics.json in the output folder, <name>_prepare.jsonl and <name>_metrics.json beside each dataset.
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.inputs import add_config_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    rows = parser.add_argument_group("datasets")
    rows.add_argument(
        "--mode",
        choices=("train_preparation", "example_validation"),
        help="train, validation and benchmark data, or the example rows only",
    )
    rows.add_argument("--output-dir", metavar="DIR", help="where the collated rows and their metrics go")
    rows.add_argument("--download", action="store_true", help="download datasets whose files are missing")
    rows.add_argument("--data-source", choices=("huggingface", "gitlab"), help="if a dataset is in both registries")
    rows.add_argument("--max-errors", type=int, metavar="N", help="stop after N rows that cannot be used")
    rows.add_argument("--overwrite-metrics", action="store_true", help="replace metrics files that disagree")
    rows.add_argument("--plot", metavar="FILE", help="draw input lengths and turns, as .png or .svg")
    rows.add_argument("--processes", type=int, metavar="N", help="work with N processes (default: as fits)")
    rows.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.collating import collate  # `--help` does without

    return collate(args, rest)
