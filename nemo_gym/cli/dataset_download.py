"""Download a dataset from Hugging Face (default) or GitLab.

A file appears under its name when it is complete and has the right checksum; a download that was interrupted continues
where it stopped. Exit status: 0 done, 1 the checksum is wrong, 2 wrong usage, 3 the registry refused or cannot be
reached.

  gym dataset download --repo-id org/name --artifact train.jsonl -o data/train.jsonl
  gym dataset download --repo-id org/name --output-dir data
  gym dataset download --storage gitlab --name sums --revision 0.0.1 --artifact train.jsonl -o data/train.jsonl
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.dataset_upload import SPLITS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--storage", choices=("hf", "gitlab"), default="hf", help="where from (default: hf)")
    parser.add_argument("--repo-id", metavar="ORG/NAME", help="Hugging Face: the dataset (repo_id)")
    parser.add_argument("--name", metavar="NAME", help="GitLab: the dataset (dataset_name)")
    parser.add_argument("--revision", metavar="NAME", help="Hugging Face: branch, tag or commit; GitLab: the version")
    parser.add_argument("--artifact", metavar="PATH", help="the file inside the dataset (artifact_fpath)")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (output_fpath)")
    parser.add_argument("--output-dir", metavar="DIR", help="Hugging Face: a folder for all splits (output_dirpath)")
    parser.add_argument("--split", choices=SPLITS, help="Hugging Face: only this split")
    parser.add_argument("--json", action="store_true", help="print what was written as one JSON object")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.downloading import download  # `--help` does without

    return download(args, rest)
