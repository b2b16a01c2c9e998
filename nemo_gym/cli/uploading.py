"""What `gym dataset upload` does."""

import argparse
from collections.abc import Sequence

from omegaconf import DictConfig

from nemo_gym.cli import output
from nemo_gym.cli.dataset_publish import (
    agreed,
    among,
    configuration,
    file_facts,
    files_explained,
    gitlab_address,
    gitlab_registry,
    hub_token,
    progress_bar,
    size_text,
)
from nemo_gym.cli.options import options
from nemo_gym.config_types import UploadJsonlDatasetGitlabConfig, UploadJsonlDatasetHuggingFaceMaybeDeleteConfig
from nemo_gym.data import gitlab, hub
from nemo_gym.data.hub_migrate import gitlab_name, migrate, versions_to_delete

COMMAND = "gym dataset upload"


def upload(args: argparse.Namespace, rest: Sequence[str]) -> int:
    config = configuration(rest)
    with files_explained():
        return _to_gitlab(args, config) if args.storage == "gitlab" else _to_hub(args, config)


def hub_flags(args: argparse.Namespace, config: DictConfig) -> dict[str, tuple[str, object]]:
    """The keys of an upload to the Hub that flags set."""
    return {
        "hf_token": hub_token(config),
        "input_jsonl_fpath": ("--input", args.input),
        "dataset_name": ("--name", args.name),
        "revision": ("--revision", args.revision),
        "split": ("--split", args.split),
        "create_pr": ("--create-pr", args.create_pr or None),
    }


def _to_hub(args: argparse.Namespace, config: DictConfig) -> int:
    settings = options(UploadJsonlDatasetHuggingFaceMaybeDeleteConfig, config, hub_flags(args, config), command=COMMAND)
    if not settings.delete_from_gitlab:
        with progress_bar("uploading") as meter:
            published = hub.upload(settings, meter=meter)
        tell_published(published, as_json=args.json)
        return 0
    registry, name = gitlab_registry(config, COMMAND), gitlab_name(settings)
    doomed = among(versions_to_delete(registry, name))
    if not agreed(f"Upload, then delete '{name}' with all its versions{doomed} from GitLab?", yes=args.yes):
        output.talk("nothing was uploaded, nothing was deleted")
        return 1
    with progress_bar("uploading") as meter:
        published = migrate(settings, registry, meter=meter)
    tell_published(published, as_json=args.json, deleted=name)
    return 0


def tell_published(published: hub.Published, *, as_json: bool, deleted: str | None = None) -> None:
    """What is on the Hub now."""
    if as_json:
        facts = {
            "storage": "hf",
            "repo_id": published.repo,
            **file_facts(published.path, published.digest),
            "revision": published.revision,
            "url": published.url,
            "pull_request_url": published.pull_request,
            "uploaded": published.changed,
            "deleted_from_gitlab": deleted,
        }
        output.json(facts)
        return
    happened = "uploaded and verified" if published.changed else "the Hub has exactly this file already"
    output.data(f"✓ {published.repo}/{published.path}: {happened} ({size_text(published.digest.size)})")
    output.data(f"  sha256 {published.digest.sha256}")
    output.data(f"  {published.pull_request or published.url}")
    if deleted:
        output.data(f"  deleted from GitLab: {deleted}")


def _to_gitlab(args: argparse.Namespace, config: DictConfig) -> int:
    given = {
        "input_jsonl_fpath": ("--input", args.input),
        "dataset_name": ("--name", args.name),
        "version": ("--revision", args.revision),
    }
    settings = options(UploadJsonlDatasetGitlabConfig, config, given, command=COMMAND)
    uri, token = gitlab_address(config, COMMAND)
    with progress_bar("uploading") as meter:
        stored = gitlab.upload(settings, tracking_uri=uri, token=token, meter=meter)
    if args.json:
        facts = {"storage": "gitlab", "dataset_name": stored.name, "version": stored.version}
        output.json({**facts, **file_facts(stored.path, stored.digest), "uploaded": stored.changed})
        return 0
    happened = "uploaded and verified" if stored.changed else "the registry has exactly this file already"
    output.data(f"✓ {stored.name} {stored.version}/{stored.path}: {happened} ({size_text(stored.digest.size)})")
    output.data(f"  sha256 {stored.digest.sha256}")
    return 0
