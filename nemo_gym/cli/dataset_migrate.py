"""Move a JSONL dataset from GitLab to Hugging Face: upload, verify, then delete from GitLab. Asks first.

Nothing is deleted unless the copy on the Hub has the file's checksum. `gym dataset upload` publishes without deleting.

  gym dataset migrate -i data/train.jsonl --name sums +resource_config_path=resources_servers/sums/configs/sums.yaml
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli.dataset_upload import add_commit_arguments, add_file_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_arguments(parser)
    parser.add_argument("--revision", metavar="NAME", help="the branch on the Hub")
    add_commit_arguments(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli.migrating import migrate_dataset  # `--help` does without

    return migrate_dataset(args, rest)
