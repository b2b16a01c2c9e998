"""Upload a prepared JSONL dataset to Hugging Face (default) or GitLab.

The file is checked before the upload, and its checksum is verified after it. A file that the registry already has is
not sent again. Hugging Face needs hf_token, hf_organization, hf_collection_name and hf_collection_slug in env.yaml and
+resource_config_path=FILE, GitLab needs mlflow_tracking_uri and mlflow_tracking_token. Exit status: 0 done, 1 the file
or its copy is not valid, 2 wrong usage, 3 the registry rejected the request or cannot be reached.

  gym dataset upload -i data/train.jsonl --name sums +resource_config_path=resources_servers/sums/configs/sums.yaml
  gym dataset upload --storage gitlab -i data/train.jsonl --name sums --revision 0.0.1
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import raising_file_problems

if TYPE_CHECKING:
    from omegaconf import DictConfig

SPLITS = ("train", "validation", "test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    parser.add_argument("--storage", choices=("hf", "gitlab"), default="hf", help="registry (default: hf)")
    add_file_arguments(parser)
    flags.value("--revision", "NAME", "Hugging Face: branch; GitLab: version x.y.z")
    add_commit_arguments(parser)
    flags.switch("-y --yes", "delete without confirmation, with +delete_from_gitlab=true")


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name the file and the dataset."""
    flags = options.FlagGroup(parser)
    flags.value("-i --input", "FILE", "JSONL file to upload (input_jsonl_fpath)", "input_jsonl_fpath")
    flags.value("--name", "NAME", "name of the dataset (dataset_name)", "dataset_name")


def add_commit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe the commit on the Hub."""
    parser.add_argument("--split", choices=SPLITS, help="split that the file contains (default: train)")
    parser.add_argument("--create-pr", action="store_true", help="open a pull request instead of committing")
    options.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    config = options.resolve_config(args.overrides, needs_model=False).config
    with raising_file_problems():
        return _upload_to_gitlab(args, config) if args.storage == "gitlab" else _upload_to_hub(args, config)


def _upload_to_hub(args: argparse.Namespace, config: DictConfig) -> int:
    """Upload to Hugging Face, with +delete_from_gitlab=true also delete from GitLab; return the exit status."""
    from nemo_gym.cli.shared.registries import load_hub_options, migrate_dataset, print_published
    from nemo_gym.config_types import UploadJsonlDatasetHuggingFaceMaybeDeleteConfig
    from nemo_gym.data import hub

    settings = load_hub_options(UploadJsonlDatasetHuggingFaceMaybeDeleteConfig, config, args)
    if settings.delete_from_gitlab:
        return migrate_dataset(settings, config, args, "Upload, then delete {dataset} from GitLab?")
    with output.transfer_meter("uploading") as meter:
        published = hub.upload(settings, meter=meter)
    print_published(published, as_json=args.json)
    return 0


def _upload_to_gitlab(args: argparse.Namespace, config: DictConfig) -> int:
    """Upload to GitLab, print the result, and return the exit status."""
    from nemo_gym.cli.shared.registries import file_facts, format_size, open_registry
    from nemo_gym.config_types import UploadJsonlDatasetGitlabConfig
    from nemo_gym.data import gitlab

    labels = {"version": "--revision"}
    settings = options.load_options(UploadJsonlDatasetGitlabConfig, config, args, {"version": args.revision}, labels)
    registry = open_registry(config, args.prog)
    with output.transfer_meter("uploading") as meter:
        stored = gitlab.upload(settings, registry, meter=meter)
    if args.json:
        facts = {"storage": "gitlab", "dataset_name": stored.name, "version": stored.version}
        output.write_json({**facts, **file_facts(stored.path, stored.digest), "uploaded": stored.changed})
        return 0
    state = "uploaded and verified" if stored.changed else "the registry has exactly this file already"
    output.write(f"✓ {stored.name} {stored.version}/{stored.path}: {state} ({format_size(stored.digest.size)})")
    output.write(f"  sha256 {stored.digest.sha256}")
    return 0
