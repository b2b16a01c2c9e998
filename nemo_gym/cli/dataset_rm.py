"""Delete a dataset from the GitLab registry, with all its versions. Asks first.

Needs mlflow_tracking_uri and mlflow_tracking_token in env.yaml.

  gym dataset rm --name old_dataset
"""

import argparse
from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="the dataset's name (dataset_name)")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print what was deleted as one JSON object")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.removing import remove  # `--help` does without

    return remove(args, rest)
