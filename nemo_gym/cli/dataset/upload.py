"""Upload a prepared JSONL dataset to Hugging Face (default) or GitLab.

The file is checked before the upload, and its checksum is verified after it. A file that the registry already has is
not sent again. Hugging Face needs hf_token, hf_organization, hf_collection_name and hf_collection_slug in env.yaml and
+resource_config_path=FILE, GitLab needs mlflow_tracking_uri and mlflow_tracking_token. Exit status: 0 done, 1 the file
or its copy is not valid, 2 wrong usage, 3 the registry rejected the request or cannot be reached.

  gym dataset upload -i data/train.jsonl --name sums +resource_config_path=resources_servers/sums/configs/sums.yaml
  gym dataset upload --storage gitlab -i data/train.jsonl --name sums --revision 0.0.1
"""

import argparse
from typing import Any

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

SPLITS = ("train", "validation", "test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.FlagGroup(parser).choice("--storage", ("hf", "gitlab"), "registry (default: hf)", "hf")
    revision_help = "Hugging Face: branch; GitLab: version x.y.z"
    add_upload_arguments(parser, revision_help, "delete without confirmation, with +delete_from_gitlab=true")


def add_upload_arguments(parser: argparse.ArgumentParser, revision_help: str, yes_help: str) -> None:
    """Add the flags that name the file and the dataset and describe the commit."""
    flags = options.FlagGroup(parser)
    flags.text("-i --input", "FILE", "JSONL file to upload (input_jsonl_fpath)", "input_jsonl_fpath")
    flags.text("--name", "NAME", "name of the dataset (dataset_name)", "dataset_name")
    flags.text("--revision", "NAME", revision_help)
    flags.choice("--split", SPLITS, "split that the file contains (default: train)")
    flags.switch("--create-pr", "open a pull request instead of committing")
    flags.json()
    flags.switch("-y --yes", yes_help)


def run(args: argparse.Namespace) -> int:
    return _upload_to_gitlab(args) if args.storage == "gitlab" else _upload_to_hub(args)


def _upload_to_hub(args: argparse.Namespace) -> int:
    """Upload to Hugging Face, with +delete_from_gitlab=true also delete from GitLab; return the exit status."""
    from nemo_gym.cli.shared.registries import load_hub_options, migrate_dataset, print_published
    from nemo_gym.config_types import UploadJsonlDatasetHuggingFaceMaybeDeleteConfig
    from nemo_gym.data import hub

    config = options.resolve_config(args, needs_model=False).config
    settings = load_hub_options(UploadJsonlDatasetHuggingFaceMaybeDeleteConfig, config, args)
    if settings.delete_from_gitlab:
        return migrate_dataset(settings, config, args, "Upload, then delete {dataset} from GitLab?")
    with output.transfer_meter("uploading") as meter:
        published = hub.upload(settings, meter=meter)
    print_published(published, as_json=args.json)
    return 0


def _upload_to_gitlab(args: argparse.Namespace) -> int:
    """Upload to GitLab, print the result, and return the exit status."""
    from nemo_gym.cli.shared.registries import file_facts, load_gitlab_options, open_registry, print_uploaded
    from nemo_gym.config_types import UploadJsonlDatasetGitlabConfig
    from nemo_gym.data import gitlab

    config = options.resolve_config(args, needs_model=False).config
    settings = load_gitlab_options(UploadJsonlDatasetGitlabConfig, config, args)
    registry = open_registry(config, args.prog)
    with output.transfer_meter("uploading") as meter:
        stored = gitlab.upload(settings, registry, meter=meter)
    facts: dict[str, Any] = {"storage": "gitlab", "dataset_name": stored.name, "version": stored.version}
    facts |= {**file_facts(stored.path, stored.digest), "uploaded": stored.changed}
    name = f"{stored.name} {stored.version}/{stored.path}"
    output.write_result(facts, lambda: print_uploaded(name, stored.digest, changed=stored.changed), as_json=args.json)
    return 0
