"""Upload a prepared JSONL dataset to Hugging Face (default) or GitLab.

The file is checked first, and verified by its checksum afterwards; sent again, it costs nothing. Hugging Face needs
hf_token, hf_organization, hf_collection_name and hf_collection_slug in env.yaml and +resource_config_path=FILE, GitLab
needs mlflow_tracking_uri and mlflow_tracking_token. Exit status: 0 done, 1 the file or its copy is not right, 2 wrong
usage, 3 the registry refused or cannot be reached.

  gym dataset upload -i data/train.jsonl --name sums +resource_config_path=resources_servers/sums/configs/sums.yaml
  gym dataset upload --storage gitlab -i data/train.jsonl --name sums --revision 0.0.1
"""

import argparse
from collections.abc import Sequence

SPLITS = ("train", "validation", "test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--storage", choices=("hf", "gitlab"), default="hf", help="where to (default: hf)")
    add_file_arguments(parser)
    parser.add_argument("--revision", metavar="NAME", help="Hugging Face: the branch; GitLab: the version, x.y.z")
    add_commit_arguments(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="with +delete_from_gitlab=true: do not ask")


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Which file, under which name."""
    parser.add_argument("-i", "--input", metavar="FILE", help="the JSONL file (input_jsonl_fpath)")
    parser.add_argument("--name", metavar="NAME", help="the dataset's name (dataset_name)")


def add_commit_arguments(parser: argparse.ArgumentParser) -> None:
    """How it arrives on the Hub."""
    parser.add_argument("--split", choices=SPLITS, help="which split the file is (default: train)")
    parser.add_argument("--create-pr", action="store_true", help="open a pull request instead of committing")
    parser.add_argument("--json", action="store_true", help="print what happened as one JSON object")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.uploading import upload  # `--help` does without

    return upload(args, rest)
